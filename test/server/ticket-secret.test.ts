import { afterEach, describe, expect, test, vi } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { Fault } from '../../src/ports/fault.ts';
import { type Store, TRANSIENT_NOTE_PREFIX } from '../../src/ports/store.ts';
import {
  ROTATION_SECONDS,
  startTicketSecretRotation,
  type TicketSecretRotation,
} from '../../src/server/ticket-secret-rotation.ts';
import { decryptSecret, encryptSecret } from '../../src/tokens/encrypted-secret.ts';
import { createKeyringFile, type KeyringFile, rotateKeyring } from '../../src/tokens/keyring-file.ts';
import { openSealingKeys } from '../../src/tokens/sealing-keys.ts';
import { createMemoryStore } from '../support/memory-store.ts';

const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 10 });

/** In the middle of a rotation period. */
const BEGIN = 240_000 * ROTATION_SECONDS + ROTATION_SECONDS / 2;

/** A shared clock, and a store that can be made unreachable. */
function createSharedStore() {
  let time = BEGIN;
  const now = (): number => time;
  const { notes: stored } = createMemoryStore({ now });
  const names: string[] = [];
  let isUnreachable = false;
  const request =
    <A extends unknown[], R>(run: (name: string, ...rest: A) => Promise<R>) =>
    async (name: string, ...rest: A): Promise<R> => {
      names.push(name);
      if (isUnreachable) throw new Fault('store_unavailable', 'unreachable');
      return run(name, ...rest);
    };
  const notes: Store['notes'] = {
    read: request((name) => stored.read(name)),
    create: request((name, ...rest: [Readonly<Record<string, string>>, number]) =>
      stored.create(name, ...rest),
    ),
    replace: (...args) => stored.replace(...args),
  };
  return {
    now,
    notes,
    stored,
    /** Requested names, oldest first. */
    names,
    advance: (seconds: number) => void (time += seconds),
    setUnreachable: (value: boolean) => void (isUnreachable = value),
  };
}

const rotations: TicketSecretRotation[] = [];
afterEach(() => Promise.all(rotations.splice(0).map((rotation) => rotation.stop())));

interface Process extends TicketSecretRotation {
  readonly log: string[];
  /** Every secret that was in use, oldest first. */
  readonly used: string[];
  hex(): string;
}

async function startProcess(
  { notes, now }: Pick<ReturnType<typeof createSharedStore>, 'notes' | 'now'>,
  file: () => KeyringFile,
  isShared = (): boolean => true,
): Promise<Process> {
  const log: string[] = [];
  const secret = await startTicketSecretRotation({
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
  secret.subscribe((current) => used.push(current.toString('hex')));
  rotations.push(secret);
  return Object.assign(secret, { log, used, hex: () => secret.current().toString('hex') });
}

const keys = createKeyringFile('EdDSA');

describe('the session ticket secret', () => {
  test('is the same in all processes on one store, and is stored encrypted', async () => {
    const shared = createSharedStore();
    const [one, two, three] = await Promise.all([
      startProcess(shared, () => keys),
      startProcess(shared, () => keys),
      startProcess(shared, () => keys),
    ]);
    expect(new Set([one.hex(), two.hex(), three.hex()]).size).toBe(1);
    expect(one.current()).toHaveLength(32);
    expect(one.log).toEqual([]);
    const [name = ''] = shared.names;
    expect(new Set(shared.names)).toEqual(new Set([name]));
    expect(name.startsWith(TRANSIENT_NOTE_PREFIX)).toBe(true);
    const note = JSON.stringify((await shared.stored.read(name))?.record);
    for (const form of ['hex', 'base64', 'base64url', 'latin1'] as const)
      expect(note).not.toContain(one.current().toString(form).slice(0, 20));
  });

  test('changes for all processes at the end of the period, and the old secret is erased from memory and store', async () => {
    const shared = createSharedStore();
    const [one, two] = [await startProcess(shared, () => keys), await startProcess(shared, () => keys)];
    const first = one.current();
    const before = one.hex();
    const [name = ''] = shared.names;
    shared.advance(ROTATION_SECONDS / 2 + 1);
    one.check();
    expect(one.hex()).not.toBe(before);
    two.check();
    await soon(() => expect(two.hex()).toBe(one.hex()));
    expect(one.hex()).not.toBe(before);
    expect(first.every((byte) => byte === 0)).toBe(true);
    shared.advance(300);
    expect(await shared.stored.read(name)).toBeUndefined();
  });

  test('of the next period is fetched in advance, so that the rotation works while the store is unreachable', async () => {
    const shared = createSharedStore();
    const [one, two] = [await startProcess(shared, () => keys), await startProcess(shared, () => keys)];
    const before = one.hex();
    shared.advance(ROTATION_SECONDS / 2 - 60);
    for (const rotation of [one, two]) rotation.check();
    await soon(() => expect(new Set(shared.names).size).toBe(2));
    expect([one.hex(), two.hex()]).toEqual([before, before]);
    await soon(async () => expect(await shared.stored.read(shared.names.at(-1) ?? '')).toBeDefined());
    // The fetched secret is stored in the next event-loop iteration.
    await new Promise(setImmediate);
    shared.setUnreachable(true);
    shared.advance(61);
    for (const rotation of [one, two]) rotation.check();
    expect(one.hex()).toBe(two.hex());
    expect(one.hex()).not.toBe(before);
    // No other secret was used in between.
    expect(one.used).toEqual([before, one.hex()]);
    expect(one.log).toEqual([]);
  });

  test('is private to the process while the store is unreachable, never the old one, and shared again afterwards', async () => {
    const shared = createSharedStore();
    const [one, two] = [await startProcess(shared, () => keys), await startProcess(shared, () => keys)];
    const before = one.hex();
    shared.setUnreachable(true);
    shared.advance(ROTATION_SECONDS / 2 + 1);
    for (const rotation of [one, two]) rotation.check();
    expect(new Set([before, one.hex(), two.hex()]).size).toBe(3);
    await soon(() => expect(one.log).toEqual(['session_tickets_not_shared']));
    shared.setUnreachable(false);
    shared.advance(6);
    for (const rotation of [one, two]) rotation.check();
    await soon(() => expect(one.hex()).toBe(two.hex()));
    expect(one.used).not.toContain(Buffer.alloc(32).toString('hex'));
    expect(one.used.filter((secret) => secret === before)).toHaveLength(1);
    await soon(() => expect(one.log).toEqual(['session_tickets_not_shared', 'session_tickets_shared']));
  });

  test('exists from the start even if the store is unreachable', async () => {
    const shared = createSharedStore();
    shared.setUnreachable(true);
    const one = await startProcess(shared, () => keys);
    expect(one.current().some((byte) => byte !== 0)).toBe(true);
    expect(one.log).toEqual(['session_tickets_not_shared']);
  });

  test('changes after a key rotation, when the new key becomes active', async () => {
    const shared = createSharedStore();
    let file = keys;
    const [one, two] = [await startProcess(shared, () => file), await startProcess(shared, () => file)];
    const before = one.hex();
    file = rotateKeyring(keys, { alg: 'EdDSA', now: shared.now(), publishBefore: 600 });
    for (const rotation of [one, two]) rotation.check();
    expect([one.hex(), two.hex()]).toEqual([before, before]);
    shared.advance(601);
    one.check();
    expect(one.hex()).not.toBe(before);
    two.check();
    await soon(() => expect(one.hex()).toBe(two.hex()));
    expect(two.hex()).not.toBe(before);
  });

  test('cannot be decrypted with other keys, and a replaced record is not accepted', async () => {
    const shared = createSharedStore();
    const one = await startProcess(shared, () => keys);
    const [name = ''] = shared.names;
    const [sealing] = openSealingKeys(keys).sealingKeys;
    if (sealing === undefined) throw new Error('the keyring has no sealing key');
    const sealedSecret = (await shared.stored.read(name))?.record['sealed'] ?? '';
    expect(decryptSecret(sealing, name, sealedSecret)?.toString('hex')).toBe(one.hex());
    const [other] = openSealingKeys(createKeyringFile('EdDSA')).sealingKeys;
    expect(other && decryptSecret(other, name, sealedSecret)).toBeUndefined();
    const ofOtherPeriod = encryptSecret(sealing, `${name}0`, one.current());
    const bytes = Buffer.from(sealedSecret, 'base64url');
    const forged = Array.from(bytes.keys(), (at) => {
      const copy = Buffer.from(bytes);
      copy[at] = (copy[at] ?? 0) ^ 1;
      return copy.toString('base64url');
    });
    for (const sealed of [ofOtherPeriod, sealedSecret.slice(0, 20), sealedSecret.slice(0, -2), '', ...forged])
      expect(decryptSecret(sealing, name, sealed)).toBeUndefined();
    for (const sealed of [ofOtherPeriod, 'x']) {
      const tampered = {
        ...shared.notes,
        read: async () => ({ record: { sealed }, version: '1' as never, now: 0 }),
      };
      const victim = await startProcess({ notes: tampered, now: shared.now }, () => keys);
      expect(victim.hex()).not.toBe(one.hex());
      expect(victim.log).toEqual(['session_tickets_not_shared']);
    }
  });

  test('is private to the process if not shared, changes with the period, and never reaches the store', async () => {
    const shared = createSharedStore();
    const isShared = () => false;
    const [one, two] = [
      await startProcess(shared, () => keys, isShared),
      await startProcess(shared, () => keys, isShared),
    ];
    const before = one.hex();
    expect(two.hex()).not.toBe(before);
    one.check();
    expect(one.hex()).toBe(before);
    shared.advance(ROTATION_SECONDS);
    one.check();
    expect(one.hex()).not.toBe(before);
    expect(shared.names).toEqual([]);
  });

  test('changes between private and shared when the setting is reloaded', async () => {
    const shared = createSharedStore();
    let isShared = true;
    const one = await startProcess(
      shared,
      () => keys,
      () => isShared,
    );
    const two = await startProcess(shared, () => keys);
    const common = one.hex();
    isShared = false;
    one.check();
    expect(one.hex()).not.toBe(common);
    isShared = true;
    one.check();
    await soon(() => expect(one.hex()).toBe(two.hex()));
  });

  test('is not shared without an active key, and still works', async () => {
    const shared = createSharedStore();
    let file = keys;
    const one = await startProcess(shared, () => file);
    const before = one.hex();
    const ended = { retireAt: shared.now() - 1 };
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
