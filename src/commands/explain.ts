import type { Settings } from '../config/schema.ts';
import { OWN_ISSUER } from '../domain/access-rule.ts';
import { isForwardableMethod } from '../domain/method.ts';
import { compileRules } from '../domain/rule-matcher.ts';
import { parseScope } from '../domain/scope.ts';
import {
  type AcceptedTokens,
  type ExplainContext,
  type Explanation,
  explain,
  type Verdict,
} from '../proxy/policy/explain.ts';
import { createOwnAuthorityCheck } from '../proxy/policy/own-authority.ts';
import { createHostMatcher, createServedHosts } from '../proxy/policy/served-hosts.ts';
import { buildIntegrations, buildRules } from '../server/build-from-settings.ts';
import { getPagesOrigin } from '../server/pages-origin.ts';
import { ServicePaths } from '../server/service-paths.ts';
import {
  COMMON_METHODS,
  CONFIG_OPTIONS,
  type Command,
  type CommandContext,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { loadCommandSettings } from './settings.ts';

const MISMATCH_TEXTS = {
  path: 'another path',
  host: 'another host',
  method: 'another method',
  encoded_slash: 'matches, but does not accept %2F; later rules are not tried',
  equivalent_path: 'differs only in letter case or by a trailing slash, and is stricter',
  ambiguous_path:
    'would match, but an upstream may interpret the path as that of another rule (%2F, ;parameters, letter case, trailing slash)',
} as const;

export const command: Command = {
  name: 'explain',
  summary: 'shows which rule matches a request, what it requires, and whether a scope is sufficient',
  usage: ['gatehouse explain [--config FILE] METHOD PATH [--scope SCOPE] [--client CLIENT_ID]'],
  options: {
    ...CONFIG_OPTIONS,
    scope: { type: 'string', value: 'SCOPE', help: 'the scope of a hypothetical token, such as files:read' },
    client: { type: 'string', value: 'CLIENT_ID', help: 'the integration of a hypothetical token' },
    host: { type: 'string', value: 'HOST', help: 'the Host of the request (default: that of publicUrl)' },
  },
  positionals: { min: 2, max: 2, complete: [COMMON_METHODS] },
  notes: ['The exit code is 0 for every verdict; --output json includes the verdict.'],
  async run(context) {
    const { settings } = loadCommandSettings(context);
    const [method = '', path = ''] = context.positionals;
    if (!isForwardableMethod(method))
      throw new UsageError('gatehouse explain: write METHOD in capitals, such as GET');
    const scope = parseScopeOption(context);
    const client = context.option('client');
    const integration = client === undefined ? undefined : buildIntegrations(settings, []).get(client);
    if (client !== undefined && integration === undefined)
      throw new UsageError(`gatehouse explain: there is no integration "${client}"`);
    const explanation = explain(createExplainContext(settings), {
      method,
      path,
      host: context.option('host') ?? new URL(settings.publicUrl).host,
      ...(scope !== undefined && { scope }),
      ...(client !== undefined && { client }),
      ...(integration !== undefined && { integration }),
    });
    const { rule, ...rest } = explanation;
    if (context.json)
      writeJson(context, { method, ...rest, rule: rule?.name ?? null, upstream: rule?.upstream ?? null });
    else context.stdout(`${[`${method} ${path}`, ...formatExplanation(explanation)].join('\n')}\n`);
    return EXIT.ok;
  },
};

function createExplainContext(settings: Settings): ExplainContext {
  const { publicUrl, hosts, trustedIssuers } = settings;
  const rules = compileRules(buildRules(settings));
  const pagesHost = getPagesOrigin(settings).host;
  const paths = new ServicePaths(settings);
  const served = createServedHosts({ settings: hosts, publicUrl, routeHosts: rules.hosts, pagesHost });
  return {
    rules,
    publicUrl,
    trustedIssuers: new Map(Object.entries(trustedIssuers)),
    isOwnAuthority: createOwnAuthorityCheck(publicUrl, rules, createHostMatcher(hosts.allowed, pagesHost)),
    pagesHost,
    isListedHost: (name) => served.isListed(name),
    unlistedHosts: hosts.others,
    isServicePath: (path) => paths.includes(path),
    isPagePath: (path) => /^\/device(?:\/|$)/.test(paths.parse(path) ?? ''),
    isForwardAuthPath: (url) => paths.matchForwardAuth(url) !== undefined,
  };
}

function formatExplanation(explanation: Explanation): string[] {
  const { tried, rule, requirement = '', verdict, reason, reportOnly } = explanation;
  return [
    ...tried.flatMap(({ rule: name, misfit }) =>
      misfit === undefined ? [] : [`  ${name}: ${MISMATCH_TEXTS[misfit]}`],
    ),
    ...(rule === undefined ? [] : [`  ${rule.name}: matches, requires ${requirement}`]),
    ...formatDetails(explanation),
    `${VERDICT_TEXTS[verdict]}: ${reason}`,
    ...(reportOnly === true && verdict !== 'allowed' ? ['but it is forwarded: the rule is report-only'] : []),
  ];
}

const VERDICT_TEXTS = {
  handled_by_gatehouse: 'served by gatehouse itself',
  method_not_allowed: 'rejected (405)',
  misdirected: 'rejected (421)',
  invalid_request: 'rejected (400)',
  public: 'forwarded without a token',
  allowed: 'forwarded',
  token_required: 'needs a token (401 without)',
  forbidden: 'rejected (403)',
  no_rule: 'denied (404)',
} as const satisfies Record<Verdict, string>;

const formatAccepted = ({ issuer, url, audiences, routeAudiences }: AcceptedTokens): string =>
  `  accepts tokens of ${issuer === OWN_ISSUER ? 'gatehouse' : `${issuer} (${url})`} for ${[
    audiences,
    routeAudiences ?? [],
  ]
    .filter((list) => list.length > 0)
    .map((list) => list.join(' or '))
    .join('; the route also requires ')}`;

const formatDetails = (explanation: Explanation): string[] => [
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
    : [
        `  a CORS preflight for ${explanation.preflightsFor.join(', ')} is answered by gatehouse, without a token`,
      ]),
];

function parseScopeOption(context: CommandContext) {
  const text = context.option('scope');
  if (text === undefined) return undefined;
  const parsed = parseScope(text);
  if (parsed.ok) return parsed.value;
  throw new UsageError(
    `gatehouse explain: "${text}" is not a scope; write resource:permission,permission;resource`,
  );
}
