import { z } from 'zod';
import { type Path, peers } from '../units.ts';

/** `listen`: the public listener. */
export function listenSection(path: Path) {
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

  return z.strictObject({
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
}

/** `admin`: probes, metrics and administration, on a listener of their own. */
export const adminSection = (path: Path) =>
  z.strictObject({
    host: z.string().min(1).default('127.0.0.1').meta({
      description: 'Address of the admin listener: probes, metrics, and the administration of grants.',
    }),
    port: z.int().min(0).max(65_535).default(9443).meta({ description: 'Port of the admin listener.' }),
    hostNames: z
      .array(
        z
          .string()
          .max(253)
          .regex(/^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/, 'must be a host name without a port'),
      )
      .default([])
      .meta({
        description:
          'Host names under which metrics and the administration of grants may be requested, such as the name of a Prometheus target. IP addresses, `localhost`, `admin.host` and, with `admin.tls`, the names of its certificate are always accepted; probes answer under any name.',
      }),
    tokenFile: path.prefault('data/admin-token').meta({
      description:
        'Bearer token for the administration of grants; made when missing, mode 0600, and refused when other users can read it. Read anew at every use. Probes and metrics need none.',
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

/** `hosts`: the names under which clients may reach the gateway. */
export const hostsSection = () =>
  z.strictObject({
    allowed: z
      .array(
        z
          .string()
          .regex(
            /^(?:\*|(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\])$/,
            'must be a host name without a port, such as api.example.test, *.example.test or *',
          ),
      )
      .default([])
      .meta({
        description:
          'Hosts that requests may name beside that of `publicUrl` and those of routes; `*.example.test` is any name below it, `*` any name. Ports are not compared.',
        examples: [['api.example.test', '*.apps.example.test']],
      }),
    others: z.enum(['warn', 'refuse']).default('warn').meta({
      description:
        'What becomes of a request for another host: forwarded, with a warning in the log, or refused (421). The address that the client has connected to is always accepted, and so is every host at forward-auth.',
    }),
  });

/** `service`: where the token service answers. */
export const serviceSection = () =>
  z.strictObject({
    paths: z
      .array(z.string().regex(/^(?:\/[A-Za-z0-9_-]+)+$/, 'must be a path such as /authsvc'))
      .min(1)
      .default(['/authsvc'])
      .meta({
        description:
          'Where the token service answers; the first is the one we name, others are aliases. Compared without case.',
      }),
  });
