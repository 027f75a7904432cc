import { test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { freePort } from '../support/front-proxy.ts';
import { connectRaw, isCompleteResponse, parseRawResponse } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { createServeFolder, startServe } from '../support/serve-process.ts';
import {
  type Addresses,
  startCaddy,
  startEnvoy,
  startEnvoyOverHttp,
  startHaproxy,
  startNginx,
  startTraefik,
} from './proxies.ts';

needs('nginx', 'caddy', 'haproxy', 'traefik', 'envoy');

/** A busy machine adds to the times that docs/forward-auth.md states. */
const SLACK_MS = 2_000;

test.concurrent.for([
  { name: 'nginx', start: startNginx, statuses: [500], seconds: 5 },
  { name: 'Caddy', start: startCaddy, statuses: [502, 504], seconds: 5 },
  { name: 'HAProxy', start: startHaproxy, statuses: [503], seconds: 2 },
  { name: 'Traefik', start: startTraefik, statuses: [500], seconds: 30 },
  { name: 'Envoy, over gRPC', start: (addresses: Addresses) => startEnvoy(addresses), statuses: [503], seconds: 2 },
  { name: 'Envoy, over HTTP', start: startEnvoyOverHttp, statuses: [503], seconds: 2 },
])(
  '$name refuses every request while gatehouse hangs, after at most $seconds s, and after it was killed',
  async ({ start, statuses, seconds }, { expect, onTestFinished }) => {
    const folder = await createServeFolder((settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }));
    onTestFinished(() => folder.remove());
    const gatehouse = await startServe(folder);
    const api = await startRecordingUpstream();
    onTestFinished(() => api.close());
    const places = { gatehousePort: gatehouse.port, apiPort: api.port, ca: `${folder.path}/ca.pem` };
    const proxy = await start({ port: await freePort(), ...places });
    onTestFinished(() => proxy.close());
    const send = async (): Promise<{ status: number; ms: number }> => {
      const client = await connectRaw(proxy.port);
      try {
        const begun = performance.now();
        client.send('GET /health HTTP/1.1\r\nHost: api.example.test\r\n\r\n');
        const text = await client.until((received) => isCompleteResponse(received), 60_000);
        return { status: parseRawResponse(text).status, ms: performance.now() - begun };
      } finally {
        client.destroy();
      }
    };
    const expectRefusal = async (limit: number): Promise<void> => {
      const refused = await send();
      expect(statuses).toContain(refused.status);
      expect(refused.ms).toBeLessThan(limit);
      expect(api.requests).toEqual([]);
    };

    // Without a connection to gatehouse: the TLS handshake hangs.
    gatehouse.signal('SIGSTOP');
    await expectRefusal(seconds * 1_000 + SLACK_MS);
    gatehouse.signal('SIGCONT');
    expect((await send()).status).toBe(200);
    api.reset();
    // On the connection that the proxy keeps.
    gatehouse.signal('SIGSTOP');
    await expectRefusal(seconds * 1_000 + SLACK_MS);
    await gatehouse.kill();
    await expectRefusal(SLACK_MS);
  },
);
