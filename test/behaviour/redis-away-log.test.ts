import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { Fault } from '../../src/ports/fault.ts';
import { presence, SETTLED_MS } from '../../src/stores/redis-presence.ts';
import { placeInWords } from '../../src/stores/redis-url.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { openHouse } from '../support/house.ts';
import { redisServer } from '../support/redis-server.ts';
import { faultyWay } from '../support/tcp-fault.ts';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

const PASSWORD = 'the-password-of-redis';
const keyFile = (): string => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-away-'));
  closing.push(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, 'keys.json');
  writeKeyringFile(file, newKeyring('EdDSA'), { replace: false });
  return file;
};

test('a Redis that becomes unreachable and comes back: one log line each, with its address', async () => {
  const server = await redisServer(['--requirepass', PASSWORD]);
  closing.push(() => server.stop());
  const way = await faultyWay(server.port);
  closing.push(() => way.close());
  const house = await openHouse((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://:${PASSWORD}@127.0.0.1:${way.port}` },
    keys: { file: keyFile() },
  }));
  closing.push(() => house.close());
  const of = (event: string) => house.log.filter((line) => line.event === event);
  const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 30_000, interval: 25 });

  way.set('refuse');
  await soon(() => expect(of('store_away')).toHaveLength(1));
  // Several beats fail meanwhile; nothing more is logged.
  await soon(() => expect(house.gateway.store.revocationLag?.()).toBeGreaterThan(1.5));
  expect([of('store_away'), of('store_back'), of('store_fault')].map(({ length }) => length)).toEqual([
    1, 0, 0,
  ]);

  way.set('pass');
  await soon(() => expect(of('store_back')).toHaveLength(1));
  expect(of('store_away')).toHaveLength(1);
  const address = `127.0.0.1:${way.port}`;
  const [away] = of('store_away');
  expect(away).toMatchObject({ level: 'error', address });
  expect(away?.['reason']).toMatch(/^(?:the connection is down|nobody listens there|it does not answer)/);
  expect(away).not.toHaveProperty('stack');
  const [back] = of('store_back');
  expect(back).toMatchObject({ level: 'warn', address });
  expect(back?.['away_s']).toBeGreaterThanOrEqual(1);
  expect(house.lines.join('')).not.toContain(PASSWORD);
});

test('a Redis that is unreachable at the start is logged in the same way', async () => {
  const server = await redisServer();
  closing.push(() => server.stop());
  let calls = 0;
  let isThere = false;
  const front = createServer((socket) => {
    calls += 1;
    if (!isThere) return void socket.destroy();
    const redis = connect(server.port, '127.0.0.1');
    pipeline(socket, redis, socket, () => {});
  }).listen(0, '127.0.0.1');
  closing.push(() => void front.close());
  await once(front, 'listening');
  const { port } = front.address() as AddressInfo;
  const opening = openHouse((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${port}` },
    keys: { file: keyFile() },
  }));
  await vi.waitFor(() => expect(calls).toBeGreaterThan(2), { timeout: 30_000 });
  isThere = true;
  const house = await opening;
  closing.push(() => house.close());
  const told = house.log.filter(({ event }) => event.startsWith('store_') && event !== 'store_notice');
  expect(told).toEqual([
    expect.objectContaining({
      event: 'store_away',
      address: `127.0.0.1:${port}`,
      reason: 'the connection is down',
    }),
    expect.objectContaining({ event: 'store_back', address: `127.0.0.1:${port}` }),
  ]);
  expect(told[0]).not.toHaveProperty('stack');
});

test('a Redis that becomes unreachable while the keys are compared with it is logged once, and waited for', async () => {
  const server = await redisServer();
  closing.push(() => server.stop());
  let cuts = 0;
  const way = await faultyWay(server.port, (bytes) => {
    if (!bytes.includes('{keys}:n') || cuts > 0) return;
    cuts += 1;
    way.set('refuse');
    setTimeout(() => way.set('pass'), 1_000);
  });
  closing.push(() => way.close());
  const house = await openHouse((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${way.port}` },
    keys: { file: keyFile() },
  }));
  closing.push(() => house.close());
  const told = house.log.filter(({ event }) => event === 'store_away_at_start');
  expect(told).toEqual([
    expect.objectContaining({ level: 'error', reason: expect.any(String), note: expect.any(String) }),
  ]);
  expect(told[0]).not.toHaveProperty('stack');
});

describe('the log of an unreachable server', () => {
  const down = new Fault('store_unavailable', 'Redis: the connection is down');
  const told = (): { readonly lines: string[]; at: number; there: ReturnType<typeof presence> } => {
    const lines: string[] = [];
    const state = { lines, at: 0 };
    const there = presence({
      onAway: (why, seconds) => lines.push(`away ${seconds} ${why}`),
      onBack: (seconds) => lines.push(`back ${seconds}`),
      onFault: ({ code }) => lines.push(code),
      now: () => state.at,
    });
    return Object.assign(state, { there });
  };

  test('has a line at once, one every minute, and one when it is back', () => {
    const state = told();
    for (; state.at <= 150_000; state.at += 500) state.there.failed(down);
    const recovered = state.at;
    for (; state.at <= recovered + 10_000; state.at += 500) state.there.answered();
    expect(state.lines).toEqual([
      'away 0 the connection is down',
      'away 60 the connection is down',
      'away 120 the connection is down',
      'back 150.5',
    ]);
    state.there.failed(down);
    expect(state.lines.at(-1)).toBe('away 0 the connection is down');
  });

  test('does not report it as back while one of its connections still fails', () => {
    const state = told();
    for (; state.at < 30_000; state.at += 500) {
      state.there.failed(down);
      state.there.answered();
    }
    expect(state.lines).toEqual(['away 0 the connection is down']);
    const last = state.at - 500;
    state.at = last + SETTLED_MS;
    state.there.answered();
    expect(state.lines.slice(1)).toEqual(['back 29.5']);
  });

  test('does not report other faults as unreachable', () => {
    const state = told();
    state.there.failed(new Fault('store_full', 'Redis has no memory left'));
    state.there.answered();
    expect(state.lines).toEqual(['store_full']);
  });
});

test('its address in the log holds neither user nor password', () => {
  expect(placeInWords('redis://gh:pw@[::1]:7000/2')).toBe('[::1]:7000');
  expect(placeInWords('rediss+cluster://gh:pw@a,b:7001')).toBe('a:6379, b:7001');
  expect(placeInWords('redis+sentinel://gh:pw@a,b:1/main')).toBe('main, by the Sentinels a:26379, b:1');
});
