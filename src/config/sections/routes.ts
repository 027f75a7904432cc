import * as z from 'zod';
import { parsePattern } from '../../domain/access-rule.ts';
import { crossCheck, formatKnownNames } from '../cross-check.ts';
import {
  audience,
  listRouteLimits,
  method,
  nonEmptyList,
  nonEmptyText,
  off,
  optional,
  routeRate,
  scope,
  text,
} from '../units.ts';
import { cors } from './cors.ts';
import { findShadowedRoutes } from './shadowed-routes.ts';

/** `routes[]`: what a request needs, and where it is forwarded to. */
export const routeSection = () =>
  z.strictObject({
    path: z
      .string()
      .superRefine((text, context) => {
        const parsed = parsePattern(text);
        if (!parsed.ok) context.addIssue({ code: 'custom', message: parsed.problem });
      })
      .meta({
        description:
          'A path; `*` matches one segment, `/**` at the end matches the rest of the path, even if it is empty.',
        examples: ['/files/**'],
      }),
    host: optional(nonEmptyText).describe('Only for this host name.'),
    methods: optional(nonEmptyList(method)).describe('Only for these methods. GET does not include HEAD.'),
    public: z.literal(true).exactOptional().describe('No token is required.'),
    requires: optional(z.union([z.literal('any-token'), scope])).describe(
      'The scope that a token must have, or `any-token`.',
    ),
    clients: optional(nonEmptyList(nonEmptyText)).describe(
      'Only tokens of these integrations, or of clients of trusted issuers (`<issuer>/<client id>`).',
    ),
    issuers: optional(nonEmptyList(nonEmptyText)).describe(
      'Whose tokens are accepted: `own` (gatehouse) and names in `trustedIssuers`. If omitted, only `own`.',
    ),
    audience: optional(audience).describe(
      'Only tokens for one of these audiences. If omitted, `audience` of the upstream, otherwise `publicUrl` (and, of trusted issuers, what they accept).',
    ),
    upstream: z.string().default('default').describe('The upstream, by its name in `upstreams`.'),
    stripPrefix: optional(text(/^(?:\/[^/]+)+$/, 'must be a path such as /api')).describe(
      'Removed from the path before forwarding.',
    ),
    encodedSlash: off.describe('Allow `%2F` in a segment; it is forwarded unchanged.'),
    forwardAuthorization: off.describe('Forward the Authorization header to the upstream.'),
    websocket: off.describe('Allow WebSockets. The handshake is a GET request and needs a token like any other.'),
    cors: optional(cors).describe(
      'Origins whose pages may read the responses. gatehouse responds to their preflights.',
    ),
    rate: optional(routeRate).meta({
      description:
        'Limits the requests that are forwarded; further ones are rejected with 429. A rate, a limit with `burst` and `per`, a list of them, or `off`. If omitted, `limits.routes`.',
      examples: ['100/s', { limit: '100/s', burst: 200, per: 'identity' }],
    }),
    reportOnly: off.describe(
      'For testing a rule: requests without a token, with too little scope or beyond a limit are forwarded and logged as `would_refuse`.',
    ),
  });

export const routeRules = [
  crossCheck(['routes'], ({ routes }, report) => {
    routes.forEach((route, index) => {
      if (!route) return;
      if (route.public === undefined && route.requires === undefined)
        report(['routes', index], 'needs either public: true, or requires: <scope> or any-token');
      if (route.public !== undefined && route.requires !== undefined)
        report(
          ['routes', index],
          'has both public and requires; remove public if a token is required, otherwise requires',
        );
      if (route.public && route.clients)
        report(['routes', index, 'clients'], 'has no effect on a public route; remove it');
      if (route.public && route.audience)
        report(['routes', index, 'audience'], 'has no effect on a public route; remove it');
      if (route.public && route.reportOnly)
        report(['routes', index, 'reportOnly'], 'has no effect on a public route; remove it');
      listRouteLimits(route.rate).forEach(({ per }) => {
        if (route.public && (per === 'identity' || per === 'client'))
          report(
            ['routes', index, 'rate'],
            `per: ${per} needs a token, but the route is public; use per: address or per: route`,
          );
      });
      if (route.websocket && route.methods?.includes('GET') === false)
        report(['routes', index, 'websocket'], 'needs GET in methods: a WebSocket handshake is a GET request');
      if (route.stripPrefix !== undefined && !`${route.path}/`.startsWith(`${route.stripPrefix}/`))
        report(['routes', index, 'stripPrefix'], `is not a prefix of ${route.path}`);
    });
  }),
  crossCheck(['routes', 'upstreams'], ({ routes, upstreams }, report) => {
    routes.forEach((route, index) => {
      if (!route) return;
      if (!Object.hasOwn(upstreams, route.upstream))
        report(
          ['routes', index, 'upstream'],
          `no such upstream: "${route.upstream}"${formatKnownNames(Object.keys(upstreams)) || `; add upstreams.${route.upstream}.url`}`,
        );
    });
    for (const [index, shadowingIndex] of findShadowedRoutes({ routes, upstreams })) {
      const [route, shadowing] = [routes[index], routes[shadowingIndex]];
      if (route && shadowing)
        report(
          ['routes', index, 'path'],
          findShadowedRoutes({ routes: [route, shadowing], upstreams }).has(1)
            ? `is never reached: path, methods and host are the same as routes[${shadowingIndex}]; remove one of the two, or merge them`
            : `is never reached: routes[${shadowingIndex}] (${shadowing.path}) matches all its requests; move this route before it`,
        );
    }
  }),
  crossCheck(['routes', 'integrations'], ({ routes, integrations }, report) => {
    const clients = new Set(integrations.map((integration) => integration?.clientId));
    if (clients.has(undefined)) return;
    routes.forEach((route, index) =>
      route?.clients?.forEach((client, at) => {
        // `<issuer>/<client id>` is a client of a trusted issuer.
        if (!clients.has(client) && !client.includes('/'))
          report(
            ['routes', index, 'clients', at],
            `no such integration: "${client}"${formatKnownNames(clients as Set<string>)}`,
          );
      }),
    );
  }),
  crossCheck(['routes', 'service'], ({ routes, service }, report) => {
    for (const [index, route] of routes.entries())
      for (const servicePath of service.paths)
        if (`${route?.path.toLowerCase()}/`.startsWith(`${servicePath.toLowerCase()}/`))
          report(['routes', index, 'path'], `is below ${servicePath}, which belongs to the token service`);
  }),
  crossCheck(['routes', 'resourceMetadata'], ({ routes, resourceMetadata }, report) => {
    if (!resourceMetadata.enabled) return;
    for (const [index, route] of routes.entries())
      if (`${route?.path}/`.startsWith('/.well-known/oauth-protected-resource/'))
        report(
          ['routes', index, 'path'],
          'is served by gatehouse itself; remove the route, or set resourceMetadata.enabled to false',
        );
  }),
];
