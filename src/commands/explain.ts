import { isMethod } from '../domain/method.ts';
import { parseScope } from '../domain/scope.ts';
import type { ExplainDesk, Explanation, Verdict } from '../proxy/explain.ts';
import { CONFIG_OPTIONS, type Command, type Context, EXIT, UsageError, writeJson } from './command.ts';
import { settingsFor } from './settings.ts';

const MISFITS = {
  path: 'another path',
  host: 'another host',
  method: 'another method',
  encoded_slash: 'matches, and does not take %2F: no later rule is asked',
  other_spelling: 'differs only in letter case or by a trailing slash, and asks for more',
  other_reading:
    'would match, but an upstream may read the path as that of another rule (%2F, ;parameters, letter case, trailing slash)',
} as const;

export const command: Command = {
  name: 'explain',
  summary: 'tells which rule a request meets, what it asks, and whether a scope passes',
  usage: ['gatehouse explain [--config FILE] METHOD PATH [--scope SCOPE] [--client CLIENT_ID]'],
  options: {
    ...CONFIG_OPTIONS,
    scope: { type: 'string', value: 'SCOPE', help: 'the scope of the imagined token, such as files:read' },
    client: { type: 'string', value: 'CLIENT_ID', help: 'the integration of the imagined token' },
    host: { type: 'string', value: 'HOST', help: 'the Host of the request (default: that of publicUrl)' },
  },
  words: { least: 2, most: 2 },
  notes: ['Exit code 0 whatever the answer is; --output json carries the verdict.'],
  async run(context) {
    const loaded = await settingsFor(context);
    if (typeof loaded === 'number') return loaded;
    const [method = '', path = ''] = context.words;
    if (!isMethod(method))
      throw new UsageError(`gatehouse explain: METHOD is written in capitals, such as GET`);
    const { settings } = loaded;
    const { compileRules } = await import('../domain/rule-matcher.ts');
    const { integrationsOf, rulesOf } = await import('../gateway/registry.ts');
    const { pagesOriginOf } = await import('../gateway/pages-origin.ts');
    const { checkMatcher, ownPaths, servicePaths } = await import('../gateway/service-paths.ts');
    const { explain } = await import('../proxy/explain.ts');
    const { ownAuthorities } = await import('../proxy/own-authority.ts');
    const { allowedHosts, servedHosts } = await import('../proxy/served-hosts.ts');

    const scope = scopeOf(context);
    const client = context.option('client');
    const integration = client === undefined ? undefined : integrationsOf(settings, []).get(client);
    if (client !== undefined && integration === undefined)
      throw new UsageError(`gatehouse explain: there is no integration "${client}"`);
    const host = context.option('host') ?? new URL(settings.publicUrl).host;
    const rules = compileRules(rulesOf(settings));
    const afterCheck = checkMatcher(settings);
    const below = servicePaths(settings);
    const pagesHost = pagesOriginOf(settings).host;
    const { publicUrl, hosts } = settings;
    const served = servedHosts({ settings: hosts, publicUrl, routeHosts: rules.hosts, pagesHost });
    const desk: ExplainDesk = {
      rules,
      isOwnAuthority: ownAuthorities(publicUrl, rules, allowedHosts(hosts.allowed, pagesHost)),
      pagesHost,
      isListedHost: (name) => served.isListed(name),
      otherHosts: hosts.others,
      isServicePath: ownPaths(settings),
      isPage: (path) => /^\/device(?:\/|$)/.test(below(path) ?? ''),
      isCheck: (url) => afterCheck(url) !== undefined,
    };
    const answer = explain(desk, {
      method,
      path,
      host,
      ...(scope !== undefined && { scope }),
      ...(client !== undefined && { client }),
      ...(integration !== undefined && { integration }),
    });

    const { rule, ...rest } = answer;
    if (context.json) {
      writeJson(context, { method, ...rest, rule: rule?.name ?? null, upstream: rule?.upstream ?? null });
      return EXIT.ok;
    }
    const lines = [
      ...answer.tried.flatMap(({ rule: name, misfit }) =>
        misfit === undefined ? [] : [`  ${name}: ${MISFITS[misfit]}`],
      ),
      ...(rule === undefined ? [] : [`  ${rule.name}: matches, asks for ${answer.asks ?? ''}`]),
      ...asidesOf(answer),
      `${VERDICTS[answer.verdict]}: ${answer.why}`,
      ...(answer.reportOnly === true && answer.verdict !== 'passes'
        ? ['but it passes: the rule only reports']
        : []),
    ];
    context.stdout(`${method} ${path}\n${lines.join('\n')}\n`);
    return EXIT.ok;
  },
};

const VERDICTS = {
  answered_here: 'answered by gatehouse itself',
  method_not_served: 'refused (405)',
  misdirected: 'refused (421)',
  bad_path: 'refused (400)',
  public: 'forwarded without a token',
  passes: 'forwarded',
  needs_token: 'needs a token (401 without)',
  insufficient: 'refused (403)',
  no_rule: 'denied (404)',
} as const satisfies Record<Verdict, string>;

/** What else the rule says, where it matters for this request. */
const asidesOf = (told: Explanation): string[] => [
  ...(told.unlistedHost === true && told.verdict !== 'misdirected'
    ? ['  the host is not listed in hosts.allowed: a warning is logged']
    : []),
  ...(told.onlyHttp2 === true ? ['  over HTTP/2; the HTTP/1.1 parser refuses this method (400)'] : []),
  ...(told.websocket === true ? ['  a WebSocket may be opened here'] : []),
  ...(told.corsOrigins === undefined
    ? []
    : [`  pages of ${told.corsOrigins.join(', ')} may read the answer`]),
  ...(told.preflightsFor === undefined
    ? []
    : [
        `  as a browser's preflight for ${told.preflightsFor.join(', ')} it is answered here, without a token`,
      ]),
];

function scopeOf(context: Context) {
  const text = context.option('scope');
  if (text === undefined) return undefined;
  const parsed = parseScope(text);
  if (parsed.ok) return parsed.value;
  throw new UsageError(
    `gatehouse explain: "${text}" is not a scope; write resource:permission,permission;resource`,
  );
}
