import { expect, onTestFinished, test } from 'vitest';
import { Fault } from '../../../src/ports/fault.ts';
import { IssuerKeys, type IssuerKeysOptions } from '../../../src/tokens/trusted-issuers/issuer-keys.ts';
import { parseKeySet } from '../../../src/tokens/trusted-issuers/key-set.ts';
import { createForeignKey, formatKeySet } from '../../support/foreign-issuer.ts';
import { until } from '../../support/until.ts';

const [first, second] = await Promise.all([createForeignKey('ES256', 'k1'), createForeignKey('ES256', 'k2')]);

/** An issuer whose clock, keys and availability the test controls. */
async function startKeys(options: Partial<IssuerKeysOptions> = {}, isUp = true) {
  const issuer = { published: [first], isUp, fetches: 0, now: 1_000, states: [] as string[] };
  const keys = new IssuerKeys({
    name: 'corp',
    async fetch() {
      issuer.fetches += 1;
      if (!issuer.isUp) throw new Error('connection refused');
      return parseKeySet(formatKeySet(...issuer.published));
    },
    refreshInterval: 600,
    cooldown: 30,
    maxStaleness: 3_600,
    onStateChange: (error) => issuer.states.push(error === undefined ? 'up' : error.message),
    now: () => issuer.now,
    ...options,
  });
  onTestFinished(() => keys.close());
  await keys.start();
  return { issuer, keys };
}

test('a new key is fetched when a token names it, once for all requests', async () => {
  const { issuer, keys } = await startKeys();
  issuer.published = [first, second];
  issuer.now += 30;
  const found = await Promise.all(Array.from({ length: 100 }, async () => keys.find('k2', 'ES256')));
  expect(new Set(found.map((key) => key?.id)).size).toBe(1);
  expect(found[0]).toBeDefined();
  expect(issuer.fetches).toBe(2);
});

test('a new key is found at once, also just after a fetch and just after tokens with other unknown keys', async () => {
  const { issuer, keys } = await startKeys();
  issuer.published = [first, second];
  expect(await keys.find('k2', 'ES256')).toBeDefined();
  expect(issuer.fetches).toBe(2);
  const third = await createForeignKey('ES256', 'k3');
  expect(await keys.find('junk', 'ES256')).toBeUndefined();
  issuer.published = [second, third];
  expect(await keys.find('k3', 'ES256')).toBeDefined();
  expect(issuer.fetches).toBe(4);
});

test('a key that is published while the keys are being fetched is found', async () => {
  const response = Promise.withResolvers<void>();
  let published = [first];
  let fetches = 0;
  const { keys } = await startKeys({
    async fetch() {
      fetches += 1;
      const keySet = formatKeySet(...published);
      if (fetches === 2) await response.promise;
      return parseKeySet(keySet);
    },
  });
  const junk = keys.find('junk', 'ES256');
  published = [first, second];
  const found = Array.from({ length: 10 }, async () => keys.find('k2', 'ES256'));
  response.resolve();
  expect(await junk).toBeUndefined();
  for (const key of await Promise.all(found)) expect(key).toBeDefined();
  expect(fetches).toBe(3);
});

test('a key that stays unknown causes one fetch per cooldown and does not prevent the fetch for a new key', async () => {
  const { issuer, keys } = await startKeys();
  for (let second = 0; second < 300; second += 1) {
    issuer.now += 1;
    expect(await keys.find('removed', 'ES256')).toBeUndefined();
  }
  expect(issuer.fetches).toBe(11);
  issuer.published = [first, second];
  expect(await keys.find('k2', 'ES256')).toBeDefined();
});

test('requests that wait for a fetch are limited, and those that need none are served', async () => {
  const response = Promise.withResolvers<void>();
  let fetches = 0;
  const { keys } = await startKeys({
    async fetch() {
      fetches += 1;
      if (fetches > 1) await response.promise;
      return parseKeySet(formatKeySet(first));
    },
  });
  const results = Array.from({ length: 1_100 }, async (_, index) => keys.find(`junk-${index}`, 'ES256'));
  expect(keys.find('k1', 'ES256')).not.toBeInstanceOf(Promise);
  response.resolve();
  const settled = await Promise.allSettled(results);
  const refusals = settled.filter((result) => result.status === 'rejected').map(({ reason }) => reason as Fault);
  expect(refusals).toHaveLength(100);
  expect(new Set(refusals.map(({ code }) => code))).toEqual(new Set(['overloaded']));
  expect(fetches).toBeLessThanOrEqual(4);
  expect(await keys.find('junk', 'ES256'), 'afterwards').toBeUndefined();
});

test('a flood of unknown key ids causes three fetches and then one per cooldown', async () => {
  const { issuer, keys } = await startKeys();
  for (let second = 0; second < 60; second += 1) {
    issuer.now += 1;
    for (let index = 0; index < 20; index += 1)
      expect(await keys.find(`junk-${second}-${index}`, 'ES256')).toBeUndefined();
    if (second < 30) expect(issuer.fetches).toBe(4);
  }
  expect(issuer.fetches).toBe(5);
});

test('a known key is found without waiting', async () => {
  const { keys } = await startKeys();
  expect(keys.find('k1', 'ES256')).not.toBeInstanceOf(Promise);
});

test('the last keys are used while the issuer is unreachable, and no longer than that', async () => {
  const { issuer, keys } = await startKeys();
  const { id = '' } = (await keys.find('k1', 'ES256')) ?? {};
  issuer.isUp = false;
  issuer.now += 3_600;
  expect(await keys.find('k1', 'ES256')).toBeDefined();
  expect(keys.has(id)).toBe(true);
  issuer.now += 1;
  await expect(keys.find('k1', 'ES256')).rejects.toMatchObject({ code: 'keys_unavailable' });
  expect(() => keys.has(id)).toThrow(Fault);
  issuer.isUp = true;
  issuer.now += 1;
  expect(await keys.find('k1', 'ES256')).toBeDefined();
  expect(issuer.states).toEqual(['connection refused', 'up']);
});

test.each([0, 60])(
  'keys older than maxStaleness (%i s) are used while the issuer is available',
  async (maxStaleness) => {
    const { issuer, keys } = await startKeys({ maxStaleness });
    const { id = '' } = (await keys.find('k1', 'ES256')) ?? {};
    for (const seconds of [1, 28, 40, 500]) {
      issuer.now += seconds;
      expect(keys.has(id)).toBe(true);
      expect(await keys.find('k1', 'ES256')).toMatchObject({ id });
    }
    expect(issuer.states).toEqual([]);
  },
);

test('using keys that are older than maxStaleness fetches them, at most once per cooldown', async () => {
  const { issuer, keys } = await startKeys({ maxStaleness: 10 });
  const { id = '' } = (await keys.find('k1', 'ES256')) ?? {};
  issuer.now += 11;
  expect(keys.has(id)).toBe(true);
  expect(issuer.fetches).toBe(1);
  issuer.now += 19;
  issuer.isUp = false;
  for (let count = 0; count < 10; count += 1) expect(keys.has(id)).toBe(true);
  expect(issuer.fetches).toBe(2);
  await until('the fetch has failed', () => issuer.states.length > 0);
  expect(() => keys.has(id)).toThrow(Fault);
  await expect(keys.find('k1', 'ES256')).rejects.toBeInstanceOf(Fault);
  issuer.isUp = true;
  issuer.now += 1;
  expect(() => keys.has(id)).toThrow(Fault);
  await until('the keys are fetched', () => issuer.states.includes('up'));
  expect(keys.has(id)).toBe(true);
  expect(issuer.fetches).toBe(3);
});

test('while the issuer is unreachable, an unknown key is not the fault of the client', async () => {
  const { issuer, keys } = await startKeys();
  issuer.isUp = false;
  issuer.now += 30;
  for (let attempt = 0; attempt < 50; attempt += 1)
    await expect(keys.find('k2', 'ES256')).rejects.toBeInstanceOf(Fault);
  expect(issuer.fetches).toBe(2);
  expect(await keys.find('k1', 'ES256')).toBeDefined();
});

test('an issuer that is unreachable at start is tried again, later each time', async () => {
  const { issuer, keys } = await startKeys({}, false);
  await expect(keys.find('k1', 'ES256')).rejects.toMatchObject({ code: 'keys_unavailable', retryAfter: 1 });
  expect(issuer.fetches).toBe(1);
  issuer.now += 1;
  await expect(keys.find('k1', 'ES256')).rejects.toMatchObject({ code: 'keys_unavailable', retryAfter: 2 });
  expect(issuer.fetches).toBe(2);
  issuer.isUp = true;
  issuer.now += 2;
  expect(await keys.find('k1', 'ES256')).toBeDefined();
});

test('after a long outage, a request that needs the keys causes a fetch within three seconds', async () => {
  const { issuer, keys } = await startKeys({ maxStaleness: 0 });
  const { id = '' } = (await keys.find('k1', 'ES256')) ?? {};
  issuer.isUp = false;
  issuer.now += 30;
  const before = issuer.fetches;
  for (let second = 0; second < 300; second += 1) {
    issuer.now += 1;
    const fault = await Promise.resolve()
      .then(() => keys.find('k1', 'ES256'))
      .catch((error: unknown) => error);
    expect(fault).toMatchObject({ code: 'keys_unavailable' });
    expect((fault as Fault).retryAfter).toBeLessThanOrEqual(3);
    expect(() => keys.has(id)).toThrow(Fault);
  }
  expect(issuer.fetches - before).toBeLessThanOrEqual(103);
  issuer.isUp = true;
  issuer.now += 3;
  expect(await keys.find('k1', 'ES256')).toBeDefined();
  expect(keys.has(id)).toBe(true);
});

test('a removed key verifies nothing after the next fetch', async () => {
  const { issuer, keys } = await startKeys();
  const { id = '' } = (await keys.find('k1', 'ES256')) ?? {};
  issuer.published = [second];
  issuer.now += 30;
  expect(await keys.find('k2', 'ES256')).toBeDefined();
  expect(keys.has(id)).toBe(false);
  expect(await keys.find('k1', 'ES256')).toBeUndefined();
});

test('a key of another type or algorithm is not found', async () => {
  const { keys } = await startKeys();
  expect(await keys.find('k1', 'RS256')).toBeUndefined();
  expect(await keys.find('k1', 'ES384')).toBeUndefined();
});

test('without a key id, the only key is found, and no key where there are several', async () => {
  const { issuer, keys } = await startKeys();
  expect(await keys.find(undefined, 'ES256')).toBeDefined();
  issuer.published = [first, second];
  issuer.now += 30;
  expect(await keys.find('k2', 'ES256')).toBeDefined();
  expect(await keys.find(undefined, 'ES256')).toBeUndefined();
});

test('two keys with the same id are refused', async () => {
  const twin = await createForeignKey('ES256', 'k1');
  const { issuer, keys } = await startKeys();
  issuer.published = [first, twin, second];
  issuer.now += 30;
  expect(await keys.find('k2', 'ES256')).toBeDefined();
  expect(await keys.find('k1', 'ES256')).toBeUndefined();
});

test.each([
  ['none', [], undefined],
  ['only keys for other algorithms', [first], ['RS256', 'EdDSA'] as const],
])(
  'an issuer that publishes %s is reported once, and again when it publishes a usable key',
  async (_, published, algorithms) => {
    const reports: boolean[] = [];
    const rsa = await createForeignKey('RS256', 'r1');
    const { issuer, keys } = await startKeys({
      algorithms,
      onUsabilityChange: (isUsable) => reports.push(isUsable),
      cooldown: 0,
    });
    issuer.published = [...published];
    for (let count = 0; count < 3; count += 1) expect(await keys.find('unknown', 'ES256')).toBeUndefined();
    expect([keys.isUsable, reports]).toEqual([false, [false]]);
    issuer.published = [first, rsa];
    expect(await keys.find('r1', 'RS256')).toBeDefined();
    expect([keys.isUsable, reports]).toEqual([true, [false, true]]);
  },
);
