import { z } from 'zod';
import { durationFrom, type Path, size } from '../units.ts';

/** `store`: where grants, device requests and revocations are kept. */
export const storeSection = (path: Path) =>
  z.strictObject({
    type: z.enum(['embedded', 'redis']).default('embedded').meta({
      description:
        '`embedded`: one machine, a durable file beside the process. `redis`: shared by many replicas.',
    }),
    path: path
      .prefault('data')
      .meta({ description: 'Folder of the embedded store. One gatehouse at a time.' }),
    mapSize: size
      .prefault('16GiB')
      .meta({ description: 'Most the embedded store may grow to (address space, not memory).' }),
    url: z
      .string()
      .regex(
        /^rediss?(?:\+sentinel|\+cluster)?:\/\/\S+$/,
        'must begin with redis:// or rediss://, or one of redis+sentinel:// and redis+cluster://',
      )
      .exactOptional()
      .meta({
        description:
          'The Redis (or Valkey) server, version 6.2 or newer: `redis://[user[:password]@]host[:port][/database]`, `redis+sentinel://host[:port],…/name[/database]` or `redis+cluster://host[:port],…`; `rediss` in place of `redis` for TLS.',
      }),
    urlFile: path.exactOptional().meta({ description: 'A file that holds the URL.' }),
    password: z
      .string()
      .min(1)
      .exactOptional()
      .meta({ description: 'Password of the Redis user, where the URL does not hold it.' }),
    passwordFile: path.exactOptional().meta({ description: 'A file that holds the password.' }),
    prefix: z
      .string()
      .regex(/^[A-Za-z0-9_-]{1,32}$/, 'must be 1 to 32 letters, digits, - or _')
      .default('gh')
      .meta({ description: 'Begins every key, so that several installations can share one Redis.' }),
    tls: z
      .strictObject({
        ca: path.exactOptional().meta({ description: 'Certificates Redis is trusted by, PEM.' }),
        certificate: path.exactOptional().meta({ description: 'Our client certificate for Redis, PEM.' }),
        key: path.exactOptional().meta({ description: 'Its private key, PEM.' }),
        serverName: z
          .string()
          .min(1)
          .exactOptional()
          .meta({ description: 'The name its certificate must have, where it is not the host of the URL.' }),
      })
      .exactOptional()
      .meta({ description: 'TLS to Redis. The files are read at start.' }),
    unauthenticatedRecords: z.enum(['accept', 'refuse']).default('accept').meta({
      description:
        'Records without a MAC, as earlier versions wrote them: `accept` uses them and rewrites them with a MAC, `refuse` treats them as absent. Set `refuse` on a new installation, and on others once every replica runs this version and `store_records_authenticated` was logged. Until then anyone who can write to the store can add records.',
    }),
    maxStaleness: durationFrom(2, 86_400, 'must be from 2s to 1d').prefault('60s').meta({
      description:
        'How long bearer checks go on from memory while Redis cannot be reached; afterwards 503. Also the lease after which a replica that is cut off accepts nothing.',
    }),
    durability: z.enum(['stored', 'replicated']).default('stored').meta({
      description:
        'When a write to Redis is answered: when the server has it, or when its replicas have it too (WAIT).',
    }),
    replicas: z.int().min(1).max(16).default(1).meta({
      description:
        'With `durability: replicated`, how many replicas must hold a write. Name all that could be promoted.',
    }),
    ack: z.enum(['reachable', 'everywhere']).default('reachable').meta({
      description:
        'What the answer to a revocation waits for: every replica that reaches Redis, or also the lease of those that do not (503 with Retry-After until then).',
    }),
  });

/** What of the store contradicts itself. */
export function storeProblems(store: {
  readonly type: string;
  readonly url?: string;
  readonly durability: string;
  readonly tls?: { readonly certificate?: string; readonly key?: string };
}): readonly { readonly setting: string; readonly message: string }[] {
  if (store.type !== 'redis') return [];
  const problems: { setting: string; message: string }[] = [];
  if (store.url === undefined)
    problems.push({ setting: 'url', message: 'is missing; with store.type: redis it names the server' });
  if (store.tls !== undefined && store.url?.startsWith('rediss') === false)
    problems.push({
      setting: 'tls',
      message: 'is given, but store.url does not ask for TLS; begin it with rediss',
    });
  if (store.durability === 'replicated' && store.url?.includes('+cluster:') === true)
    problems.push({
      setting: 'durability',
      message: 'replicated is not known for a cluster, since WAIT asks one node only; set stored',
    });
  if ((store.tls?.certificate === undefined) !== (store.tls?.key === undefined))
    problems.push({ setting: 'tls', message: 'needs certificate and key, or neither' });
  return problems;
}
