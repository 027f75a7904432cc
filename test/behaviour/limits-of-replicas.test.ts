import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type House, openHouse, PASSWORD, type Reply } from '../support/house.ts';
import { exchange, jsonPost } from '../support/https-client.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { makeServeFolder, startServe } from '../support/serve-process.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';

const folder = mkdtempSync(join(tmpdir(), 'gatehouse-limits-'));
const keys = join(folder, 'keys.json');
writeKeyringFile(keys, newKeyring('EdDSA'), { replace: false });
afterAll(() => rmSync(folder, { recursive: true, force: true }));

let server: RedisServer;
beforeAll(async () => {
  server = await redisServer();
});
afterAll(() => server.stop());

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

let houses = 0;
/** Gateways on one Redis, each on a way of its own, behind a proxy that says for whom it asks. */
async function fleet(
  size: number,
  changes: Partial<SettingsInput>,
): Promise<{ readonly all: readonly House[]; readonly ways: readonly FaultyWay[] }> {
  houses += 1;
  const prefix = `fleet${houses}`;
  const ways = await Promise.all(Array.from({ length: size }, () => faultyWay(server.port)));
  closing.push(...ways.map((way) => () => way.close()));
  const all = await Promise.all(
    ways.map((way) =>
      openHouse((settings) => ({
        ...settings,
        store: { type: 'redis', url: `redis://127.0.0.1:${way.port}`, prefix },
        keys: { file: keys },
        trustedProxies: ['127.0.0.1'],
        ...changes,
      })),
    ),
  );
  closing.push(...all.map((house) => () => house.close()));
  // Each gateway has counted the heartbeats of all.
  await vi.waitFor(
    () => expect(all.map(({ gateway }) => gateway.store.limits?.sharers())).toEqual(all.map(() => size)),
    { timeout: 20_000, interval: 50 },
  );
  return { all, ways };
}
const rates = (given: NonNullable<SettingsInput['limits']>['rates']): Partial<SettingsInput> => ({
  limits: { rates: { page: 'off', ...given } },
});
const turn = <T>(all: readonly T[], index: number): T => all[index % all.length] as T;
/** The token operation speaks 400 only: what it refuses for a long time, it refuses because of the rate. */
const isLimited = ({ headers }: Pick<Reply, 'headers'>): boolean => Number(headers['retry-after'] ?? 0) > 60;
const limited = async (house: House, from: string): Promise<boolean> =>
  isLimited(
    await house.post(
      '/Authorize/Token',
      { client_id: 'report-runner', refresh_token: 'ghr_none' },
      { headers: { 'x-forwarded-for': from } },
    ),
  );

test('a rate limit applies across two gateways, per address, and nothing in Redis contains the address', async () => {
  const { all } = await fleet(2, rates({ token: '20/h' }));
  const refused: boolean[] = [];
  for (let index = 0; index < 40; index += 1) refused.push(await limited(turn(all, index), '203.0.113.7'));
  expect(refused).toEqual(refused.map((_, index) => index >= 20));
  expect(await limited(turn(all, 0), '203.0.113.8')).toBe(false);

  const redis = new Redis(server.port);
  try {
    const found = (await redis.keys('fleet*')).filter((key) => key.endsWith(':l'));
    expect(found.length).toBeGreaterThanOrEqual(2);
    const values = await redis.mget(found);
    expect(`${found.join()} ${values.join()}`).not.toMatch(/203\.0\.113|token/);
    for (const key of found) expect(await redis.pttl(key)).toBeGreaterThan(0);
  } finally {
    redis.disconnect();
  }
});

test('a burst at all gateways at once exceeds the limit by half a bucket per gateway at most, and the excess is paid back', async () => {
  const { all } = await fleet(3, rates({ token: '30/h' }));
  const burst = await Promise.all(
    Array.from({ length: 120 }, (_, index) => limited(turn(all, index), '203.0.113.9')),
  );
  const through = burst.filter((refused) => !refused).length;
  expect(through).toBeGreaterThanOrEqual(30);
  // Half a bucket is the most that each lets through without having asked.
  expect(through).toBeLessThanOrEqual(30 + 3 * 15);
  expect(await limited(turn(all, 0), '203.0.113.9')).toBe(true);
});

test('without Redis each gateway grants its share of the limit, and no more', async () => {
  const { all, ways } = await fleet(2, rates({ token: '20/h' }));
  for (const way of ways) way.set('refuse');
  for (const house of all) {
    let through = 0;
    for (let index = 0; index < 25; index += 1) if (!(await limited(house, '203.0.113.7'))) through += 1;
    expect(through).toBe(10);
  }
  for (const way of ways) way.set('pass');
  // Back with Redis they count together again: twenty for an address that is new, at both.
  await vi.waitFor(() => turn(all, 0).gateway.store.probe(), { timeout: 20_000 });
  await vi.waitFor(() => turn(all, 1).gateway.store.probe(), { timeout: 20_000 });
  let together = 0;
  for (let index = 0; index < 40; index += 1)
    if (!(await limited(turn(all, index), '203.0.113.77'))) together += 1;
  expect(together).toBe(20);
});

/** One person's browser, or a program that guesses codes, anywhere in front of the gateways. */
function guesser(from: string) {
  let cookie = '';
  const visit = async (
    house: House,
    place: string,
    fields?: Readonly<Record<string, string>>,
  ): Promise<Reply> => {
    const reply = await house.ask({
      path: `/authsvc/device${place}`,
      headers: {
        'x-forwarded-for': from,
        ...(cookie !== '' && { cookie }),
        ...(fields && { 'content-type': 'application/x-www-form-urlencoded' }),
      },
      ...(fields && { method: 'POST', body: new URLSearchParams(fields).toString() }),
    });
    const [set] = reply.headers['set-cookie'] ?? [];
    if (set !== undefined) cookie = set.split(';', 1)[0] ?? '';
    return reply;
  };
  let token = '';
  return {
    async begin(house: House): Promise<void> {
      const page = await visit(house, '');
      token = /action="\/authsvc\/device"><input[^>]* value="([^"]+)"/.exec(page.text)?.[1] ?? '';
      if (token === '') throw new Error(`no form: ${page.status} ${page.text}`);
    },
    guess: (house: House, code: string): Promise<Reply> =>
      visit(house, '', { user_code: code, form_token: token }),
    async signIn(house: House, name: string, password: string): Promise<Reply> {
      const page = await visit(house, '/sign-in');
      const form = /action="\/authsvc\/device\/sign-in"><input[^>]* value="([^"]+)"/.exec(page.text)?.[1];
      return visit(house, '/sign-in', { user_name: name, password, form_token: form ?? '' });
    },
    cookie: () => cookie,
    putBack(old: string): void {
      cookie = old;
    },
  };
}

test('D08 a session is locked after five wrong codes, at whichever gateways they were typed and whatever cookie comes back', async () => {
  const { all } = await fleet(3, rates({ codeGuesses: 'off', allCodeGuesses: 'off' }));
  const one = guesser('203.0.113.10');
  await one.begin(turn(all, 0));
  const first = one.cookie();
  for (let index = 0; index < 5; index += 1) {
    expect((await one.guess(turn(all, index), 'WRNG-CDXX')).status).toBe(400);
    one.putBack(first);
  }
  for (const house of all) expect((await one.guess(house, 'WRNG-CDXX')).status).toBe(429);
});

test('D08 a hundred addresses guess codes at three gateways: together they get the budget of all, and a right code still works before', async () => {
  const { all } = await fleet(3, rates({ codeGuesses: '5/h', allCodeGuesses: '60/h' }));
  const codes = await turn(all, 0).post(
    '/Authorize/Device',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: { 'x-forwarded-for': '198.51.100.1' } },
  );
  const person = guesser('198.51.100.2');
  await person.begin(turn(all, 1));
  for (let index = 0; index < 8; index += 1)
    expect((await person.guess(turn(all, index), String(codes.json['user_code']))).status).toBe(303);

  let wrong = 0;
  let refused = 0;
  const began = performance.now();
  const guess = async (number: number): Promise<void> => {
    for (let address = number; address < 100; address += 10) {
      const attacker = guesser(`203.0.113.${address}`);
      await attacker.begin(turn(all, address));
      for (let turns = 0; turns < 2; turns += 1) {
        const { status } = await attacker.guess(turn(all, address + turns), 'WRNG-CDXX');
        if (status === 400) wrong += 1;
        if (status === 429) refused += 1;
      }
    }
  };
  await Promise.all(Array.from({ length: 10 }, (_, number) => guess(number)));
  // Sixty for all, refilled by one a minute, and thirty for newcomers, refilled by one in two seconds.
  const elapsed = (performance.now() - began) / 1_000;
  expect(wrong).toBeGreaterThanOrEqual(90);
  expect(wrong).toBeLessThanOrEqual(90 + Math.ceil(elapsed / 60) + Math.ceil(elapsed / 2));
  expect(wrong + refused).toBe(200);
});

test('D08 one address has five guesses in all, concurrently and over three gateways; without Redis none is looked up', async () => {
  const { all, ways } = await fleet(3, rates({ codeGuesses: '5/h', allCodeGuesses: '1000/h' }));
  const strangers = await Promise.all(
    Array.from({ length: 9 }, async (_, index) => {
      const stranger = guesser('203.0.113.20');
      await stranger.begin(turn(all, index));
      return stranger;
    }),
  );
  const replies = await Promise.all(
    Array.from({ length: 27 }, (_, index) => turn(strangers, index).guess(turn(all, index), 'WRNG-CDXX')),
  );
  expect(replies.filter(({ status }) => status === 400)).toHaveLength(5);
  expect(replies.filter(({ status }) => status === 429)).toHaveLength(22);

  const fresh = guesser('203.0.113.21');
  await fresh.begin(turn(all, 0));
  for (const way of ways) way.set('refuse');
  const blind: number[] = [];
  for (let index = 0; index < 6; index += 1)
    blind.push((await fresh.guess(turn(all, index), 'WRNG-CDXX')).status);
  expect(blind.filter((status) => status !== 503 && status !== 429)).toEqual([]);
});

test('failed sign-ins of one name are counted over two gateways, and successful ones are not', async () => {
  const { all } = await fleet(2, rates({ codeGuesses: 'off', allCodeGuesses: 'off', device: 'off' }));
  let people = 0;
  /** Somebody new, on the page where one signs in. */
  const atSignIn = async (house: House) => {
    people += 1;
    const from = `198.51.100.${people}`;
    const headers = { 'x-forwarded-for': from };
    const codes = await house.post(
      '/Authorize/Device',
      { client_id: 'report-runner', scope: 'files:read' },
      { headers },
    );
    const person = guesser(from);
    await person.begin(house);
    await person.guess(house, String(codes.json['user_code']));
    return person;
  };
  const signIn = async (index: number, name: string, password: string): Promise<number> => {
    const person = await atSignIn(turn(all, index));
    return (await person.signIn(turn(all, index), name, password)).status;
  };
  for (let index = 0; index < 4; index += 1) expect(await signIn(index, 'alice', PASSWORD)).toBe(303);
  const began = performance.now();
  const wrong = await Promise.all(
    Array.from({ length: 48 }, (_, index) => signIn(index, 'alice', `wrong ${index}`)),
  );
  // Thirty at once, refilled by one in two seconds.
  const elapsed = (performance.now() - began) / 1_000;
  const tried = wrong.filter((status) => status !== 429).length;
  expect(tried).toBeGreaterThanOrEqual(30);
  expect(tried).toBeLessThanOrEqual(30 + Math.ceil(elapsed / 2));
  expect(await signIn(0, 'bob', PASSWORD)).toBe(303);
});

test('D18 pending device requests are limited over two gateways, in all, per client and per address', async () => {
  const { all } = await fleet(2, { device: { maxPending: 30, maxPendingPerClient: 20 } });
  const ask = async (index: number, clientId: string, from: string): Promise<number> =>
    (
      await turn(all, index).post(
        '/Authorize/Device',
        { client_id: clientId, scope: 'files:read' },
        { headers: { 'x-forwarded-for': from } },
      )
    ).status;
  const many = async (count: number, clientId: string, from: (index: number) => string): Promise<number> => {
    const statuses: number[] = [];
    for (let index = 0; index < count; index += 1) statuses.push(await ask(index, clientId, from(index)));
    return statuses.filter((status) => status === 200).length;
  };
  expect(await many(10, 'report-runner', () => '203.0.113.30')).toBe(2);
  expect(await many(40, 'report-runner', (index) => `203.0.113.${index + 40}`)).toBe(18);
  expect(await many(30, 'other-app', (index) => `203.0.113.${index + 100}`)).toBe(10);
});

test('the workers of one machine share one limit', async () => {
  const place = await makeServeFolder((settings) => ({
    ...settings,
    ...rates({ token: '20/h' }),
    trustedProxies: ['127.0.0.1'],
  }));
  closing.push(() => place.remove());
  const serving = await startServe(place, { set: ['listen.workers=3'] });
  expect(serving.workers).toHaveLength(3);
  const once = async (from: string): Promise<boolean> => {
    const asked = jsonPost('/Authorize/Token', { client_id: 'report-runner', refresh_token: 'none' });
    const headers = { ...asked.headers, host: 'localhost', 'x-forwarded-for': from };
    return isLimited(await exchange({ ...asked, port: serving.port, ca: place.ca.pem, headers }));
  };
  const refused: boolean[] = [];
  for (let index = 0; index < 45; index += 1) refused.push(await once('203.0.113.7'));
  expect(refused).toEqual(refused.map((_, index) => index >= 20));
  expect(await once('203.0.113.8')).toBe(false);
  expect(await serving.stop()).toBe(0);
});
