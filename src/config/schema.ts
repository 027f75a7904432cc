import { z } from 'zod';
import { parsePattern } from '../domain/access-rule.ts';
import { GRANT_TYPES, TOKEN_FORMATS } from '../domain/integration.ts';
import { isIdentityId, isIdentityLabel } from '../domain/person.ts';
import { NAME_SOURCES } from '../ports/directory.ts';
import { cors } from './cors.ts';
import { crossCheck } from './cross-check.ts';
import { auditSection, logSection, tracingSection } from './observability.ts';
import { ldapSection, pagesSection, signInSection } from './pages.ts';
import { storeSection } from './store.ts';
import { duration, durationFrom, pathIn, peers, rate, scope, size } from './units.ts';

/** Of anything that works for a time. */
const lifetime = durationFrom(1, Number.MAX_SAFE_INTEGER, 'must be at least 1s');

const codeLifetime = durationFrom(10, 86_400, 'must be from 10s to 1d');

/** A name of the operator's choice. */
const ownName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/);

/** `label:id`, as tokens and logs carry it. */
function isIdentity(text: string): boolean {
  const colon = text.indexOf(':');
  return colon > 0 && isIdentityLabel(text.slice(0, colon)) && isIdentityId(text.slice(colon + 1));
}

/**
 * The sections of the configuration file. The single source of types, validation, `gatehouse schema` and
 * docs/configuration.md. Paths are resolved against the folder of the file.
 */
export function settingsSections(folder: string) {
  const path = pathIn(folder);
  const nameSource = z.enum(NAME_SOURCES);
  const grantType = z.enum(GRANT_TYPES);

  const tls = z.strictObject({
    certificate: path.meta({ description: 'Server certificate chain, PEM. Reloaded when it changes.' }),
    key: path.meta({ description: 'Private key of the server certificate, PEM. Reloaded with it.' }),
    minVersion: z
      .enum(['TLSv1.2', 'TLSv1.3'])
      .default('TLSv1.2')
      .meta({ description: 'Lowest TLS version accepted.' }),
    askCertificate: z
      .union([z.enum(['always', 'never']), z.array(z.string().min(1)).min(1)])
      .default('always')
      .meta({
        description:
          'Where a client certificate is asked for: always, never, or a list of host names (by SNI). It is never demanded by the handshake.',
      }),
    nameIssuers: z.boolean().default(true).meta({
      description:
        'Tell clients the names of the approved issuers during the handshake (browsers pick certificates by them).',
    }),
    sessionTickets: z.enum(['shared', 'process', 'off']).default('shared').meta({
      description:
        'Who resumes the TLS session of a client that comes back within ten minutes, which costs less than a whole handshake: any worker or replica on the same store and keys, the process it was at before, or nobody.',
    }),
  });

  const listen = z.strictObject({
    host: z.string().min(1).default('127.0.0.1').meta({ description: 'Address of the public listener.' }),
    port: z.int().min(0).max(65_535).default(8443).meta({ description: 'Port of the public listener.' }),
    workers: z
      .union([z.int().min(1).max(256), z.literal('auto')])
      .default(1)
      .meta({ description: 'Processes sharing the port; `auto` is one per core.' }),
    http2: z.boolean().default(true).meta({
      description: 'Offer HTTP/2 beside HTTP/1.1 to clients that come by TLS.',
    }),
    fastLane: z.boolean().default(true).meta({
      description:
        'Carry ordinary HTTP/1.1 requests to plain HTTP upstreams by a shorter way; everything else takes the full one.',
    }),
    proxyProtocol: peers
      .prefault([])
      .meta({ description: 'Peers (address or CIDR) that speak the PROXY protocol v1 or v2.' }),
    behindTls: z.boolean().default(false).meta({
      description:
        'Plain HTTP: only where something in front has ended TLS. Needed when `listen.tls` is left out.',
    }),
    tls: tls.exactOptional().meta({ description: 'TLS of the public listener.' }),
  });

  const admin = z.strictObject({
    host: z.string().min(1).default('127.0.0.1').meta({
      description: 'Address of the admin listener: probes, metrics, and the administration of grants.',
    }),
    port: z.int().min(0).max(65_535).default(9443).meta({ description: 'Port of the admin listener.' }),
    tokenFile: path.prefault('data/admin-token').meta({
      description:
        'Bearer token for the administration of grants; made when missing, mode 0600. Read anew at every use. Probes and metrics need none.',
    }),
    tls: z
      .strictObject({
        certificate: path.meta({ description: 'Certificate chain of the admin listener, PEM.' }),
        key: path.meta({ description: 'Its private key, PEM.' }),
        clientCa: path.exactOptional().meta({
          description: 'Whoever shows a certificate of this CA may administer without the token.',
        }),
      })
      .exactOptional()
      .meta({ description: 'TLS of the admin listener; left out, it speaks plain HTTP.' }),
  });

  const service = z.strictObject({
    paths: z
      .array(z.string().regex(/^(?:\/[A-Za-z0-9_-]+)+$/, 'must be a path such as /authsvc'))
      .min(1)
      .default(['/authsvc'])
      .meta({
        description:
          'Where the token service answers; the first is the one we name, others are aliases. Compared without case.',
      }),
  });

  const store = storeSection(path);

  const keys = z.strictObject({
    file: path.prefault('data/keys.json').meta({
      description:
        'Signing and sealing keys, mode 0600. Embedded store: made when missing and the store is empty. Redis: must exist, the same on every replica.',
    }),
    algorithm: z
      .enum(['EdDSA', 'ES256'])
      .default('EdDSA')
      .meta({ description: 'Algorithm of signing keys made from now on.' }),
    publishBefore: duration
      .prefault('5m')
      .meta({ description: 'How long a new signing key is published before it signs.' }),
  });

  const tokens = z.strictObject({
    format: z.enum(TOKEN_FORMATS).default('jwt').meta({
      description:
        'Form of access tokens made from now on: `jwt` is signed and says what it is worth, `opaque` is short, says nothing, and is looked up in the store when a process first sees it. Tokens of the other form go on working.',
    }),
    accessLifetime: lifetime.prefault('1h').meta({ description: 'How long an access token works.' }),
    grantLifetime: lifetime.prefault('90d').meta({ description: 'How long a grant can be refreshed.' }),
    refresh: z
      .strictObject({
        retryWindow: durationFrom(0, 60, 'must be at most 60s').prefault('10s').meta({
          description: 'How long a lost refresh answer can be asked for again; 0s is never, at most 60s.',
        }),
        reuse: z
          .enum(['revoke', 'reject'])
          .default('revoke')
          .meta({ description: 'What a spent refresh token does: end the grant, or only be refused.' }),
        supersede: z
          .boolean()
          .default(false)
          .meta({ description: 'A refresh ends the access token before it at once, everywhere.' }),
      })
      .prefault({}),
    endStreams: z.enum(['all', 'upgrades-and-events', 'none']).default('upgrades-and-events').meta({
      description:
        'What ends within a second of its token (expired, revoked, integration removed): WebSockets and event streams, every request and answer under way, or nothing.',
    }),
    remembered: z
      .int()
      .min(100)
      .default(20_000)
      .meta({ description: 'How many verified access tokens a process remembers.' }),
  });

  const issuer = z.union([
    path.transform((file) => ({ file })),
    z.strictObject({
      name: z.string().min(1).exactOptional().meta({
        description:
          'Short name, for `integrations[].issuers` and logs. Default: the file name without its ending.',
      }),
      file: path.meta({ description: 'Issuer certificate, PEM.' }),
      directory: z
        .string()
        .exactOptional()
        .meta({ description: 'Directory in which names of this issuer are looked up.' }),
      identityFrom: nameSource.exactOptional().meta({ description: 'Where this issuer writes the name.' }),
    }),
  ]);

  const certificates = z.strictObject({
    issuers: z.array(issuer).prefault([]).meta({
      description:
        'Approved direct issuers of client certificates (pinned by key). Intermediates stand here themselves.',
    }),
    crls: z.array(path).prefault([]).meta({
      description: 'Certificate revocation lists, PEM or DER. An issuer with a list must have a fresh one.',
    }),
    requireCrl: z
      .boolean()
      .default(false)
      .meta({ description: 'Refuse certificates of issuers for which no revocation list is loaded.' }),
    identityFrom: nameSource.default('commonName').meta({
      description:
        'Which name of the certificate is the identity: the common name of its subject, or the e-mail address or user principal name in its subjectAltName.',
    }),
    directory: z.string().exactOptional().meta({ description: 'Directory in which the name is looked up.' }),
    requireClientAuth: z
      .boolean()
      .default(true)
      .meta({ description: 'The certificate must carry the clientAuth extended key usage.' }),
    asciiNames: z
      .boolean()
      .default(true)
      .meta({ description: 'Refuse names with characters outside ASCII (look-alikes).' }),
    forwardedFrom: peers
      .prefault([])
      .meta({ description: 'Peers (address or CIDR) whose client-certificate header is believed.' }),
    forwardedHeader: z
      .enum([
        'client-cert',
        'x-forwarded-client-cert',
        'ssl-client-cert',
        'x-ssl-client-cert',
        'x-forwarded-tls-client-cert',
      ])
      .exactOptional()
      .meta({
        description:
          'The one header these peers write it in. Without it any of the known ones counts, and then each of these peers must remove all of them from what its clients send.',
      }),
  });

  const device = z.strictObject({
    enabled: z
      .boolean()
      .default(true)
      .meta({ description: 'Browser confirmation (Authorize/Device) is on.' }),
    codeLifetime: codeLifetime
      .prefault('5m')
      .meta({ description: 'How long a device code can be confirmed and exchanged.' }),
    interval: lifetime.prefault('5s').meta({ description: 'How often a device may ask.' }),
    maxPending: z
      .int()
      .min(1)
      .default(100_000)
      .meta({ description: 'Most device requests waiting at once, in all.' }),
    maxPendingPerClient: z
      .int()
      .min(1)
      .default(10_000)
      .meta({ description: 'Most device requests waiting at once for one integration.' }),
    sessionLifetime: lifetime
      .prefault('15m')
      .meta({ description: 'How long a person stays signed in on the confirmation page.' }),
  });

  const user = z.strictObject({
    id: z
      .string()
      .refine(isIdentityId, 'must be a braced GUID or a hex string')
      .meta({
        description: 'A braced GUID or a hex string.',
        examples: ['{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}'],
      }),
    name: z.string().min(1).max(256).meta({ description: 'What is typed at sign-in.' }),
    displayName: z
      .string()
      .min(1)
      .max(256)
      .exactOptional()
      .meta({ description: 'What pages show. Default: the name.' }),
    commonName: z
      .string()
      .min(1)
      .max(256)
      .exactOptional()
      .meta({ description: 'The common name in the certificates of this person.' }),
    email: z
      .string()
      .min(3)
      .max(256)
      .exactOptional()
      .meta({ description: 'The e-mail address in the certificates of this person.' }),
    userPrincipalName: z
      .string()
      .min(3)
      .max(256)
      .exactOptional()
      .meta({ description: 'The user principal name in the certificates of this person.' }),
    groups: z
      .array(z.string().min(1))
      .default([])
      .meta({ description: 'Groups, for the access lists of integrations.' }),
    disabled: z
      .boolean()
      .default(false)
      .meta({ description: 'May not sign in, and no token of theirs is refreshed.' }),
    passwordHash: z
      .string()
      .regex(
        /^\$argon2id\$v=19\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+$/,
        'must be made by `gatehouse hash-password`',
      )
      .exactOptional()
      .meta({
        description: 'Made by `gatehouse hash-password`. Without it the person cannot sign in by password.',
      }),
    passwordHashFile: path.exactOptional().meta({ description: 'A file that holds the password hash.' }),
  });

  const directory = z.strictObject({
    label: z
      .string()
      .refine(isIdentityLabel, 'must be letters, digits, dot, dash or underscore')
      .meta({ description: 'The part of an identity before the colon.' }),
    users: z.array(user).default([]).meta({ description: 'The people in it.' }),
    derive: z.boolean().default(false).meta({
      description:
        'No list: the id is a digest of the certificate name. For workloads whose CA is the directory.',
    }),
    ldap: ldapSection(path)
      .exactOptional()
      .meta({ description: 'No list: people of an LDAP server, such as Active Directory.' }),
  });

  const accessEntry = z.strictObject({
    groups: z.array(z.string().min(1)).default([]).meta({ description: 'Everyone in one of these groups.' }),
    identities: z
      .array(z.string().refine(isIdentity, 'must be label:id, the id being a braced GUID or a hex string'))
      .default([])
      .meta({
        description: 'These people, each as `label:id`.',
        examples: [['local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}']],
      }),
    directory: z.string().exactOptional().meta({ description: 'Everyone in this directory.' }),
    scope: scope.exactOptional().meta({ description: 'Only this part of the integration’s scope.' }),
    grants: z.array(grantType).min(1).exactOptional().meta({ description: 'Only by these grant types.' }),
  });

  const integration = z.strictObject({
    clientId: z
      .string()
      .min(1)
      .max(256)
      .regex(/^[\x21-\x7e]+$/, 'must be printable ASCII without spaces')
      .meta({ description: 'Compared exactly, case included.' }),
    name: z
      .string()
      .min(1)
      .max(256)
      .exactOptional()
      .meta({ description: 'What people see. Default: the client id.' }),
    scope: scope.meta({ description: 'The most a token of this integration may carry.' }),
    grants: z
      .array(grantType)
      .min(1)
      .default([...GRANT_TYPES])
      .meta({ description: 'By which flows grants are made.' }),
    access: z
      .array(accessEntry)
      .default([])
      .meta({ description: 'Who may use it. Entries add up; nobody when empty.' }),
    accessLifetime: lifetime
      .exactOptional()
      .meta({ description: 'How long its access tokens work. Default: `tokens.accessLifetime`.' }),
    grantLifetime: lifetime
      .exactOptional()
      .meta({ description: 'How long its grants can be refreshed. Default: `tokens.grantLifetime`.' }),
    device: z
      .strictObject({
        codeLifetime: codeLifetime
          .exactOptional()
          .meta({ description: 'How long its device codes work. Default: `device.codeLifetime`.' }),
        interval: lifetime
          .exactOptional()
          .meta({ description: 'How often its devices may ask. Default: `device.interval`.' }),
      })
      .prefault({}),
    issuers: z
      .array(z.string().min(1))
      .min(1)
      .exactOptional()
      .meta({ description: 'Only certificates of these issuers, by name.' }),
    tokenFormat: z
      .enum(TOKEN_FORMATS)
      .exactOptional()
      .meta({ description: 'Form of its access tokens. Default: `tokens.format`.' }),
    bindToCertificate: z
      .boolean()
      .default(false)
      .meta({ description: 'Tokens work only with the certificate they were issued for (RFC 8705).' }),
  });

  const introspection = z.strictObject({
    requires: scope
      .exactOptional()
      .meta({ description: 'Whoever shows an access token with this scope may ask.' }),
    access: z
      .array(accessEntry.pick({ groups: true, identities: true, directory: true }))
      .default([])
      .meta({ description: 'Whoever shows a client certificate of one of these may ask.' }),
  });

  const headerName = z
    .string()
    .regex(/^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/, 'must be a header name of letters, digits and dashes');

  const upstream = z
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
          idle: duration.prefault('60s').meta({ description: 'The longest silence within an answer.' }),
          websocket: durationFrom(1, 86_400, 'must be from 1s to 1d')
            .prefault('5m')
            .meta({ description: 'The longest silence of both sides of a WebSocket.' }),
        })
        .prefault({}),
      connections: z.int().min(1).default(128).meta({ description: 'Most connections to each target.' }),
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

  const route = z.strictObject({
    path: z
      .string()
      .superRefine((text, context) => {
        const parsed = parsePattern(text);
        if (!parsed.ok) context.addIssue({ code: 'custom', message: parsed.problem });
      })
      .meta({
        description: 'A path; `*` stands for one segment, `/**` at the end for any rest (none included).',
        examples: ['/files/**'],
      }),
    host: z.string().min(1).exactOptional().meta({ description: 'Only for this host name.' }),
    methods: z
      .array(z.string().regex(/^[A-Z]{1,20}$/, 'must be a method in capitals, such as GET'))
      .min(1)
      .exactOptional()
      .meta({ description: 'Only for these methods. GET does not include HEAD.' }),
    public: z.literal(true).exactOptional().meta({ description: 'No token is asked for.' }),
    requires: z
      .union([z.literal('any-token'), scope])
      .exactOptional()
      .meta({ description: 'The scope a token must have, or `any-token`.' }),
    clients: z
      .array(z.string().min(1))
      .min(1)
      .exactOptional()
      .meta({ description: 'Only tokens of these integrations.' }),
    upstream: z
      .string()
      .default('default')
      .meta({ description: 'Where it is forwarded to, by its name in `upstreams`.' }),
    stripPrefix: z
      .string()
      .regex(/^(?:\/[^/]+)+$/, 'must be a path such as /api')
      .exactOptional()
      .meta({ description: 'Taken off the path before forwarding.' }),
    encodedSlash: z
      .boolean()
      .default(false)
      .meta({ description: 'Let `%2F` stand inside a segment, untouched.' }),
    forwardAuthorization: z
      .boolean()
      .default(false)
      .meta({ description: 'Send the Authorization header on to the upstream.' }),
    websocket: z.boolean().default(false).meta({
      description: 'Let WebSockets be opened here. The handshake is a GET and needs a token like any.',
    }),
    cors: cors.exactOptional().meta({
      description: 'Which pages of other origins may read the answers. We answer their preflights.',
    }),
    reportOnly: z.boolean().default(false).meta({
      description:
        'For trying a rule out: who has no token or too little scope passes all the same, and the log says `would_refuse`.',
    }),
  });

  const limits = z.strictObject({
    body: size.prefault('10MiB').meta({ description: 'Largest request body that is forwarded.' }),
    headers: size.prefault('16KiB').meta({ description: 'Largest request head.' }),
    url: size
      .prefault('8KiB')
      .meta({ description: 'Longest path and query of a request; longer ones are answered 414.' }),
    headerTimeout: duration
      .prefault('10s')
      .meta({ description: 'A request head must arrive within this time.' }),
    connections: z
      .int()
      .min(1)
      .default(10_000)
      .meta({ description: 'Most open client connections per process.' }),
    streams: z
      .int()
      .min(1)
      .max(1_000)
      .default(100)
      .meta({ description: 'Most requests at once on one HTTP/2 connection.' }),
    rates: z
      .strictObject({
        token: rate.prefault('100/s').meta({ description: 'Authorize/Token, per client address.' }),
        certificate: rate
          .prefault('50/s')
          .meta({ description: 'Authorize/Certificate and client_credentials, per client address.' }),
        device: rate.prefault('10/s').meta({ description: 'Authorize/Device, per client address.' }),
        revoke: rate.prefault('50/s').meta({ description: 'Revoke/Token, per client address.' }),
        verify: rate.prefault('100/s').meta({ description: 'Authorize/Verify, per client address.' }),
        introspect: rate
          .prefault('1000/s')
          .meta({ description: 'Introspection (oauth2/introspect), per client address.' }),
        page: rate.prefault('10/s').meta({ description: 'The confirmation page, per client address.' }),
        codeGuesses: rate.prefault('5/m').meta({ description: 'Wrong user codes, per client address.' }),
        allCodeGuesses: rate.prefault('60/m').meta({ description: 'Wrong user codes, in all.' }),
      })
      .prefault({}),
  });

  const headers = z.strictObject({
    user: headerName
      .default('X-Forwarded-User')
      .meta({ description: 'Carries the identity to the upstream.' }),
    clientId: headerName.default('X-Forwarded-Client-Id').meta({ description: 'Carries the client id.' }),
    scope: headerName
      .default('X-Forwarded-Scope')
      .meta({ description: 'Carries the scope, in normal form.' }),
  });

  return {
    publicUrl: z
      .string()
      .refine(
        (text) => URL.canParse(text) && /^https?:\/\/[^/?#]+$/.test(text),
        'must be an origin such as https://api.example.test, without a path or a slash at its end',
      )
      .default('https://localhost:8443')
      .meta({ description: 'The address clients use ({base_url}); issuer and audience of tokens.' }),
    listen: listen.prefault({}),
    trustedProxies: peers.prefault([]).meta({
      description:
        'Peers (address or CIDR) whose X-Forwarded-* headers are believed, and which may ask by forward-auth.',
    }),
    admin: admin.prefault({}),
    service: service.prefault({}),
    store: store.prefault({}),
    keys: keys.prefault({}),
    tokens: tokens.prefault({}),
    certificates: certificates.prefault({}),
    device: device.prefault({}),
    directories: z
      .record(ownName, directory)
      .prefault({})
      .meta({ description: 'Where people and workloads are known, by a name of your choice.' }),
    introspection: introspection.prefault({}).meta({
      description:
        'Who may ask what an access token is worth (oauth2/introspect, RFC 7662). Nobody when both are left out.',
    }),
    signIn: signInSection(path).prefault({}).meta({
      description: 'How people sign in on the pages, beside passwords of directories and certificates.',
    }),
    pages: pagesSection(path).prefault({}).meta({ description: 'The pages people meet.' }),
    integrations: z.array(integration).prefault([]).meta({ description: 'The registered API integrations.' }),
    upstreams: z
      .record(ownName, upstream)
      .prefault({})
      .meta({ description: 'Where requests are forwarded to, by a name of your choice.' }),
    routes: z
      .array(route)
      .prefault([])
      .meta({ description: 'First match wins; what no rule matches is denied.' }),
    headers: headers
      .prefault({})
      .meta({ description: 'Names of the headers that tell the upstream who is calling.' }),
    limits: limits.prefault({}),
    shutdown: z
      .strictObject({
        preStop: duration
          .prefault('5s')
          .meta({ description: 'After SIGTERM: not ready, but still serving, for this long.' }),
        drain: duration
          .prefault('30s')
          .meta({ description: 'Then: how long running requests may take to end.' }),
      })
      .prefault({}),
    log: logSection(path).prefault({}),
    audit: auditSection(path).prefault({}),
    tracing: tracingSection(path).prefault({}),
  };
}

export type SettingsSections = ReturnType<typeof settingsSections>;

/** The configuration file, whole: each section by itself, then what they say about each other. */
export function settingsSchema(sections: SettingsSections) {
  return z.strictObject(sections).superRefine((settings, context) => {
    crossCheck(settings, (path, message) => context.addIssue({ code: 'custom', path: [...path], message }));
  });
}

export type Settings = z.output<ReturnType<typeof settingsSchema>>;
export type SettingsInput = z.input<ReturnType<typeof settingsSchema>>;
