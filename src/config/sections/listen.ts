import * as z from 'zod';
import { crossCheck } from '../cross-check.ts';
import {
  choice,
  durationBetween,
  group,
  httpsOrLoopback,
  list,
  nonEmptyList,
  nonEmptyText,
  off,
  on,
  optional,
  type PathSchema,
  peers,
  shortText,
  text,
} from '../units.ts';

/** `listen`: the public listener. */
export function listenSection(path: PathSchema) {
  const tls = z.strictObject({
    certificate: path.describe('Server certificate chain, PEM. Reloaded when it changes.'),
    key: path.describe('Private key of the server certificate, PEM. Reloaded with it.'),
    minVersion: choice(['TLSv1.2', 'TLSv1.3']).describe('Lowest TLS version accepted.'),
    askCertificate: z
      .union([z.enum(['always', 'never']), nonEmptyList(nonEmptyText)])
      .default('always')
      .meta({
        description:
          'When a client certificate is requested: always, never, or for a list of host names (SNI). The handshake never requires one.',
        appliesAfter: 'workerRestart',
      }),
    sessionTickets: choice(['shared', 'process', 'off']).describe(
      'Which processes can resume the TLS session of a client that reconnects within ten minutes, which is cheaper than a full handshake: any worker or replica with the same store and keys, only the same process, or none.',
    ),
  });

  return z.strictObject({
    host: nonEmptyText
      .default('127.0.0.1')
      .meta({ description: 'Address of the public listener.', appliesAfter: 'restart' }),
    port: z
      .int()
      .min(0)
      .max(65_535)
      .default(8443)
      .meta({ description: 'Port of the public listener.', appliesAfter: 'restart' }),
    workers: z
      .union([z.int().min(1).max(256), z.literal('auto')])
      .default(1)
      .meta({
        description: 'Worker processes that share the port; `auto` is one per core.',
        appliesAfter: 'restart',
      }),
    http2: on.meta({ description: 'Offer HTTP/2 in addition to HTTP/1.1 over TLS.', appliesAfter: 'workerRestart' }),
    proxyProtocol: peers.prefault([]).meta({
      description: 'Peers (address or CIDR) that send the PROXY protocol, v1 or v2.',
      appliesAfter: 'workerRestart',
    }),
    behindTls: off.meta({
      description: 'Plain HTTP, for use behind a proxy that terminates TLS. Required if `listen.tls` is omitted.',
      appliesAfter: 'restart',
    }),
    tls: optional(tls).describe('TLS of the public listener.'),
  });
}

const WILDCARD_ADDRESSES = ['0.0.0.0', '::'];

export const listenRules = [
  crossCheck(['listen'], ({ listen }, report) => {
    if (listen.tls === undefined && !listen.behindTls)
      report(
        ['listen', 'tls'],
        'is missing; without it, set listen.behindTls: true and terminate TLS in front of gatehouse',
      );
    if (listen.tls !== undefined && listen.behindTls)
      report(['listen', 'behindTls'], 'contradicts listen.tls; remove one of them');
  }),
  crossCheck(['listen', 'admin'], ({ listen, admin }, report) => {
    const isSameAddress =
      admin.host === listen.host || [admin.host, listen.host].some((host) => WILDCARD_ADDRESSES.includes(host));
    if (isSameAddress && listen.port === admin.port && listen.port !== 0)
      report(['admin', 'port'], `is ${admin.port}, which is also listen.port; choose another port`);
  }),
  crossCheck(['admin'], ({ admin: { tls, tokenFile, readOnlyTokenFile } }, report) => {
    if (readOnlyTokenFile === tokenFile)
      report(['admin', 'readOnlyTokenFile'], 'is also admin.tokenFile; viewers and operators need different tokens');
    if (tls?.operators !== undefined && tls.clientCa === undefined)
      report(['admin', 'tls', 'operators'], 'needs admin.tls.clientCa');
  }),
];

/** `admin`: probes, metrics, grant administration and the console, on a listener of their own. */
export const adminSection = (path: PathSchema) =>
  z.strictObject({
    host: nonEmptyText
      .default('127.0.0.1')
      .describe('Address of the admin listener: probes, metrics, grant administration and the console.'),
    port: z.int().min(0).max(65_535).default(9443).describe('Port of the admin listener.'),
    hostNames: list(
      z
        .string()
        .max(253)
        .regex(/^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/, 'must be a host name without a port'),
    ).describe(
      'Host names under which metrics, grant administration and the console may be requested, such as the name of a Prometheus target. IP addresses, `localhost`, `admin.host` and, with `admin.tls`, the names in its certificate are always accepted. Probes accept any name.',
    ),
    tokenFile: path.prefault('data/admin-token').meta({
      description:
        'Bearer token for grant administration and the console. Created if missing, mode 0600; rejected if other users can read it. Read on every use. Probes and metrics need no token.',
      readAt: 'use',
    }),
    readOnlyTokenFile: optional(path).meta({
      description:
        'A second token, for viewers: it shows grants and the console, and cannot revoke. Same rules as for `tokenFile`. If omitted, there is none.',
      readAt: 'use',
    }),
    console: group({
      enabled: on.describe(
        'Serve the operator console at `/console` of the admin listener. Without `admin.tls`, it is served to connections from the same machine only, such as those of `kubectl port-forward`.',
      ),
      sessionLifetime: durationBetween('1m', '7d', '8h').describe(
        'How long a sign-in at the console is valid. An hour without a click ends it earlier.',
      ),
    }).describe('The web console for operators.'),
    tls: optional(
      z.strictObject({
        certificate: path.describe('Certificate chain of the admin listener, PEM.'),
        key: path.describe('Its private key, PEM.'),
        clientCa: optional(path).describe(
          'CA whose client certificates authorize grant administration and the console without the token.',
        ),
        operators: optional(nonEmptyList(nonEmptyText.max(1_024))).meta({
          description:
            'Subjects (RFC 4514, as in the audit log) of client certificates that may revoke; others of `clientCa` may only view. If omitted, all may revoke.',
          examples: [['CN=alice,O=Example']],
        }),
      }),
    ).describe('TLS of the admin listener. If omitted, it uses plain HTTP.'),
  });

/** `hosts`: the names under which clients may reach the gateway. */
export const hostsSection = () =>
  z.strictObject({
    allowed: list(
      text(
        /^(?:\*|(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\])$/,
        'must be a host name without a port, such as api.example.test, *.example.test or *',
      ),
    ).meta({
      description:
        'Host names that requests may use, in addition to those of `publicUrl` and of routes. `*.example.test` is any name below it, `*` any name. Ports are ignored.',
      examples: [['api.example.test', '*.apps.example.test']],
    }),
    others: choice(['warn', 'refuse']).describe(
      'Requests for other hosts: `warn` forwards and logs them, `refuse` rejects them (421). The address that the client has connected to is always accepted, and so is every host at forward-auth.',
    ),
  });

/** `service`: where the token service is served. */
export const serviceSection = () =>
  z.strictObject({
    paths: z
      .array(text(/^(?:\/[A-Za-z0-9_-]+)+$/, 'must be a path such as /authsvc'))
      .min(1)
      .default(['/authsvc'])
      .describe(
        'Paths of the token service. The first one appears in metadata and links; the others are aliases. Compared without case.',
      ),
  });

/** `resourceMetadata`: how clients discover what the API requires (RFC 9728). */
export const resourceMetadataSection = () =>
  z.strictObject({
    enabled: on.describe(
      'Serve `/.well-known/oauth-protected-resource` and paths below it, and name it in the challenge of every 401. If false, these paths are forwarded like any other.',
    ),
    detail: choice(['host', 'route']).describe(
      'What the document of a path lists. `host`: scopes and issuers of all routes of the host, on every path that needs a token, so that it does not reveal which routes exist. `route`: those of the routes that match the path; 404 for other paths. The same routes decide the audience of a token that is requested for the `resource` of the document.',
    ),
    name: optional(shortText).describe('Human-readable name of the API (`resource_name`).'),
    documentation: optional(httpsOrLoopback).describe('Page for client developers (`resource_documentation`).'),
  });
