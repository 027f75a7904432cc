import type { Certified } from './pki.ts';
import {
  connectMany,
  type PlacedClient,
  type ServeFolder,
  type ServeProcess,
  until,
} from './serve-process.ts';

/** Opens connections until each worker serves one: a busy worker accepts none, so that no fixed number is enough. */
export async function clientOfEachWorker(
  folder: Pick<ServeFolder, 'ca'>,
  server: Pick<ServeProcess, 'port' | 'log' | 'workers'>,
  as?: Certified,
): Promise<readonly PlacedClient[]> {
  const found = new Map<number, PlacedClient>();
  await until(
    'a client at each worker',
    async () => {
      const [client] = await connectMany(folder, server, 1, as);
      if (client === undefined || found.has(client.worker)) client?.close();
      else found.set(client.worker, client);
      return found.size === server.workers.length;
    },
    30,
  );
  return [...found.values()];
}
