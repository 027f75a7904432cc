import { connect as connectTcp, createServer } from 'node:net';
import { onTestFinished } from 'vitest';
import { createServeFolder, type ServeFolder, type ServeProcess, startServe } from '../../support/serve-process.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { until } from '../../support/until.ts';

/** Replicas behind a load balancer that forwards connections. */
export interface Replicas {
  readonly url: string;
  readonly folder: ServeFolder;
  /** Restarts one after the other, as Kubernetes does; `waitForMore` waits for responses to the clients. */
  restart(waitForMore: (count: number) => Promise<void>): Promise<void>;
}

const REPLICAS = 2;
/** The clients have two seconds until idle connections are closed. */
const PRE_STOP = '3s';

export async function startReplicas(responseMs: number): Promise<Replicas> {
  const folder = await createServeFolder(
    (settings) => ({
      ...settings,
      routes: [{ path: '/**', public: true }],
      shutdown: { preStop: PRE_STOP, drain: '20s' },
      log: { level: 'info', access: { enabled: false } },
    }),
    (request, response) => {
      request.resume().on('end', () => setTimeout(() => response.end('ok'), responseMs));
    },
  );
  onTestFinished(() => folder.remove());
  let started = 0;
  const start = (): Promise<ServeProcess> => {
    const data = `data-${(started += 1)}`;
    const files = [`keys.file=${data}/keys.json`, `admin.tokenFile=${data}/admin-token`];
    return startServe(folder, { set: [`store.path=${data}`, ...files] });
  };
  let ready = await Promise.all(Array.from({ length: REPLICAS }, start));
  let next = 0;
  const balancer = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    const replica = ready[next++ % ready.length] as ServeProcess;
    const server = connectTcp({ port: replica.port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
    server.on('error', () => client.destroy()).on('close', () => client.destroy());
    client.on('close', () => server.destroy());
    client.pipe(server).pipe(client);
  });
  const { port, close } = await listenTcp(balancer);
  onTestFinished(close);
  return {
    url: `https://localhost:${port}/a`,
    folder,
    async restart(waitForMore) {
      for (const replica of ready) {
        const added = await start();
        ready = [...ready, added];
        await waitForMore(100);
        replica.signal('SIGTERM');
        await until('the replica is draining', () => replica.log.some(({ event }) => event === 'draining'));
        // It takes a moment until no new connection goes to it.
        await waitForMore(50);
        ready = ready.filter((other) => other !== replica);
        const { code } = await replica.ended;
        if (code !== 0) throw new Error(`exit code ${code}`);
      }
      await waitForMore(100);
    },
  };
}
