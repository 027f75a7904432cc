import * as z from 'zod';
import { checkWith } from '../cross-check.ts';
import { choice, durationBetween, nonEmptyText, optional, type PathSchema, size, text } from '../units.ts';

/** `store`: where grants, device requests and revocations are stored. */
export const storeSection = (path: PathSchema) =>
  z
    .strictObject({
      type: choice(['embedded', 'redis']).describe(
        '`embedded`: files on this machine. `redis`: shared by several replicas.',
      ),
      path: path.prefault('data').describe('Folder of the embedded store, for one gatehouse at a time.'),
      mapSize: size.prefault('16GiB').describe('Maximum size of the embedded store (address space, not memory).'),
      url: optional(
        text(
          /^rediss?(?:\+sentinel|\+cluster)?:\/\/\S+$/,
          'must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://',
        ),
      ).describe(
        'The Redis (or Valkey) server, version 6.2 or newer: `redis://[user[:password]@]host[:port][/database]`, `redis+sentinel://host[:port],…/name[/database]` or `redis+cluster://host[:port],…`; `rediss` instead of `redis` for TLS.',
      ),
      urlFile: optional(path).describe('File that contains the URL.'),
      password: optional(nonEmptyText).describe('Password of the Redis user, if the URL does not contain it.'),
      passwordFile: optional(path).describe('File that contains the password.'),
      prefix: text(/^[A-Za-z0-9_-]{1,32}$/, 'must be 1 to 32 letters, digits, - or _')
        .default('gh')
        .describe('Prefix of all keys, so that several installations can share one Redis.'),
      tls: optional(
        z.strictObject({
          ca: optional(path).describe('CA certificates for Redis, PEM.'),
          certificate: optional(path).describe('Client certificate for Redis, PEM.'),
          key: optional(path).describe('Its private key, PEM.'),
          serverName: optional(nonEmptyText).describe(
            'Name in the server certificate, if it is not the host of the URL.',
          ),
        }),
      ).describe('TLS to Redis. The files are read at startup.'),
      maxStaleness: durationBetween('2s', '1d', '60s').describe(
        'How long access tokens are accepted from memory while Redis is unreachable; afterwards 503. Also the lease after which a disconnected replica accepts no tokens.',
      ),
      durability: choice(['stored', 'replicated']).describe(
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
      ack: choice(['reachable', 'everywhere']).describe(
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
