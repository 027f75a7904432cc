import * as z from 'zod';
import { checkWith } from '../cross-check.ts';
import { durationBetween, nonEmptyText, type PathSchema, size } from '../units.ts';

/** `store`: where grants, device requests and revocations are stored. */
export const storeSection = (path: PathSchema) =>
  z
    .strictObject({
      type: z
        .enum(['embedded', 'redis'])
        .default('embedded')
        .describe('`embedded`: files on this machine. `redis`: shared by several replicas.'),
      path: path.prefault('data').describe('Folder of the embedded store, for one gatehouse at a time.'),
      mapSize: size.prefault('16GiB').describe('Maximum size of the embedded store (address space, not memory).'),
      url: z
        .string()
        .regex(
          /^rediss?(?:\+sentinel|\+cluster)?:\/\/\S+$/,
          'must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://',
        )
        .exactOptional()
        .describe(
          'The Redis (or Valkey) server, version 6.2 or newer: `redis://[user[:password]@]host[:port][/database]`, `redis+sentinel://host[:port],…/name[/database]` or `redis+cluster://host[:port],…`; `rediss` instead of `redis` for TLS.',
        ),
      urlFile: path.exactOptional().describe('File that contains the URL.'),
      password: nonEmptyText.exactOptional().describe('Password of the Redis user, if the URL does not contain it.'),
      passwordFile: path.exactOptional().describe('File that contains the password.'),
      prefix: z
        .string()
        .regex(/^[A-Za-z0-9_-]{1,32}$/, 'must be 1 to 32 letters, digits, - or _')
        .default('gh')
        .describe('Prefix of all keys, so that several installations can share one Redis.'),
      tls: z
        .strictObject({
          ca: path.exactOptional().describe('CA certificates for Redis, PEM.'),
          certificate: path.exactOptional().describe('Client certificate for Redis, PEM.'),
          key: path.exactOptional().describe('Its private key, PEM.'),
          serverName: nonEmptyText
            .exactOptional()
            .describe('Name in the server certificate, if it is not the host of the URL.'),
        })
        .exactOptional()
        .describe('TLS to Redis. The files are read at startup.'),
      maxStaleness: durationBetween(2, 86_400, 'must be from 2s to 1d')
        .prefault('60s')
        .describe(
          'How long access tokens are accepted from memory while Redis is unreachable; afterwards 503. Also the lease after which a disconnected replica accepts no tokens.',
        ),
      durability: z
        .enum(['stored', 'replicated'])
        .default('stored')
        .describe(
          'When a write to Redis is complete: when the server has it, or when its replicas have it too (WAIT).',
        ),
      replicas: z
        .int()
        .min(1)
        .max(16)
        .default(1)
        .describe(
          'With `durability: replicated`: how many replicas must have a write. Count all that could be promoted.',
        ),
      ack: z
        .enum(['reachable', 'everywhere'])
        .default('reachable')
        .describe(
          'What the response to a revocation waits for: all replicas that reach Redis, or also the lease of those that do not (503 with Retry-After until then).',
        ),
    })
    .superRefine(
      checkWith(({ type, url, tls, durability }, report) => {
        if (type !== 'redis') return;
        if (url === undefined) report(['url'], 'is missing; store.type: redis needs the URL of the server');
        if (tls !== undefined && url?.startsWith('rediss') === false)
          report(['tls'], 'is set, but store.url does not use TLS; begin it with rediss');
        if (durability === 'replicated' && url?.includes('+cluster:') === true)
          report(['durability'], 'cannot be replicated with a cluster, since WAIT covers one node only; set stored');
        if ((tls?.certificate === undefined) !== (tls?.key === undefined))
          report(['tls'], 'needs both certificate and key, or neither');
      }),
    );
