import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
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

test('a Redis that goes away and comes back: one line when it goes, with its address, and one when it is back', async () => {
  const secured = ['--requirepass', PASSWORD];
  const server = await redisServer(secured);
  closing.push(() => server.stop());
  const house = await openHouse((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://:${PASSWORD}@127.0.0.1:${server.port}` },
    keys: { file: keyFile() },
  }));
  closing.push(() => house.close());
  const of = (event: string) => house.log.filter((line) => line.event === event);
  const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 30_000, interval: 25 });

  await server.stop();
  await soon(() => expect(of('store_away')).toHaveLength(1));
  // Many beats fail meanwhile; nothing more is told.
  await soon(() => expect(house.gateway.store.revocationLag?.()).toBeGreaterThan(3.5));
  expect([of('store_away'), of('store_back'), of('store_fault')].map(({ length }) => length)).toEqual([
    1, 0, 0,
  ]);

  const again = await redisServer(secured, { at: server.port });
  closing.push(() => again.stop());
  await soon(() => expect(of('store_back')).toHaveLength(1));
  expect(of('store_away')).toHaveLength(1);
  const address = `127.0.0.1:${server.port}`;
  const [away] = of('store_away');
  expect(away).toMatchObject({ level: 'error', address });
  expect(away?.['reason']).toMatch(/^(?:the connection is down|nobody listens there|it does not answer)/);
  expect(away).not.toHaveProperty('stack');
  const [back] = of('store_back');
  expect(back).toMatchObject({ level: 'warn', address });
  expect(back?.['away_s']).toBeGreaterThanOrEqual(3);
  expect(house.lines.join('')).not.toContain(PASSWORD);
});

test('a Redis that is not there at the start is told of in the same words', async () => {
  // In its place somebody who hangs up.
  let calls = 0;
  const stranger = createServer((socket) => {
    calls += 1;
    socket.destroy();
  }).listen(0, '127.0.0.1');
  await once(stranger, 'listening');
  const { port } = stranger.address() as AddressInfo;
  const opening = openHouse((settings) => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${port}` },
    keys: { file: keyFile() },
  }));
  await vi.waitFor(() => expect(calls).toBeGreaterThan(2), { timeout: 30_000 });
  stranger.close();
  await once(stranger, 'close');
  const server = await redisServer([], { at: port });
  closing.push(() => server.stop());
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

test('a Redis that goes away while the keys are held against it is told of in one sentence, and waited for', async () => {
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

describe('what is told of a server that is away', () => {
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

  test('is told at once, then once a minute, then that it is back', () => {
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

  test('one connection that fails while another is answered is no coming back', () => {
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

  test('a fault of another kind is no absence', () => {
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
