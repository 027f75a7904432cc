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
const keyFile = (): string => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-away-'));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, 'keys.json');
  writeKeyringFile(file, createKeyringFile('EdDSA'), { replace: false });
  return file;
};

test('a Redis that becomes unreachable and comes back: one log line each, with its address', async () => {
  const server = await startRedis(['--requirepass', PASSWORD]);
  cleanups.push(() => server.stop());
  const relay = await startFaultyRelay(server.port);
  cleanups.push(() => relay.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://:${PASSWORD}@127.0.0.1:${relay.port}` },
    keys: { file: keyFile() },
  }));
  cleanups.push(() => gateway.close());
  const of = (event: string) => gateway.log.filter((line) => line.event === event);
  const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 30_000, interval: 25 });

  relay.set('refuse');
  await soon(() => expect(of('store_unreachable')).toHaveLength(1));
  // Several beats fail meanwhile; nothing more is logged.
  await soon(() => expect(gateway.server.store.revocationLag?.()).toBeGreaterThan(1.5));
  expect(
    [of('store_unreachable'), of('store_reachable'), of('store_error')].map(({ length }) => length),
  ).toEqual([1, 0, 0]);

  relay.set('pass');
  await soon(() => expect(of('store_reachable')).toHaveLength(1));
  expect(of('store_unreachable')).toHaveLength(1);
  const address = `127.0.0.1:${relay.port}`;
  const [unreachable] = of('store_unreachable');
  expect(unreachable).toMatchObject({ level: 'error', address });
  expect(unreachable?.['reason']).toMatch(
    /^(?:the connection is down|connection refused|it does not answer)/,
  );
  expect(unreachable).not.toHaveProperty('stack');
  const [back] = of('store_reachable');
  expect(back).toMatchObject({ level: 'warn', address });
  expect(back?.['unreachable_s']).toBeGreaterThanOrEqual(1);
  expect(gateway.logLines.join('')).not.toContain(PASSWORD);
});

test('a Redis that is unreachable at the start is logged in the same way', async () => {
  const server = await startRedis();
  cleanups.push(() => server.stop());
  let calls = 0;
  let isThere = false;
  const front = createServer((socket) => {
    calls += 1;
    if (!isThere) return void socket.destroy();
    const redis = connect(server.port, '127.0.0.1');
    pipeline(socket, redis, socket, () => {});
  }).listen(0, '127.0.0.1');
  cleanups.push(() => void front.close());
  await once(front, 'listening');
  const { port } = front.address() as AddressInfo;
  const opening = startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${port}` },
    keys: { file: keyFile() },
  }));
  await vi.waitFor(() => expect(calls).toBeGreaterThan(2), { timeout: 30_000 });
  isThere = true;
  const gateway = await opening;
  cleanups.push(() => gateway.close());
  const events = gateway.log.filter(({ event }) => event.startsWith('store_') && event !== 'store_warning');
  expect(events).toEqual([
    expect.objectContaining({
      event: 'store_unreachable',
      address: `127.0.0.1:${port}`,
      reason: 'the connection is down',
    }),
    expect.objectContaining({ event: 'store_reachable', address: `127.0.0.1:${port}` }),
  ]);
  expect(events[0]).not.toHaveProperty('stack');
});

test('a Redis that becomes unreachable while the keys are compared with it is logged once, and waited for', async () => {
  const server = await startRedis();
  cleanups.push(() => server.stop());
  let cuts = 0;
  const relay = await startFaultyRelay(server.port, (bytes) => {
    if (!bytes.includes('{keys}:n') || cuts > 0) return;
    cuts += 1;
    relay.set('refuse');
    setTimeout(() => relay.set('pass'), 1_000);
  });
  cleanups.push(() => relay.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${relay.port}` },
    keys: { file: keyFile() },
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
  const createPresenceLog = (): {
    readonly lines: string[];
    at: number;
    there: ReturnType<typeof createAvailabilityMonitor>;
  } => {
    const lines: string[] = [];
    const state = { lines, at: 0 };
    const there = createAvailabilityMonitor({
      onUnreachable: (why, seconds) => lines.push(`away ${seconds} ${why}`),
      onReachable: (seconds) => lines.push(`back ${seconds}`),
      onFault: ({ code }) => lines.push(code),
      now: () => state.at,
    });
    return Object.assign(state, { there });
  };

  test('has a line at once, one every minute, and one when it is back', () => {
    const state = createPresenceLog();
    for (; state.at <= 150_000; state.at += 500) state.there.reportFailure(down);
    const recovered = state.at;
    for (; state.at <= recovered + 10_000; state.at += 500) state.there.reportSuccess();
    expect(state.lines).toEqual([
      'away 0 the connection is down',
      'away 60 the connection is down',
      'away 120 the connection is down',
      'back 150.5',
    ]);
    state.there.reportFailure(down);
    expect(state.lines.at(-1)).toBe('away 0 the connection is down');
  });

  test('does not report it as back while one of its connections still fails', () => {
    const state = createPresenceLog();
    for (; state.at < 30_000; state.at += 500) {
      state.there.reportFailure(down);
      state.there.reportSuccess();
    }
    expect(state.lines).toEqual(['away 0 the connection is down']);
    const last = state.at - 500;
    state.at = last + STABLE_MS;
    state.there.reportSuccess();
    expect(state.lines.slice(1)).toEqual(['back 29.5']);
  });

  test('does not report other faults as unreachable', () => {
    const state = createPresenceLog();
    state.there.reportFailure(new Fault('store_full', 'Redis has no memory left'));
    state.there.reportSuccess();
    expect(state.lines).toEqual(['store_full']);
  });
});

test('its address in the log holds neither user nor password', () => {
  expect(formatRedisAddress('redis://gh:pw@[::1]:7000/2')).toBe('[::1]:7000');
  expect(formatRedisAddress('rediss+cluster://gh:pw@a,b:7001')).toBe('a:6379, b:7001');
  expect(formatRedisAddress('redis+sentinel://gh:pw@a,b:1/main')).toBe('main (Sentinels a:26379, b:1)');
});
