import { expect, onTestFinished, test } from 'vitest';
import { openAdminListener } from '../../src/admin/listener.ts';
import { startGateway } from '../support/test-gateway.ts';

test('O13 probes and metrics are served on the admin listener only; on the public port, the routes apply to their paths', async () => {
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  const { access_token: token } = await gateway.grant();
  for (const path of ['/metrics', '/readyz', '/ready', '/livez', '/healthz', '/ping', '/admin/grants'])
    expect([path, (await gateway.api(path)).status, (await gateway.api(path, token)).status]).toEqual([path, 401, 404]);
  for (const path of ['/health', '/files/1', '/authsvc/Authorize/Verify'])
    expect([path, (await fetch(`http://127.0.0.1:${gateway.adminPort}${path}`)).status]).toEqual([path, 404]);
});

/** A listener whose store has this check. */
async function openWithStoreCheck(check: () => Promise<void>) {
  const listener = await openAdminListener({
    host: '127.0.0.1',
    port: 0,
    tokenFile: '/none',
    checks: [
      { name: 'accepting', check: async () => {} },
      { name: 'store', check },
    ],
  });
  onTestFinished(() => listener.close());
  return listener;
}

test('a probe can exclude checks by name; the others still apply', async () => {
  const listener = await openWithStoreCheck(async () => {
    throw new Error('is unreachable');
  });
  const probe = async (query: string): Promise<number> =>
    (await fetch(`http://127.0.0.1:${listener.port}/readyz${query}`)).status;
  expect(await probe('')).toBe(503);
  expect(await probe('?exclude=accepting')).toBe(503);
  expect(await probe('?exclude=stor')).toBe(503);
  expect(await probe('?exclude=store')).toBe(200);
  expect(await probe('?exclude=accepting&exclude=store')).toBe(200);
});

test('an excluded check is not run, and does not delay the probe', async () => {
  let runs = 0;
  const listener = await openWithStoreCheck(() => {
    runs += 1;
    return new Promise(() => {});
  });
  expect((await fetch(`http://127.0.0.1:${listener.port}/readyz?exclude=store`)).status).toBe(200);
  expect(runs).toBe(0);
});
