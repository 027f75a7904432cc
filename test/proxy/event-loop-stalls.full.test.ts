import { existsSync } from 'node:fs';
import { expect, test } from 'vitest';
import { hasLogged, onSignal, startHeldGateway } from '../support/holding-upstream.ts';
import { readiness, until } from '../support/serve-process.ts';

/**
 * Stalls the event loop beyond its limit (1 s), and until the test has sent its requests. It is one long wait, since time
 * spent waiting for a CPU does not count as a stall. Then the clock stops until the test has observed the consequences,
 * which otherwise last only 2 s.
 */
const STALL = `
  const { existsSync, writeFileSync } = process.getBuiltinModule('node:fs');
  const pause = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  const now = performance.now.bind(performance);
  writeFileSync('stalled-' + process.pid, '');
  pause(1500);
  while (!existsSync('go-on')) pause(20);
  const end = now();
  let seenAt;
  performance.now = () => end + (existsSync('seen') ? now() - (seenAt ??= now()) : 0);
`;

for (const workers of [1, 2])
  test(`X14 a stalled event loop is logged, new token requests are shed briefly, and the gateway recovers (${workers} workers)`, async () => {
    const { server, folder, client } = await startHeldGateway(workers, { preStop: '0s', drain: '5s' }, onSignal(STALL));
    const [first, second, third] = [client(), client(), client()];
    const grant = await first.grant();
    for (const other of [second, third]) expect((await other.request({ path: '/health' })).status).toBe(200);
    const stalled = workers === 1 ? [server.pid] : server.workers;
    for (const pid of stalled) process.kill(pid, 'SIGWINCH');
    await until('all processes are stalled', () => stalled.every((pid) => existsSync(folder.file(`stalled-${pid}`))));

    // Sent during the stall on open connections, and read when it ends.
    const shedding = first.post('/Authorize/Certificate', {
      client_id: 'report-runner',
      scope: 'files:read',
    });
    const forwarding = second.request({ path: '/health' });
    const revoking = third.revoke(grant.access_token);
    // The next event-loop iteration writes them.
    await new Promise(setImmediate);
    folder.write('go-on', '');
    const shed = await shedding;
    expect([shed.status, shed.headers['retry-after']]).toEqual([400, '2']);
    expect(['invalid_grant', 'invalid_client']).not.toContain(shed.json['Error']);
    expect([(await forwarding).status, (await revoking).status]).toEqual([200, 200]);
    await until('the stall is logged', () => hasLogged(server, 'event_loop_overloaded'));
    await until('the gateway is not ready', async () => (await readiness(server)) === 503);
    folder.write('seen', '');
    await until('the gateway is ready again', async () => (await readiness(server)) === 200);
    expect((await first.grant()).token_type).toBe('Bearer');
    expect(await server.stop()).toBe(0);
  });
