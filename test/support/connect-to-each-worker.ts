import type { IssuedCertificate } from './pki.ts';
import { connectMany, type ServeFolder, type ServeProcess, until, type WorkerClient } from './serve-process.ts';

/** Opens connections until each worker serves one. A busy worker accepts none, so no fixed number is enough. */
export async function connectToEachWorker(
  folder: Pick<ServeFolder, 'ca'>,
  server: Pick<ServeProcess, 'port' | 'log' | 'workers'>,
  as?: IssuedCertificate,
): Promise<readonly WorkerClient[]> {
  const found = new Map<number, WorkerClient>();
  await until(
    'every worker serves a client',
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
