import { Agent, request as httpsRequest } from 'node:https';
import type { ServeFolder } from '../../support/serve-process.ts';

/** A client in another network than the attackers. Every tenth request is on a new connection. */
export function openObserver(folder: Pick<ServeFolder, 'ca'>, port: number, path: string) {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const statuses: Record<string, number> = {};
  const times: number[] = [];
  let sent = 0;
  const send = (isNew: boolean): Promise<string> =>
    new Promise((resolve) => {
      httpsRequest(
        {
          host: '127.0.0.1',
          port,
          path,
          localAddress: '127.0.1.1',
          servername: 'localhost',
          ca: folder.ca.pem,
          headers: { host: 'localhost' },
          agent: isNew ? false : agent,
        },
        (response) => response.resume().on('end', () => resolve(String(response.statusCode))),
      )
        .on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
        .end();
    });
  return {
    /** Sends one request; `isMeasured`: its status and latency are counted. */
    async request(isMeasured = true): Promise<void> {
      const startedAt = performance.now();
      sent += 1;
      const status = await send(sent % 10 === 0);
      if (!isMeasured) return;
      times.push(performance.now() - startedAt);
      statuses[status] = (statuses[status] ?? 0) + 1;
    },
    close(): void {
      agent.destroy();
    },
    getFigures() {
      const sorted = times.toSorted((one, other) => one - other);
      const at = (part: number): number => Math.round(sorted[Math.floor((sorted.length - 1) * part)] ?? 0);
      return { statuses, p50: at(0.5), p99: at(0.99), max: at(1) };
    },
  };
}
