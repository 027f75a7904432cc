import * as z from 'zod';
import { foldFieldName, foldFieldNames } from '../../http/fold-field-name.ts';
import { checkWith, crossCheck } from '../cross-check.ts';
import type { SettingPath } from '../setting-path.ts';
import {
  audience,
  choice,
  count,
  duration,
  durationBetween,
  group,
  headerName,
  lifetime,
  nonEmptyList,
  on,
  optional,
  type PathSchema,
  shortText,
  size,
  text,
} from '../units.ts';

const pathComparison = choice(['unknown', 'distinct', 'same']);

/** `upstreams.*`: where requests are forwarded to. */
export const upstreamSection = (path: PathSchema) =>
  z
    .strictObject({
      url: optional(z.string()).describe('`http://host:port`, `https://host:port` or `unix:/path/to.sock`.'),
      urls: optional(nonEmptyList(z.string())).describe('Several targets; a request goes to the least loaded one.'),
      audience: optional(audience).describe(
        'Only tokens for one of these audiences, on every route to this upstream that sets no other.',
      ),
      protocol: choice(['http1', 'http2']).describe(
        'Protocol of requests to the upstream. `http2`: over TLS with ALPN, and over plain TCP with prior knowledge; gRPC needs it. WebSockets always use HTTP/1.1.',
      ),
      timeouts: group({
        connect: duration.prefault('2s').describe('Time limit for connecting.'),
        headers: duration.prefault('30s').describe('Time limit until the response head.'),
        idle: duration.prefault('60s').describe('Longest pause within a request body or a response.'),
        events: durationBetween('1s', '1d', '1h').describe(
          'Longest pause within an event stream (`text/event-stream`) whose client has read everything. If shorter than `timeouts.idle`, that applies.',
        ),
        body: lifetime.prefault('1h').describe('Time limit for the request body; otherwise 408.'),
        websocket: durationBetween('1s', '1d', '5m').describe(
          'Longest time without data in either direction of a WebSocket.',
        ),
      }),
      bodyBuffer: size
        .prefault('64KiB')
        .describe(
          'How much of a request body is buffered before a connection is used. With methods other than POST, PUT and PATCH, all of it.',
        ),
      connections: count(128).describe(
        'Maximum number of connections to each target. Requests whose body is still arriving use at most half of them; one client uses at most seven times as many as are free.',
      ),
      maxPending: z
        .int()
        .min(0)
        .default(512)
        .describe(
          'Maximum number of requests that wait for a connection to a target; beyond that, and after `timeouts.headers` of waiting, 503.',
        ),
      websockets: count(1_000).describe(
        'Maximum number of WebSockets to each target, in addition to `connections`; one client opens at most seven times as many as are free. Beyond that, 503.',
      ),
      eventStreams: count(1_000).describe(
        'Maximum number of event streams (`text/event-stream`) to each target, in addition to `connections`; one client opens at most seven times as many as are free. Beyond that, GET gets 503, and responses to other methods keep their connection and may pause for `timeouts.idle` only.',
      ),
      ejection: group({
        failures: count(3).describe('Consecutive failed connections (refused, timed out, closed without a response).'),
      }).describe('When one of several targets is ejected. If all are ejected, the least bad one is used.'),
      health: optional(
        z.strictObject({
          path: optional(text(/^\/[\x21-\x7e]*$/, 'must be a path such as /health')).describe(
            'Requested with GET; any 2xx or 3xx is healthy.',
          ),
          grpcService: optional(text(/^[\x21-\x7e]{0,255}$/, 'must be the name of a service')).describe(
            'Instead of `path`: the service whose status is requested with the gRPC health checking protocol. Empty: the server as a whole. Needs `protocol: http2`.',
          ),
          interval: lifetime.prefault('10s').describe('Interval between checks of a target.'),
          timeout: lifetime.prefault('2s').describe('Time limit for the response.'),
        }),
      ).describe(
        'Health checks of the targets: only healthy ones are used. Does not affect the readiness of gatehouse.',
      ),
      ca: optional(path).describe(
        'CA bundle for an https upstream, PEM, instead of the public CAs. Reloaded when it changes.',
      ),
      certificate: optional(path).describe('Client certificate for an https upstream, PEM. Reloaded when it changes.'),
      key: optional(path).describe('Its private key, PEM. Reloaded with it.'),
      serverName: optional(text(/^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/, 'must be a host name')).describe(
        'Name in the certificate of an https upstream, also sent as SNI, if it is not the host of the URL.',
      ),
      rewriteLocation: on.describe(
        'Rewrite `Location` headers with the address of the upstream to `publicUrl`, with the prefix that `stripPrefix` removed.',
      ),
      paths: group({
        letterCase: pathComparison.describe(
          '`/Admin` and `/admin`: `distinct` resources, the `same` (routes then match in any letter case), or `unknown`.',
        ),
        trailingSlash: pathComparison.describe(
          '`/admin/` and `/admin`: `distinct` resources, the `same` (routes then match with and without the slash), or `unknown`.',
        ),
      }).describe(
        'How the API compares paths. While `unknown`, a request whose path differs from a stricter route only in this way is rejected, never forwarded by a weaker route.',
      ),
      assertion: optional(
        z.strictObject({
          header: headerName
            .default('X-Gatehouse-Assertion')
            .describe('Header of the assertion. Values sent by clients are removed.'),
          audience: optional(shortText).describe('The `aud` claim. Default: the name of the upstream.'),
        }),
      ).describe(
        'Also send the identity of the caller as a JWT with a lifetime of 60 seconds, for upstreams that do not trust the network. `{}` is enough.',
      ),
    })
    .superRefine(
      checkWith(({ url, urls, certificate, key, protocol, health }, report) => {
        if (health !== undefined && (health.path === undefined) === (health.grpcService === undefined))
          report(['health'], 'needs either path or grpcService');
        if (health?.grpcService !== undefined && protocol !== 'http2')
          report(['health', 'grpcService'], 'needs protocol: http2');
        if ((certificate === undefined) !== (key === undefined))
          report([key === undefined ? 'certificate' : 'key'], 'needs both certificate and key, or neither');
        if ((url === undefined) === (urls === undefined)) report([], 'needs either url or urls');
        for (const text of listTargets({ url, urls })) {
          const problem = checkTarget(text);
          if (problem !== undefined) report(['url'], problem);
        }
      }),
    )
    .transform((upstream) => ({ ...upstream, targets: listTargets(upstream) }));

const listTargets = ({
  url,
  urls,
}: {
  readonly url?: string | undefined;
  readonly urls?: readonly string[] | undefined;
}): readonly string[] => urls ?? (url === undefined ? [] : [url]);

/** For a host and an optional port, or a socket, without a scheme. */
function suggestScheme(text: string): string {
  const isHost = /^(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-f:.]+\])(?::\d{1,5})?\/?$/i.test(text);
  const url = text.startsWith('/') ? `unix:${text}` : isHost ? `http://${text}` : undefined;
  return url === undefined ? '' : `; write ${url}${isHost ? ', or https:// if it expects TLS' : ''}`;
}

function checkTarget(text: string): string | undefined {
  if (/^unix:\/.+/.test(text)) return undefined;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol))
    return `not an http, https or unix URL: "${text}"${suggestScheme(text)}`;
  return url.href === `${url.origin}/` ? undefined : 'must be an origin; a path, query or password would be ignored';
}

/** `headers`: how the caller is identified to the upstream. */
export const headersSection = () =>
  z.strictObject({
    user: headerName.default('X-Forwarded-User').describe('Header of the identity.'),
    clientId: headerName.default('X-Forwarded-Client-Id').describe('Header of the client id.'),
    scope: headerName.default('X-Forwarded-Scope').describe('Header of the scope, in normal form.'),
    name: z
      .union([headerName, z.literal(false)])
      .default('X-Forwarded-Preferred-Username')
      .describe('Header of the user name, or `false`.'),
    email: z
      .union([headerName, z.literal(false)])
      .default(false)
      .describe('Header of the email address, such as `X-Forwarded-Email`, or `false`.'),
    groups: z
      .union([headerName, z.literal(false)])
      .default(false)
      .describe(
        'Header of the groups, such as `X-Forwarded-Groups`, or `false`. Separated by commas; a comma within a name is percent-encoded. A list longer than 4 KiB is not sent.',
      ),
  });

/** Headers with a meaning in HTTP, or set by clients: an identity in one of them could be forged. */
const RESERVED_HEADERS = foldFieldNames(
  (
    'host connection content-length content-type transfer-encoding te trailer upgrade expect keep-alive ' +
    'authorization proxy-authorization cookie traceparent tracestate ' +
    'x-request-id x-forwarded-for x-forwarded-proto x-forwarded-host'
  ).split(' '),
);

export const headerRules = [
  // Compared as the proxy compares them: letters and digits only, without case.
  crossCheck(['headers', 'upstreams'], ({ headers, upstreams }, report) => {
    const seen = new Set<string>();
    const check = (path: SettingPath, name: string): void => {
      if (RESERVED_HEADERS.has(foldFieldName(name)))
        report(path, `"${name}" is a reserved header; choose a name that only gatehouse sets`);
      if (seen.has(foldFieldName(name))) report(path, `"${name}" is used twice; choose different names`);
    };
    for (const [setting, name] of Object.entries(headers)) {
      if (name === false) continue;
      check(['headers', setting], name);
      seen.add(foldFieldName(name));
    }
    for (const [name, upstream] of Object.entries(upstreams))
      if (upstream?.assertion) check(['upstreams', name, 'assertion', 'header'], upstream.assertion.header);
  }),
  crossCheck(['headers', 'tokens'], ({ headers, tokens }, report) => {
    for (const claim of ['email', 'groups'] as const)
      if (headers[claim] !== false && !tokens.claims.includes(claim))
        report(['headers', claim], `has no value unless tokens.claims contains ${claim}; add it there`);
  }),
  crossCheck(['upstreams', 'publicUrl'], ({ upstreams, publicUrl }, report) => {
    for (const [name, upstream] of Object.entries(upstreams))
      if (upstream?.assertion?.audience === publicUrl)
        report(
          ['upstreams', name, 'assertion', 'audience'],
          'is publicUrl, which is the audience of access tokens; choose another one',
        );
  }),
];
