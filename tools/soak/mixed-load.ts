import { isTemporary } from '../../test/chaos/fleet.ts';
import type { Reply, TokenGrant } from '../../test/support/https-client.ts';
import { connect } from '../../test/support/serve-process.ts';
import { startSteadyLoad } from '../../test/support/steady-load.ts';
import type { SoakLoad } from './load.ts';

interface Clients {
  /** Open connections. */
  readonly http1: number;
  readonly http2: number;
  /** Clients that open a connection for each request. */
  readonly fresh: number;
  /** Between two requests of a client. */
  readonly pauseMs?: number;
}

/** Requests over HTTP/1.1 and HTTP/2, grants, refreshes, rejections, new connections. */
const createMixedLoad = ({ http1, http2, fresh: freshClients, pauseMs }: Clients): SoakLoad => ({
  change: (settings) => ({
    ...settings,
    log: { level: 'info', access: { enabled: false } },
    tokens: { accessLifetime: '30s', grantLifetime: '1m' },
  }),
  isPausedForHeapSamples: false,
  async start(folder, server) {
    const alice = connect(folder, server.port, folder.alice);
    const failures: string[] = [];
    let rejected = 0;
    /** 503 from an overloaded process is counted separately, not as a failure. */
    const checkStatus = (status: number, wanted: number, what: string): string | undefined => {
      if (status === 503) rejected += 1;
      return status === wanted || status === 503 ? undefined : `${what}: ${status}`;
    };
    const stopped = new AbortController();
    const load = startSteadyLoad({
      port: server.port,
      ca: folder.ca.pem,
      path: '/health',
      http1,
      http2,
      ...(pauseMs !== undefined && { pauseMs }),
      check: ({ status }) => checkStatus(status, 200, 'steady'),
    });
    const fresh = startSteadyLoad({
      port: server.port,
      ca: folder.ca.pem,
      path: '/files/1',
      http1: freshClients,
      http2: 0,
      ...(pauseMs !== undefined && { pauseMs }),
      newConnections: true,
      check: ({ status }) => checkStatus(status, 401, 'without a token'),
    });
    const record = (failure: string | undefined): void => {
      if (failure !== undefined) failures.push(failure);
    };
    /** Whether the life cycle can go on. The token API of the specification says 400 with Retry-After for temporary errors. */
    const isGranted = (reply: Reply, what: string): boolean => {
      if (reply.status === 200) return true;
      if (isTemporary(reply)) rejected += 1;
      else failures.push(`${what}: ${reply.status} ${reply.text}`);
      return false;
    };
    const grantLifeCycle = async (): Promise<void> => {
      const granted = await alice.post('/Authorize/Certificate', {
        client_id: 'report-runner',
        scope: 'files:read',
      });
      if (!isGranted(granted, 'grant')) return;
      const grant = granted.json as unknown as TokenGrant;
      const refreshed = await alice.refresh(grant.refresh_token);
      if (!isGranted(refreshed, 'refresh')) return;
      const headers = { authorization: `Bearer ${String(refreshed.json['access_token'])}` };
      record(checkStatus((await alice.request({ path: '/whoami', headers })).status, 200, 'proxy'));
      record(checkStatus((await alice.request({ path: '/authsvc/Authorize/Verify', headers })).status, 200, 'verify'));
      isGranted(await alice.revoke(grant.access_token), 'revoke');
    };
    const grantCycles = (async () => {
      while (!stopped.signal.aborted) {
        await grantLifeCycle().catch((error: Error) => record(error.message));
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    })();

    return {
      completed: () => load.completed() + fresh.completed(),
      rejected: () => rejected,
      failures: () => [...failures, ...load.failures, ...fresh.failures],
      async stop() {
        stopped.abort();
        await Promise.all([grantCycles, load.stop(), fresh.stop()]);
        alice.close();
      },
    };
  },
});

export const mixedLoad: SoakLoad = createMixedLoad({ http1: 4, http2: 2, fresh: 1 });

/** 1,000 open connections, and 20 new ones per second. */
export const connectionsLoad: SoakLoad = createMixedLoad({
  http1: 900,
  http2: 100,
  fresh: 40,
  pauseMs: 2_000,
});
