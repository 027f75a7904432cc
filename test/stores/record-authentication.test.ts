import { createHmac, hkdfSync, randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import type { DeviceRequest } from '../../src/domain/device-request.ts';
import type { RecordAuthenticator, RecordKind, RecordLocation } from '../../src/ports/record-authenticator.ts';
import { KEEP_FOREVER, type Store } from '../../src/ports/store.ts';
import { openEmbeddedStore } from '../../src/stores/embedded/store.ts';
import { openRedisStore } from '../../src/stores/redis/store.ts';
import { openSealingKeys } from '../../src/tokens/keyring.ts';
import { createKeyringFile, rotateKeyring } from '../../src/tokens/keyring-file.ts';
import {
  createHmacSha256,
  createRecordAuthenticator,
  type KeyedRecordAuthenticator,
  type RecordRefusalReason,
} from '../../src/tokens/record-mac.ts';
import { openRawEmbedded, openRawRedis, type RawRecords, tamper } from '../support/raw-records.ts';
import { testAuthenticator, testKeyring } from '../support/record-keys.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { storeTempFolder, testGrant } from '../support/store-fixtures.ts';

const NOW = Math.floor(Date.now() / 1_000);
const LATER = NOW + 3_600;
const { identity } = testGrant();
const createRequest = (id: string): DeviceRequest => ({
  state: 'pending',
  id,
  clientId: 'report-runner',
  scope: 'files:read',
  askedAt: NOW,
  askedFrom: '192.0.2.1',
  expires: LATER,
  failedSignIns: 0,
});

let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

interface TestStore {
  /** Opens the store with this authenticator, like a separate process. */
  open(authenticator: RecordAuthenticator): Promise<Store>;
  raw(): RawRecords;
}

let storeCount = 0;
const STORES: readonly { readonly name: string; readonly createTestStore: () => TestStore }[] = [
  {
    name: 'Redis',
    createTestStore() {
      storeCount += 1;
      const prefix = `p${storeCount}`;
      return {
        open: (authenticator) =>
          openRedisStore({
            url: redis.url,
            authenticator,
            prefix,
            maxStaleness: 60,
            ack: 'reachable',
            commandTimeout: 10_000,
          }),
        raw: () => openRawRedis(redis.port, prefix),
      };
    },
  },
  {
    name: 'the embedded store',
    createTestStore() {
      const folder = storeTempFolder();
      onTestFinished(() => folder.remove());
      const now = (): number => Date.now() / 1_000;
      return {
        open: (authenticator) =>
          openEmbeddedStore({ path: folder.path, mapSize: 2 ** 28, role: 'standalone', now, authenticator }),
        raw: () => openRawEmbedded(folder.path),
      };
    },
  },
];

/** Opens the store, runs `work` and closes it again, like a process. */
async function withStore<T>(
  testStore: TestStore,
  authenticator: RecordAuthenticator,
  work: (store: Store) => Promise<T>,
): Promise<T> {
  const store = await testStore.open(authenticator);
  try {
    return await work(store);
  } finally {
    await store.close();
  }
}
async function withRawRecords(testStore: TestStore, work: (raw: RawRecords) => Promise<void>): Promise<void> {
  const raw = testStore.raw();
  try {
    await work(raw);
  } finally {
    await raw.close();
  }
}

const withoutMac = (text: string): string => text.replace(/,"m":"[^"]*"\}$/, '}');

describe.each(STORES)('$name', ({ createTestStore }) => {
  test('a record that was altered, moved, prolonged or truncated is treated as absent, and its id stays taken', async () => {
    const testStore = createTestStore();
    const refused: string[] = [];
    const onRefused = ({ kind, id }: RecordLocation, because: RecordRefusalReason): void =>
      void refused.push(`${kind} ${id} ${because}`);
    const authenticator = testAuthenticator({ onRefused });
    const ids = ['identity', 'moved', 'source', 'prolonged', 'cut', 'longer', 'spelled', 'bare', 'kept'];
    await withStore(testStore, authenticator, async ({ grants, devices, userCodes }) => {
      for (const id of ids) await grants.create(id, testGrant({ id: 'same', refreshUntil: LATER }), LATER);
      await devices.create('request', createRequest('request'), LATER);
      await devices.create('as-grant', createRequest('as-grant'), LATER);
      await userCodes.create('code', { requestId: 'request' }, LATER);
    });
    await withRawRecords(testStore, async (raw) => {
      await tamper(raw, 'grants', 'identity', (text) => text.replace('corp:', 'CORP:'));
      // The same bytes under another id, and under another kind of record.
      await raw.write('grants', 'moved', await raw.read('grants', 'source'));
      await raw.write('devices', 'as-grant', await raw.read('grants', 'source'));
      await tamper(raw, 'grants', 'prolonged', (text) => text.replace(String(LATER), String(LATER + 86_400)));
      await tamper(raw, 'grants', 'cut', (text) => text.replace(/.{10}"\}$/, '"}'));
      await tamper(raw, 'grants', 'longer', (text) => text.replace(/"\}$/, 'AAAA"}'));
      // The last base64url character has unused bits: only one spelling is valid.
      await tamper(raw, 'grants', 'spelled', (text) =>
        text.replace(/.(?="\}$)/, (last) => String.fromCharCode(last.charCodeAt(0) + 1)),
      );
      await tamper(raw, 'grants', 'bare', withoutMac);
      await tamper(raw, 'devices', 'request', (text) =>
        text.replace('"state":"pending"', '"state":"confirmed","identity":"corp:{1}"'),
      );
      await tamper(raw, 'userCodes', 'code', (text) => text.replace('"request"', '"another"'));
    });
    await withStore(testStore, authenticator, async ({ grants, grantIndex, devices, userCodes }) => {
      const found = await Promise.all(ids.map(async (id) => [id, (await grants.read(id)) !== undefined]));
      expect(Object.fromEntries(found)).toEqual({
        ...Object.fromEntries(ids.map((id) => [id, false])),
        source: true,
        kept: true,
      });
      expect(await devices.read('request')).toBeUndefined();
      expect(await devices.read('as-grant')).toBeUndefined();
      expect(await userCodes.read('code')).toBeUndefined();
      expect(refused.toSorted()).toEqual(
        [
          ...['identity', 'moved', 'prolonged', 'cut', 'longer', 'spelled'].map((id) => `grants ${id} mac_wrong`),
          'grants bare mac_missing',
          'devices request mac_wrong',
          'devices as-grant mac_wrong',
          'userCodes code mac_wrong',
        ].toSorted(),
      );
      expect(await grants.create('identity', testGrant(), LATER)).toBe('taken');
      // Listings read the records, and find the two that are authentic.
      expect((await grantIndex.list({ identity, limit: 100 })).grants).toHaveLength(2);
    });
  });

  test('a note that fails authentication, or whose key was removed, can be created again; an authentic one is kept', async () => {
    const testStore = createTestStore();
    const refused: string[] = [];
    const onRefused = ({ id }: RecordLocation): void => void refused.push(id);
    await withStore(testStore, testAuthenticator({}, testKeyring('mold')), async ({ notes }) => {
      for (const id of ['kept', 'altered', 'removed']) await notes.create(id, { at: 'first' }, KEEP_FOREVER);
    });
    const strict = testAuthenticator({ onRefused }, testKeyring('mold', 'mnew'));
    await withRawRecords(testStore, (raw) => tamper(raw, 'notes', 'altered', (text) => text.replace('first', 'other')));
    await withStore(testStore, strict, async ({ notes }) => {
      expect(await notes.read('altered')).toBeUndefined();
      const outcomes = await Promise.all(
        ['kept', 'altered'].map((id) => notes.create(id, { at: 'second' }, KEEP_FOREVER)),
      );
      expect(outcomes).toEqual(['taken', 'created']);
      expect((await notes.read('altered'))?.record).toEqual({ at: 'second' });
      expect(await notes.create('altered', { at: 'third' }, KEEP_FOREVER)).toBe('taken');
    });
    expect(new Set(refused)).toEqual(new Set(['altered']));
    await withStore(testStore, testAuthenticator({ onRefused }, testKeyring('mnew')), async ({ notes }) => {
      expect(await notes.read('removed')).toBeUndefined();
      expect(await notes.create('removed', { at: 'third' }, KEEP_FOREVER)).toBe('created');
      expect((await notes.read('removed'))?.record).toEqual({ at: 'third' });
    });
    expect(refused).not.toContain('removed');
  });

  test('a rotation: old keys verify, new keys sign, and a missing key is an error until it is loaded', async () => {
    const testStore = createTestStore();
    const [old, both, lateAuthenticator] = [
      testKeyring('mold'),
      testKeyring('mold', 'mnew'),
      testAuthenticator({}, testKeyring('mold')),
    ];
    const active = testGrant({ id: 'live', refreshUntil: LATER });
    const expired = testGrant({ id: 'over', refreshUntil: NOW - 10 });
    await withStore(testStore, testAuthenticator({}, old), async ({ grants }) => {
      await grants.create('live', active, LATER);
    });
    await withStore(testStore, testAuthenticator({}, both), async ({ grants }) => {
      const found = await grants.read('live');
      if (found === undefined) throw new Error('grant not found');
      await grants.replace('live', found.version, { ...active, generation: 2 }, LATER);
      await grants.create('over', expired, LATER);
    });
    await withStore(testStore, lateAuthenticator, async ({ grants, grantIndex }) => {
      await expect(grants.read('live')).rejects.toMatchObject({ code: 'keys_unavailable' });
      await expect(grantIndex.list({ identity, limit: 10 })).rejects.toMatchObject({
        code: 'keys_unavailable',
      });
      // The grant has expired, so its key may have been removed: this is not an error.
      expect(await grants.read('over')).toBeUndefined();
      lateAuthenticator.setKeyring(both);
      expect((await grants.read('live'))?.record.generation).toBe(2);
      expect((await grantIndex.list({ identity, limit: 10 })).grants.map(({ id }) => id).toSorted()).toEqual([
        'live',
        'over',
      ]);
    });
  });
});

describe('the MAC of a record', () => {
  const location: RecordLocation = { kind: 'grants', id: 'grant-1', context: 'v 1' };
  const json = JSON.stringify({ v: 1, r: { identity: 'corp:{Ä}', scope: 'files:read' } });
  const [seal, check] = [
    (mac: KeyedRecordAuthenticator, at = location): string => mac.seal(at, json),
    (mac: KeyedRecordAuthenticator, text: string, at = location): string =>
      mac.check(at, text, text.includes('"m"'), false),
  ];

  test('is HMAC-SHA-256 (RFC 2104) with a derived key, and the last member of the record', () => {
    const text = seal(testAuthenticator());
    const { m, ...rest } = JSON.parse(text) as { m: string };
    expect(rest).toEqual(JSON.parse(json));
    const secret = Buffer.from('mtest'.padEnd(43, '0'), 'base64url');
    const key = Buffer.from(hkdfSync('sha256', secret, '', 'gatehouse store record 1', 32));
    const input = `grants 7 3\ngrant-1v 1${json.slice(0, -1)}`;
    expect(m).toBe(`mtest.${createHmac('sha256', key).update(input).digest('base64url')}`);
  });

  test('equals HMAC-SHA-256 of node:crypto for texts of every length and alphabet', () => {
    const key = randomBytes(32);
    const mac = createHmacSha256(key);
    const lengths = [...Array.from({ length: 200 }, (_, length) => length), 5_460, 5_461, 5_462, 5_463, 20_000];
    for (const letter of ['a', 'ä', '€', '😀', '\ud800'])
      for (const length of lengths) {
        const text = letter.repeat(length).slice(0, length);
        expect(mac(text)).toBe(createHmac('sha256', key).update(text).digest('base64url'));
      }
  });

  test('covers kind, id, context and text, and the boundaries between them', () => {
    const mac = testAuthenticator();
    const text = seal(mac);
    expect(check(mac, text)).toBe('authentic');
    const others: readonly Partial<RecordLocation>[] = [
      { kind: 'devices' },
      { id: 'grant-2' },
      { id: 'grant-1v' },
      { id: 'grant-1v', context: ' 1' },
      { context: 'v 2' },
    ];
    for (const other of others) expect(check(mac, text, { ...location, ...other })).toBe('refused');
    for (let at = 0; at < text.length; at += 1) {
      const code = text.charCodeAt(at) ^ 1;
      const flipped = `${text.slice(0, at)}${String.fromCharCode(code)}${text.slice(at + 1)}`;
      // A flip in the key id is a missing key; no flip is authentic.
      const outcome = ((): string => {
        try {
          return mac.check(location, flipped, true, false);
        } catch {
          return 'fault';
        }
      })();
      expect(['refused', 'fault'], `${at}: ${flipped}`).toContain(outcome);
    }
  });

  test('is refused with a retired key, and cannot be created or checked without keys', () => {
    let time = NOW;
    const now = (): number => time;
    const first = createKeyringFile('EdDSA');
    const rotated = rotateKeyring(first, { alg: 'EdDSA', now: NOW, publishBefore: 10, keep: 100 });
    const before = testAuthenticator({ now }, openSealingKeys(first));
    const after = testAuthenticator({ now }, openSealingKeys(rotated));
    const text = seal(before);
    expect(check(after, text)).toBe('authentic');
    time = NOW + 111;
    expect(check(after, text)).toBe('refused');
    expect(seal(after)).not.toContain(first.sealing[0]?.kid);

    const keyless = createRecordAuthenticator({ now });
    for (const use of [() => seal(keyless), () => check(keyless, text)])
      expect(use).toThrow(expect.objectContaining({ code: 'keys_unavailable' }));
    // These notes are read before the keys.
    for (const id of ['keys', 'migration']) {
      const note = { kind: 'notes' as RecordKind, id, context: '' };
      expect(keyless.seal(note, json)).toBe(json);
      expect(check(keyless, json, note)).toBe('authentic');
    }
  });
});
