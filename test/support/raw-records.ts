import { join } from 'node:path';
import { Redis } from 'ioredis';
import type { RecordKind } from '../../src/ports/record-authenticator.ts';
import { openEnv } from '../../src/stores/embedded-env.ts';
import { filesIn } from '../../src/stores/embedded-folder.ts';

/** Write access to a store without its keys, as an attacker has it who reached the store. */
export interface RawRecords {
  read(kind: RecordKind, id: string): Promise<string>;
  write(kind: RecordKind, id: string, text: string): Promise<void>;
  close(): Promise<void>;
}

const LETTERS: Readonly<Record<RecordKind, string>> = {
  grants: 'g',
  devices: 'd',
  userCodes: 'u',
  notes: 'n',
};

export function rawRedis(port: number, prefix = 'gh'): RawRecords {
  const redis = new Redis(port);
  const keyOf = (kind: RecordKind, id: string): string => `${prefix}:{${id}}:${LETTERS[kind]}`;
  return {
    async read(kind, id) {
      const text = await redis.get(keyOf(kind, id));
      if (text === null) throw new Error(`no record ${id} of ${kind}`);
      return text;
    },
    write: async (kind, id, text) => void (await redis.set(keyOf(kind, id), text)),
    close: async () => redis.disconnect(),
  };
}

/** Of a store that no process has open. */
export function rawEmbedded(folder: string): RawRecords {
  const env = openEnv(filesIn(folder), 2 ** 30);
  return {
    async read(kind, id) {
      const bytes = env.fresh(() => env.tables[kind].get(id));
      if (bytes === undefined) throw new Error(`no record ${id} of ${kind}`);
      return bytes.toString();
    },
    write: async (kind, id, text) => void (await env.tables[kind].put(id, Buffer.from(text), 7)),
    close: () => env.close(),
  };
}

/** The folder of the embedded store of a gateway with the settings of tests. */
export const storeFolder = (folder: string): string => join(folder, 'data');

/** Changes one record; fails when there was nothing to change. */
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
