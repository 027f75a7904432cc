import { type AccessRule, OWN_ISSUER } from '../../domain/access-rule.ts';
import type { AcceptedTokens, Explanation, Verdict } from './explain.ts';

/** Why a rule does not match. */
export const MISMATCH_TEXTS = {
  path: 'the path differs',
  host: 'the host differs',
  method: 'the method differs',
  encoded_slash: 'matches, but does not accept %2F; later rules are not tried',
  equivalent_path: 'differs only in letter case or by a trailing slash, and is stricter',
  ambiguous_path:
    'would match, but an upstream may read the path as one of a stricter rule (%2F, ;parameters, letter case, trailing slash)',
} as const;

/** The rules that were tried, the one that matches, and the verdict, as lines of text. */
export function formatExplanation(explanation: Explanation): string[] {
  const { tried, rule, requirement = '', verdict, reason, reportOnly } = explanation;
  return [
    ...tried.flatMap(({ rule: name, misfit }) =>
      misfit === undefined ? [] : [`  ${name}: ${MISMATCH_TEXTS[misfit]}`],
    ),
    ...(rule === undefined ? [] : [`  ${rule.name}: matches; ${formatRequirement(rule, requirement)}`]),
    ...formatDetails(explanation),
    `${VERDICT_TEXTS[verdict]}: ${reason}`,
    ...(reportOnly === true && verdict !== 'allowed' ? ['but it is forwarded: the rule is report-only'] : []),
  ];
}

function formatRequirement({ requirement: { kind } }: AccessRule, text: string): string {
  if (kind === 'public') return 'it is public and needs no token';
  return kind === 'any-token'
    ? text.replace(/^any-token/, 'it needs any valid token')
    : `it needs a token with ${text}`;
}

/** What the gateway does. */
export const VERDICT_TEXTS = {
  handled_by_gatehouse: 'served by gatehouse itself',
  method_not_allowed: 'rejected (405)',
  misdirected: 'rejected (421)',
  invalid_request: 'rejected (400)',
  public: 'forwarded without a token',
  allowed: 'forwarded',
  token_required: 'requires a token (401 without one)',
  forbidden: 'rejected (403)',
  no_rule: 'rejected (404; 401 without a valid token issued by gatehouse)',
} as const satisfies Record<Verdict, string>;

const formatAccepted = ({ issuer, url, audiences, routeAudiences }: AcceptedTokens): string =>
  `  accepts tokens issued by ${issuer === OWN_ISSUER ? 'gatehouse' : `${issuer} (${url})`} for ${[
    audiences,
    routeAudiences ?? [],
  ]
    .filter((list) => list.length > 0)
    .map((list) => list.join(' or '))
    .join('; the route also requires ')}`;

/** What else applies to the request, one fact per line. */
export const formatDetails = (explanation: Explanation): string[] => [
  ...(explanation.accepts ?? []).map(formatAccepted),
  ...(explanation.unlistedHost === true && explanation.verdict !== 'misdirected'
    ? ['  the host is not listed in hosts.allowed: a warning is logged']
    : []),
  ...(explanation.http2Only === true ? ['  over HTTP/2; the HTTP/1.1 parser rejects this method (400)'] : []),
  ...(explanation.limits === undefined
    ? []
    : [`  at most ${explanation.limits.join(', and ')}; further requests are rejected (429)`]),
  ...(explanation.websocket === true ? ['  WebSocket upgrades are allowed'] : []),
  ...(explanation.corsOrigins === undefined
    ? []
    : [`  CORS: pages of ${explanation.corsOrigins.join(', ')} may read the response`]),
  ...(explanation.preflightsFor === undefined
    ? []
    : [`  a CORS preflight for ${explanation.preflightsFor.join(', ')} is answered by gatehouse, without a token`]),
];
