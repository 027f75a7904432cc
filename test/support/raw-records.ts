import { join } from 'node:path';
import { Redis } from 'ioredis';
import type { RecordKind } from '../../src/ports/record-authenticator.ts';
import { openEnv } from '../../src/stores/embedded/env.ts';
import { resolveStoreFiles } from '../../src/stores/embedded/folder.ts';

/** Write access to a store without its keys, as an attacker with access to the store would have. */
export interface RawRecords {
  read(kind: RecordKind, id: string): Promise<string>;
  write(kind: RecordKind, id: string, text: string): Promise<void>;
  close(): Promise<void>;
}

const KEY_SUFFIXES: Readonly<Record<RecordKind, string>> = {
  grants: 'g',
  devices: 'd',
  userCodes: 'u',
  notes: 'n',
};

export function openRawRedis(port: number, prefix = 'gh'): RawRecords {
  const redis = new Redis(port);
  const recordKey = (kind: RecordKind, id: string): string => `${prefix}:{${id}}:${KEY_SUFFIXES[kind]}`;
  return {
    async read(kind, id) {
      const text = await redis.get(recordKey(kind, id));
      if (text === null) throw new Error(`no record ${id} of ${kind}`);
      return text;
    },
    write: async (kind, id, text) => void (await redis.set(recordKey(kind, id), text)),
    close: async () => redis.disconnect(),
  };
}

/** For a store that no process has open. */
export function openRawEmbedded(folder: string): RawRecords {
  const env = openEnv(resolveStoreFiles(folder), 2 ** 30);
  return {
    async read(kind, id) {
      const bytes = env.readFresh(() => env.tables[kind].get(id));
      if (bytes === undefined) throw new Error(`no record ${id} of ${kind}`);
      return bytes.toString();
    },
    write: async (kind, id, text) => void (await env.tables[kind].put(id, Buffer.from(text), 7)),
    close: () => env.close(),
  };
}

/** The embedded store's folder in a gateway with the test settings. */
export const embeddedStorePath = (folder: string): string => join(folder, 'data');

/** Changes one record; throws if `change` has no effect. */
export async function tamper(
  raw: RawRecords,
  kind: RecordKind,
  id: string,
  change: (text: string) => string,
): Promise<void> {
  const before = await raw.read(kind, id);
  const after = change(before);
  if (after === before) throw new Error('nothing was changed');
  await raw.write(kind, id, after);
}
