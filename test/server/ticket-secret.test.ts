import { afterEach, describe, expect, test, vi } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { Fault } from '../../src/ports/fault.ts';
import { type Store, TRANSIENT_NOTE_PREFIX } from '../../src/ports/store.ts';
import { ROTATION_SECONDS, TicketSecretRotation } from '../../src/server/ticket-secret-rotation.ts';
import { decryptSecret, encryptSecret } from '../../src/tokens/encrypted-secret.ts';
import { createKeyringFile, type KeyringFile, rotateKeyring } from '../../src/tokens/keyring-file.ts';
import { openSealingKeys } from '../../src/tokens/sealing-keys.ts';
import { createMemoryStore } from '../support/memory-store.ts';

const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 10 });

/** In the middle of a period. */
const BEGIN = 240_000 * ROTATION_SECONDS + ROTATION_SECONDS / 2;

/** The time all of them share, and a store that can be away. */
function createWorld() {
  let time = BEGIN;
  const now = (): number => time;
  const { notes: stored } = createMemoryStore({ now });
  const names: string[] = [];
  let isUnreachable = false;
  const request =
    <A extends unknown[], R>(ask: (name: string, ...rest: A) => Promise<R>) =>
    async (name: string, ...rest: A): Promise<R> => {
      names.push(name);
      if (isUnreachable) throw new Fault('store_unavailable', 'away');
      return ask(name, ...rest);
    };
  const notes: Store['notes'] = {
    read: request((name) => stored.read(name)),
    create: request((name, ...rest: [Readonly<Record<string, string>>, number]) =>
      stored.create(name, ...rest),
    ),
    replace: (...given) => stored.replace(...given),
  };
  return {
    now,
    notes,
    stored,
    /** What was asked for, oldest first. */
    names,
    advance: (seconds: number) => void (time += seconds),
    away: (is: boolean) => void (isUnreachable = is),
  };
}

const kept: TicketSecretRotation[] = [];
afterEach(() => Promise.all(kept.splice(0).map((one) => one.stop())));

interface Process extends TicketSecretRotation {
  readonly log: string[];
  /** Every secret that was in force, as it was then. */
  readonly used: string[];
  hex(): string;
}

async function process(
  { notes, now }: Pick<ReturnType<typeof createWorld>, 'notes' | 'now'>,
  file: () => KeyringFile,
  isShared = (): boolean => true,
): Promise<Process> {
  const log: string[] = [];
  const secret = await TicketSecretRotation.start({
    isShared,
    notes,
    keyring: () => openSealingKeys(file()),
    now,
    log: createLogger({
      level: 'debug',
      format: 'json',
      write: (line) => void log.push((JSON.parse(line) as { event: string }).event),
    }),
  });
  const used: string[] = [];
  secret.subscribe((one) => used.push(one.toString('hex')));
  kept.push(secret);
  return Object.assign(secret, { log, used, hex: () => secret.current().toString('hex') });
}

const keys = createKeyringFile('EdDSA');

describe('the secret of TLS tickets', () => {
  test('is the same in all processes on one store, and is stored sealed', async () => {
    const here = createWorld();
    const [one, two, three] = await Promise.all([
      process(here, () => keys),
      process(here, () => keys),
      process(here, () => keys),
    ]);
    expect(new Set([one.hex(), two.hex(), three.hex()]).size).toBe(1);
    expect(one.current()).toHaveLength(32);
    expect(one.log).toEqual([]);
    const [name = ''] = here.names;
    expect(new Set(here.names)).toEqual(new Set([name]));
    expect(name.startsWith(TRANSIENT_NOTE_PREFIX)).toBe(true);
    const note = JSON.stringify((await here.stored.read(name))?.record);
    for (const form of ['hex', 'base64', 'base64url', 'latin1'] as const)
      expect(note).not.toContain(one.current().toString(form).slice(0, 20));
  });

  test('changes with the period, for all at once, and the one before is gone from memory and store', async () => {
    const here = createWorld();
    const [one, two] = [await process(here, () => keys), await process(here, () => keys)];
    const first = one.current();
    const before = one.hex();
    const [name = ''] = here.names;
    here.advance(ROTATION_SECONDS / 2 + 1);
    one.check();
    expect(one.hex()).not.toBe(before);
    two.check();
    await soon(() => expect(two.hex()).toBe(one.hex()));
    expect(one.hex()).not.toBe(before);
    expect(first.every((byte) => byte === 0)).toBe(true);
    here.advance(300);
    expect(await here.stored.read(name)).toBeUndefined();
  });

  test('of the next period is fetched in advance, so that a store unreachable at that moment is not a problem', async () => {
    const here = createWorld();
    const [one, two] = [await process(here, () => keys), await process(here, () => keys)];
    const before = one.hex();
    here.advance(ROTATION_SECONDS / 2 - 60);
    for (const each of [one, two]) each.check();
    await soon(() => expect(new Set(here.names).size).toBe(2));
    expect([one.hex(), two.hex()]).toEqual([before, before]);
    await soon(async () => expect(await here.stored.read(here.names.at(-1) ?? '')).toBeDefined());
    // One turn of the event loop: what was fetched is put aside.
    await new Promise(setImmediate);
    here.away(true);
    here.advance(61);
    for (const each of [one, two]) each.check();
    expect(one.hex()).toBe(two.hex());
    expect(one.hex()).not.toBe(before);
    // From the one to the other, with nothing in between.
    expect(one.used).toEqual([before, one.hex()]);
    expect(one.log).toEqual([]);
  });

  test('is private while the store is unreachable, never the old one, and the shared one when the store is back', async () => {
    const here = createWorld();
    const [one, two] = [await process(here, () => keys), await process(here, () => keys)];
    const before = one.hex();
    here.away(true);
    here.advance(ROTATION_SECONDS / 2 + 1);
    for (const each of [one, two]) each.check();
    expect(new Set([before, one.hex(), two.hex()]).size).toBe(3);
    await soon(() => expect(one.log).toEqual(['session_tickets_not_shared']));
    here.away(false);
    here.advance(6);
    for (const each of [one, two]) each.check();
    await soon(() => expect(one.hex()).toBe(two.hex()));
    expect(one.used).not.toContain(Buffer.alloc(32).toString('hex'));
    expect(one.used.filter((secret) => secret === before)).toHaveLength(1);
    await soon(() => expect(one.log).toEqual(['session_tickets_not_shared', 'session_tickets_shared']));
  });

  test('is there from the start, also when the store is not', async () => {
    const here = createWorld();
    here.away(true);
    const one = await process(here, () => keys);
    expect(one.current().some((byte) => byte !== 0)).toBe(true);
    expect(one.log).toEqual(['session_tickets_not_shared']);
  });

  test('is another one when the keys were rotated, from the moment the new key is active', async () => {
    const here = createWorld();
    let file = keys;
    const [one, two] = [await process(here, () => file), await process(here, () => file)];
    const before = one.hex();
    file = rotateKeyring(keys, { alg: 'EdDSA', now: here.now(), publishBefore: 600 });
    for (const each of [one, two]) each.check();
    expect([one.hex(), two.hex()]).toEqual([before, before]);
    here.advance(601);
    one.check();
    expect(one.hex()).not.toBe(before);
    two.check();
    await soon(() => expect(one.hex()).toBe(two.hex()));
    expect(two.hex()).not.toBe(before);
  });

  test('under other keys is not readable, and a replaced record is not accepted', async () => {
    const here = createWorld();
    const one = await process(here, () => keys);
    const [name = ''] = here.names;
    const [sealing] = openSealingKeys(keys).sealingKeys;
    if (sealing === undefined) throw new Error('a keyring has a sealing key');
    const sound = (await here.stored.read(name))?.record['sealed'] ?? '';
    expect(decryptSecret(sealing, name, sound)?.toString('hex')).toBe(one.hex());
    const [other] = openSealingKeys(createKeyringFile('EdDSA')).sealingKeys;
    expect(other && decryptSecret(other, name, sound)).toBeUndefined();
    const ofAnotherTime = encryptSecret(sealing, `${name}0`, one.current());
    const bytes = Buffer.from(sound, 'base64url');
    const forged = Array.from(bytes.keys(), (at) => {
      const copy = Buffer.from(bytes);
      copy[at] = (copy[at] ?? 0) ^ 1;
      return copy.toString('base64url');
    });
    for (const sealed of [ofAnotherTime, sound.slice(0, 20), sound.slice(0, -2), '', ...forged])
      expect(decryptSecret(sealing, name, sealed)).toBeUndefined();
    for (const sealed of [ofAnotherTime, 'x']) {
      const put = {
        ...here.notes,
        read: async () => ({ record: { sealed }, version: '1' as never, now: 0 }),
      };
      const victim = await process({ notes: put, now: here.now }, () => keys);
      expect(victim.hex()).not.toBe(one.hex());
      expect(victim.log).toEqual(['session_tickets_not_shared']);
    }
  });

  test('of a process is private, changes with the period too, and never reaches the store', async () => {
    const here = createWorld();
    const own = () => false;
    const [one, two] = [await process(here, () => keys, own), await process(here, () => keys, own)];
    const before = one.hex();
    expect(two.hex()).not.toBe(before);
    one.check();
    expect(one.hex()).toBe(before);
    here.advance(ROTATION_SECONDS);
    one.check();
    expect(one.hex()).not.toBe(before);
    expect(here.names).toEqual([]);
  });

  test('moves from one kind to the other by a reload', async () => {
    const here = createWorld();
    let isShared = true;
    const one = await process(
      here,
      () => keys,
      () => isShared,
    );
    const two = await process(here, () => keys);
    const common = one.hex();
    isShared = false;
    one.check();
    expect(one.hex()).not.toBe(common);
    isShared = true;
    one.check();
    await soon(() => expect(one.hex()).toBe(two.hex()));
  });

  test('a keyring without an active key costs the sharing and nothing else', async () => {
    const here = createWorld();
    let file = keys;
    const one = await process(here, () => file);
    const before = one.hex();
    const ended = { retireAt: here.now() - 1 };
    file = {
      ...keys,
      signing: keys.signing.map((key) => ({ ...key, ...ended })),
      sealing: keys.sealing.map((key) => ({ ...key, ...ended })),
    };
    one.check();
    const alone = one.hex();
    expect(alone).not.toBe(before);
    one.check();
    expect(one.hex()).toBe(alone);
    expect(one.log).toEqual(['session_tickets_not_shared']);
  });
});
