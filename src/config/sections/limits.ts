import * as z from 'zod';
import { duration, group, off, optional, rate, routeRate, size } from '../units.ts';

/** `limits`: sizes, counts and rates. */
export const limitsSection = () =>
  z.strictObject({
    body: size.prefault('10MiB').describe('Maximum size of a forwarded request body.'),
    headers: size.prefault('16KiB').meta({ description: 'Largest request head.', appliesAfter: 'workerRestart' }),
    url: size.prefault('8KiB').meta({
      description: 'Maximum length of path and query; longer ones are rejected with 414.',
      appliesAfter: 'workerRestart',
    }),
    headerTimeout: duration
      .prefault('10s')
      .meta({ description: 'A request head must arrive within this time.', appliesAfter: 'workerRestart' }),
    connections: z.int().min(1).exactOptional().meta({
      description:
        'Maximum number of open client connections per process. Beyond it, the network with the most connections loses one for each new one. Default: as many as fit in the memory limit of the container, at most 10,000; three fifths of that number are kept when idle.',
      appliesAfter: 'workerRestart',
    }),
    streams: z.int().min(1).max(1_000).default(100).meta({
      description: 'Maximum number of concurrent requests on one HTTP/2 connection.',
      appliesAfter: 'workerRestart',
    }),
    routes: optional(routeRate).meta({
      description:
        'Default of `routes[].rate`: limits the requests that each route forwards. If omitted, routes without `rate` have no limit.',
      examples: ['100/s', { limit: '100/s', burst: 200, per: 'identity' }],
    }),
    shared: off.describe(
      'Count the requests of `limits.routes` and `routes[].rate` for all workers and replicas together, approximately; otherwise each process counts for itself. Other limits are always shared.',
    ),
    rateLimitHeaders: off.describe(
      'Send `RateLimit` and `RateLimit-Policy` with every forwarded response of a limited route. Responses with 429 always have them.',
    ),
    rates: group({
      token: rate('100/s').describe(
        'Authorize/Token: per grant for a valid refresh token, per device request while it is pending, otherwise per client address. Also Revoke/Token and Authorize/Verify, per grant for an authentic token, otherwise per client address, and pushed authorization requests (oauth2/par), per client address; each is counted separately.',
      ),
      certificate: rate('50/s').describe(
        'Authorize/Certificate and client_credentials: per accepted certificate and client_id, otherwise per client address.',
      ),
      device: rate('10/s').describe('Authorize/Device, per client address.'),
      introspect: rate('1000/s').describe(
        'Introspection (oauth2/introspect): per grant or certificate of an authenticated caller, otherwise per client address. Also logout tokens from trusted issuers (oauth2/backchannel_logout), per client address, counted separately.',
      ),
      page: rate('10/s').describe('The confirmation page, per client address.'),
      codeGuesses: rate('5/m').describe('Wrong user codes, per client address; those of signed-in users, per user.'),
      networkCodeGuesses: rate('20/m').describe(
        'Wrong user codes, per network (IPv4 /24, IPv6 /48); those of signed-in users are counted separately.',
      ),
      allCodeGuesses: rate('60/m').describe(
        'Wrong user codes without a sign-in, in total. Above this rate, users must sign in before they enter a code.',
      ),
      clientGuesses: rate('30/m').describe(
        'Failed client authentications (wrong secrets and assertions), per client address. Above this rate, every client authentication from that address gets 429.',
      ),
      allClientGuesses: rate('1000/m').describe(
        'Failed client authentications of one integration, from all addresses. Above this rate, failures get 429; a correct credential is still accepted.',
      ),
      tokenGuesses: rate('100/s').describe(
        'Opaque tokens that their issuer does not report as active (`trustedIssuers.<name>.introspection`), per client address. Above this rate, unknown opaque tokens of that address get 503 without being introspected.',
      ),
    }),
  });

/** `shutdown`: the phases after SIGTERM. */
export const shutdownSection = () =>
  z.strictObject({
    preStop: duration
      .prefault('5s')
      .describe(
        'After SIGTERM: report not ready, but continue to serve, for this long. Every response closes its connection (HTTP/2: GOAWAY when no request is pending), so that clients reconnect elsewhere; connections without requests are closed in the last second. Also after `gatehouse drain`, which does not end the process.',
      ),
    drain: duration
      .prefault('30s')
      .describe(
        'Then: how long active requests may take to complete. After half of it, HTTP/2 clients get GOAWAY even if requests are pending.',
      ),
  });
