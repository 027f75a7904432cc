import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { Fault } from '../../../src/ports/fault.ts';
import { createAvailabilityMonitor, STABLE_MS } from '../../../src/stores/redis/availability.ts';
import { formatRedisAddress } from '../../../src/stores/redis/url.ts';
import { createKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { startFaultyRelay } from '../../support/faulty-relay.ts';
import { startRedis } from '../../support/redis-server.ts';
import { startGateway } from '../../support/test-gateway.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
});

const PASSWORD = 'the-password-of-redis';
const createKeyFile = (): string => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-unreachable-'));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, 'keys.json');
  writeKeyringFile(file, createKeyringFile('EdDSA'), { replace: false });
  return file;
};

test('a Redis that becomes unreachable and recovers: one log line each, with its address', async () => {
  const server = await startRedis(['--requirepass', PASSWORD]);
  cleanups.push(() => server.stop());
  const relay = await startFaultyRelay(server.port);
  cleanups.push(() => relay.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://:${PASSWORD}@127.0.0.1:${relay.port}` },
    keys: { file: createKeyFile() },
  }));
  cleanups.push(() => gateway.close());
  const findEvents = (event: string) => gateway.log.filter((line) => line.event === event);
  const eventually = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 30_000, interval: 25 });

  relay.set('refuse');
  await eventually(() => expect(findEvents('store_unreachable')).toHaveLength(1));
  // Several heartbeats fail meanwhile; nothing more is logged.
  await eventually(() => expect(gateway.server.store.revocationLag?.()).toBeGreaterThan(1.5));
  expect(
    [findEvents('store_unreachable'), findEvents('store_reachable'), findEvents('store_error')].map(
      ({ length }) => length,
    ),
  ).toEqual([1, 0, 0]);

  relay.set('pass');
  await eventually(() => expect(findEvents('store_reachable')).toHaveLength(1));
  expect(findEvents('store_unreachable')).toHaveLength(1);
  const address = `127.0.0.1:${relay.port}`;
  const [unreachable] = findEvents('store_unreachable');
  expect(unreachable).toMatchObject({ level: 'error', address });
  expect(unreachable?.['reason']).toMatch(/^(?:the connection is down|connection refused|it does not answer)/);
  expect(unreachable).not.toHaveProperty('stack');
  const [recovered] = findEvents('store_reachable');
  expect(recovered).toMatchObject({ level: 'warn', address });
  expect(recovered?.['unreachable_s']).toBeGreaterThanOrEqual(1);
  expect(gateway.logLines.join('')).not.toContain(PASSWORD);
});

test('a Redis that is unreachable at start is logged at once and every minute, with a note that it is retried', async () => {
  const server = await startRedis();
  cleanups.push(() => server.stop());
  let connections = 0;
  let isReachable = false;
  const relay = createServer((socket) => {
    connections += 1;
    if (!isReachable) return void socket.destroy();
    const redis = connect(server.port, '127.0.0.1');
    pipeline(socket, redis, socket, () => {});
  }).listen(0, '127.0.0.1');
  cleanups.push(() => void relay.close());
  await once(relay, 'listening');
  const { port } = relay.address() as AddressInfo;
  const opening = startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${port}` },
    keys: { file: createKeyFile() },
  }));
  await vi.waitFor(() => expect(connections).toBeGreaterThan(2), { timeout: 30_000 });
  // A minute passes.
  const monotonic = performance.now.bind(performance);
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => monotonic() + 60_000);
  cleanups.push(() => clock.mockRestore());
  const connectionsBefore = connections;
  await vi.waitFor(() => expect(connections).toBeGreaterThan(connectionsBefore + 2), { timeout: 30_000 });
  isReachable = true;
  const gateway = await opening;
  cleanups.push(() => gateway.close());
  const events = gateway.log.filter(({ event }) => event.startsWith('store_') && event !== 'store_warning');
  expect(events).toEqual([
    expect.objectContaining({
      event: 'store_unreachable',
      address: `127.0.0.1:${port}`,
      reason: 'the connection is down',
      note: 'retrying until Redis is reachable; no request is served before',
    }),
    expect.objectContaining({ event: 'store_unreachable', unreachable_s: expect.any(Number) }),
    expect.objectContaining({ event: 'store_reachable', address: `127.0.0.1:${port}` }),
  ]);
  expect(events[0]).not.toHaveProperty('stack');
});

test('a Redis that becomes unreachable while the keys are verified is logged once, and the start waits for it', async () => {
  const server = await startRedis();
  cleanups.push(() => server.stop());
  let disconnects = 0;
  const relay = await startFaultyRelay(server.port, (bytes) => {
    if (!bytes.includes('{keys}:n') || disconnects > 0) return;
    disconnects += 1;
    relay.set('refuse');
    setTimeout(() => relay.set('pass'), 1_000);
  });
  cleanups.push(() => relay.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${relay.port}` },
    keys: { file: createKeyFile() },
  }));
  cleanups.push(() => gateway.close());
  const events = gateway.log.filter(({ event }) => event === 'store_unreachable_at_start');
  expect(events).toEqual([
    expect.objectContaining({ level: 'error', reason: expect.any(String), note: expect.any(String) }),
  ]);
  expect(events[0]).not.toHaveProperty('stack');
});

describe('the log of an unreachable server', () => {
  const down = new Fault('store_unavailable', 'Redis: the connection is down');
  const createMonitor = (): {
    readonly lines: string[];
    at: number;
    monitor: ReturnType<typeof createAvailabilityMonitor>;
  } => {
    const lines: string[] = [];
    const state = { lines, at: 0 };
    const monitor = createAvailabilityMonitor({
      onUnreachable: (why, seconds) => lines.push(`unreachable ${seconds} ${why}`),
      onReachable: (seconds) => lines.push(`reachable ${seconds}`),
      onFault: ({ code }) => lines.push(code),
      now: () => state.at,
    });
    return Object.assign(state, { monitor });
  };

  test('has a line at once, one every minute, and one on recovery', () => {
    const state = createMonitor();
    for (; state.at <= 150_000; state.at += 500) state.monitor.reportFailure(down);
    const recovered = state.at;
    for (; state.at <= recovered + 10_000; state.at += 500) state.monitor.reportSuccess();
    expect(state.lines).toEqual([
      'unreachable 0 the connection is down',
      'unreachable 60 the connection is down',
      'unreachable 120 the connection is down',
      'reachable 150.5',
    ]);
    state.monitor.reportFailure(down);
    expect(state.lines.at(-1)).toBe('unreachable 0 the connection is down');
  });

  test('does not report recovery while one of its connections still fails', () => {
    const state = createMonitor();
    for (; state.at < 30_000; state.at += 500) {
      state.monitor.reportFailure(down);
      state.monitor.reportSuccess();
    }
    expect(state.lines).toEqual(['unreachable 0 the connection is down']);
    const last = state.at - 500;
    state.at = last + STABLE_MS;
    state.monitor.reportSuccess();
    expect(state.lines.slice(1)).toEqual(['reachable 29.5']);
  });

  test('does not report other faults as unreachable', () => {
    const state = createMonitor();
    state.monitor.reportFailure(new Fault('store_full', 'Redis has no memory left'));
    state.monitor.reportSuccess();
    expect(state.lines).toEqual(['store_full']);
  });
});

test('the address in the log contains neither user name nor password', () => {
  expect(formatRedisAddress('redis://gh:pw@[::1]:7000/2')).toBe('[::1]:7000');
  expect(formatRedisAddress('rediss+cluster://gh:pw@a,b:7001')).toBe('a:6379, b:7001');
  expect(formatRedisAddress('redis+sentinel://gh:pw@a,b:1/main')).toBe('main (Sentinels a:26379, b:1)');
});
