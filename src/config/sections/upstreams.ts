import { z } from 'zod';
import { duration, durationFrom, headerName, lifetime, type Path, size } from '../units.ts';

const spelling = z.enum(['unknown', 'distinct', 'same']).default('unknown');

/** `upstreams.*`: where requests are forwarded to. */
export const upstreamSection = (path: Path) =>
  z
    .strictObject({
      url: z
        .string()
        .exactOptional()
        .meta({ description: '`http://host:port`, `https://host:port` or `unix:/path/to.sock`.' }),
      urls: z
        .array(z.string())
        .min(1)
        .exactOptional()
        .meta({ description: 'Several targets; a request goes to the one with the least to do.' }),
      timeouts: z
        .strictObject({
          connect: duration.prefault('2s').meta({ description: 'A connection must stand within this time.' }),
          headers: duration.prefault('30s').meta({ description: 'The answer must begin within this time.' }),
          idle: duration
            .prefault('60s')
            .meta({ description: 'The longest silence within a request body or a response.' }),
          body: lifetime
            .prefault('1h')
            .meta({ description: 'A request body must arrive within this time; otherwise 408.' }),
          websocket: durationFrom(1, 86_400, 'must be from 1s to 1d')
            .prefault('5m')
            .meta({ description: 'The longest silence of both sides of a WebSocket.' }),
        })
        .prefault({}),
      minRate: size.prefault('240B').meta({
        description:
          'Bytes per second that a client must send of a request body, after the first `timeouts.idle`; otherwise 408. `0B`: no minimum.',
      }),
      bodyBuffer: size.prefault('64KiB').meta({
        description:
          'This much of a request body is read before a connection is used. With methods other than POST, PUT and PATCH, all of it is.',
      }),
      connections: z.int().min(1).default(128).meta({
        description:
          'Most connections to each target. Requests whose body is still arriving use at most half of them; one client, at most seven times as many as are free.',
      }),
      maxPending: z.int().min(0).default(512).meta({
        description:
          'Most requests that wait for a connection to a target; beyond it 503. One that waits longer than `timeouts.headers` is 503 as well.',
      }),
      websockets: z
        .int()
        .min(1)
        .default(1_000)
        .meta({ description: 'Most WebSockets to each target, beside `connections`.' }),
      ejection: z
        .strictObject({
          failures: z.int().min(1).default(3).meta({
            description: 'Connections in a row that fail (refused, too late, closed without an answer).',
          }),
          first: lifetime
            .prefault('5s')
            .meta({ description: 'How long it is left out at first; it doubles.' }),
          longest: lifetime.prefault('5m').meta({ description: 'The longest time it is left out.' }),
        })
        .prefault({})
        .meta({
          description:
            'When one of several targets is left out. With all of them left out the least bad is used.',
        }),
      health: z
        .strictObject({
          path: z
            .string()
            .regex(/^\/[\x21-\x7e]*$/, 'must be a path such as /health')
            .meta({ description: 'Asked by GET; any 2xx or 3xx is good.' }),
          interval: lifetime.prefault('10s').meta({ description: 'How often each target is asked.' }),
          timeout: lifetime
            .prefault('2s')
            .meta({ description: 'Within this time the answer must be there.' }),
          healthy: z
            .int()
            .min(1)
            .default(2)
            .meta({ description: 'Good answers in a row that bring it back.' }),
          unhealthy: z.int().min(1).default(3).meta({ description: 'Bad ones in a row that leave it out.' }),
        })
        .exactOptional()
        .meta({
          description:
            'Ask the targets whether they are well, and choose among those that are. Says nothing about whether gatehouse itself is ready.',
        }),
      ca: path.exactOptional().meta({
        description:
          'CA bundle for an https upstream, PEM, instead of the well-known ones. Reloaded when it changes.',
      }),
      certificate: path.exactOptional().meta({
        description: 'Our client certificate for an https upstream, PEM. Reloaded when it changes.',
      }),
      key: path.exactOptional().meta({ description: 'Its private key, PEM. Reloaded with it.' }),
      serverName: z
        .string()
        .regex(/^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/, 'must be a host name')
        .exactOptional()
        .meta({
          description:
            'The name an https upstream must prove, and is asked for (SNI), where it is not the one in its URL.',
        }),
      rewriteLocation: z.boolean().default(true).meta({
        description:
          'A `Location` that names the upstream’s own address is written in terms of `publicUrl`, with the prefix that `stripPrefix` took off.',
      }),
      paths: z
        .strictObject({
          letterCase: spelling.meta({
            description:
              '`/Admin` and `/admin`: `distinct` resources, the `same` (routes then match in any letter case), or `unknown`.',
          }),
          trailingSlash: spelling.meta({
            description:
              '`/admin/` and `/admin`: `distinct` resources, the `same` (routes then match with and without the slash), or `unknown`.',
          }),
        })
        .prefault({})
        .meta({
          description:
            'How the API reads paths. While it is `unknown`, a request whose path differs from a stricter route only in this is refused, and never forwarded by a weaker route.',
        }),
      assertion: z
        .strictObject({
          header: headerName
            .default('X-Gatehouse-Assertion')
            .meta({ description: 'Carries it. What clients send under this name is removed.' }),
          audience: z
            .string()
            .min(1)
            .max(256)
            .exactOptional()
            .meta({ description: 'Its `aud`. Default: the name of the upstream.' }),
        })
        .exactOptional()
        .meta({
          description:
            'Tell who is calling in a JWT of 60 seconds as well, for upstreams that do not trust the network. `{}` is enough.',
        }),
    })
    .transform((given, context) => {
      if ((given.certificate === undefined) !== (given.key === undefined))
        context.addIssue({
          code: 'custom',
          path: [given.key === undefined ? 'certificate' : 'key'],
          message: 'certificate and key belong together; give both',
        });
      const targets = given.urls ?? (given.url === undefined ? [] : [given.url]);
      if ((given.url === undefined) === (given.urls === undefined))
        context.addIssue({ code: 'custom', message: 'give either url or urls' });
      for (const text of targets) {
        if (/^unix:\/.+/.test(text)) continue;
        const url = URL.canParse(text) ? new URL(text) : undefined;
        if (url === undefined || !/^https?:$/.test(url.protocol))
          context.addIssue({
            code: 'custom',
            path: ['url'],
            message: `not an http, https or unix URL: "${text}"`,
          });
        else if (url.href !== `${url.origin}/`)
          context.addIssue({
            code: 'custom',
            path: ['url'],
            message: 'is an origin only; a path, query or password in it would not be used',
          });
      }
      return { ...given, targets };
    });

/** `headers`: how an upstream is told who is calling. */
export const headersSection = () =>
  z.strictObject({
    user: headerName
      .default('X-Forwarded-User')
      .meta({ description: 'Carries the identity to the upstream.' }),
    clientId: headerName.default('X-Forwarded-Client-Id').meta({ description: 'Carries the client id.' }),
    scope: headerName
      .default('X-Forwarded-Scope')
      .meta({ description: 'Carries the scope, in normal form.' }),
  });
