import { afterEach, describe, expect, test, vi } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { Fault } from '../../src/ports/fault.ts';
import { type Store, TRANSIENT_NOTE_PREFIX } from '../../src/ports/store.ts';
import { ROTATION_SECONDS, TicketSecretRotation } from '../../src/server/ticket-secret-rotation.ts';
import { openSealingKeys } from '../../src/tokens/keyring.ts';
import { createKeyringFile, type KeyringFile, rotateKeyring } from '../../src/tokens/keyring-file.ts';
import { decryptSecret, encryptSecret } from '../../src/tokens/sealer.ts';
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
    create: request((name, ...rest: [Readonly<Record<string, string>>, number]) => stored.create(name, ...rest)),
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
  secret.subscribe((current) => used.push(current.toString('hex')));
  rotations.push(secret);
  return Object.assign(secret, { log, used, hex: () => secret.current().toString('hex') });
}

const keys = createKeyringFile('EdDSA');

describe('the session ticket secret', () => {
  test('is the same in all processes on processA store, and is stored encrypted', async () => {
    const shared = createSharedStore();
    const [processA, processB, processC] = await Promise.all([
      startProcess(shared, () => keys),
      startProcess(shared, () => keys),
      startProcess(shared, () => keys),
    ]);
    expect(new Set([processA.hex(), processB.hex(), processC.hex()]).size).toBe(1);
    expect(processA.current()).toHaveLength(32);
    expect(processA.log).toEqual([]);
    const [name = ''] = shared.names;
    expect(new Set(shared.names)).toEqual(new Set([name]));
    expect(name.startsWith(TRANSIENT_NOTE_PREFIX)).toBe(true);
    const note = JSON.stringify((await shared.stored.read(name))?.record);
    for (const form of ['hex', 'base64', 'base64url', 'latin1'] as const)
      expect(note).not.toContain(processA.current().toString(form).slice(0, 20));
  });

  test('changes for all processes at the end of the period, and the old secret is erased from memory and store', async () => {
    const shared = createSharedStore();
    const [processA, processB] = [await startProcess(shared, () => keys), await startProcess(shared, () => keys)];
    const first = processA.current();
    const before = processA.hex();
    const [name = ''] = shared.names;
    shared.advance(ROTATION_SECONDS / 2 + 1);
    processA.check();
    expect(processA.hex()).not.toBe(before);
    processB.check();
    await soon(() => expect(processB.hex()).toBe(processA.hex()));
    expect(processA.hex()).not.toBe(before);
    expect(first.every((byte) => byte === 0)).toBe(true);
    shared.advance(300);
    expect(await shared.stored.read(name)).toBeUndefined();
  });

  test('of the next period is fetched in advance, so that the rotation works while the store is unreachable', async () => {
    const shared = createSharedStore();
    const [processA, processB] = [await startProcess(shared, () => keys), await startProcess(shared, () => keys)];
    const before = processA.hex();
    shared.advance(ROTATION_SECONDS / 2 - 60);
    for (const rotation of [processA, processB]) rotation.check();
    await soon(() => expect(new Set(shared.names).size).toBe(2));
    expect([processA.hex(), processB.hex()]).toEqual([before, before]);
    await soon(async () => expect(await shared.stored.read(shared.names.at(-1) ?? '')).toBeDefined());
    // The fetched secret is stored in the next event-loop iteration.
    await new Promise(setImmediate);
    shared.setUnreachable(true);
    shared.advance(61);
    for (const rotation of [processA, processB]) rotation.check();
    expect(processA.hex()).toBe(processB.hex());
    expect(processA.hex()).not.toBe(before);
    // No other secret was used in between.
    expect(processA.used).toEqual([before, processA.hex()]);
    expect(processA.log).toEqual([]);
  });

  test('is private to the process while the store is unreachable, never the old processA, and shared again afterwards', async () => {
    const shared = createSharedStore();
    const [processA, processB] = [await startProcess(shared, () => keys), await startProcess(shared, () => keys)];
    const before = processA.hex();
    shared.setUnreachable(true);
    shared.advance(ROTATION_SECONDS / 2 + 1);
    for (const rotation of [processA, processB]) rotation.check();
    expect(new Set([before, processA.hex(), processB.hex()]).size).toBe(3);
    await soon(() => expect(processA.log).toEqual(['session_tickets_not_shared']));
    shared.setUnreachable(false);
    shared.advance(6);
    for (const rotation of [processA, processB]) rotation.check();
    await soon(() => expect(processA.hex()).toBe(processB.hex()));
    expect(processA.used).not.toContain(Buffer.alloc(32).toString('hex'));
    expect(processA.used.filter((secret) => secret === before)).toHaveLength(1);
    await soon(() => expect(processA.log).toEqual(['session_tickets_not_shared', 'session_tickets_shared']));
  });

  test('exists from the start even if the store is unreachable', async () => {
    const shared = createSharedStore();
    shared.setUnreachable(true);
    const processA = await startProcess(shared, () => keys);
    expect(processA.current().some((byte) => byte !== 0)).toBe(true);
    expect(processA.log).toEqual(['session_tickets_not_shared']);
  });

  test('changes after a key rotation, when the new key becomes active', async () => {
    const shared = createSharedStore();
    let file = keys;
    const [processA, processB] = [await startProcess(shared, () => file), await startProcess(shared, () => file)];
    const before = processA.hex();
    file = rotateKeyring(keys, { alg: 'EdDSA', now: shared.now(), publishBefore: 600 });
    for (const rotation of [processA, processB]) rotation.check();
    expect([processA.hex(), processB.hex()]).toEqual([before, before]);
    shared.advance(601);
    processA.check();
    expect(processA.hex()).not.toBe(before);
    processB.check();
    await soon(() => expect(processA.hex()).toBe(processB.hex()));
    expect(processB.hex()).not.toBe(before);
  });

  test('cannot be decrypted with other keys, and a replaced record is not accepted', async () => {
    const shared = createSharedStore();
    const processA = await startProcess(shared, () => keys);
    const [name = ''] = shared.names;
    const [sealing] = openSealingKeys(keys).sealingKeys;
    if (sealing === undefined) throw new Error('the keyring has no sealing key');
    const sealedSecret = (await shared.stored.read(name))?.record['sealed'] ?? '';
    expect(decryptSecret(sealing, name, sealedSecret)?.toString('hex')).toBe(processA.hex());
    const [other] = openSealingKeys(createKeyringFile('EdDSA')).sealingKeys;
    expect(other && decryptSecret(other, name, sealedSecret)).toBeUndefined();
    const ofOtherPeriod = encryptSecret(sealing, `${name}0`, processA.current());
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
      expect(victim.hex()).not.toBe(processA.hex());
      expect(victim.log).toEqual(['session_tickets_not_shared']);
    }
  });

  test('is private to the process if not shared, changes with the period, and never reaches the store', async () => {
    const shared = createSharedStore();
    const isShared = () => false;
    const [processA, processB] = [
      await startProcess(shared, () => keys, isShared),
      await startProcess(shared, () => keys, isShared),
    ];
    const before = processA.hex();
    expect(processB.hex()).not.toBe(before);
    processA.check();
    expect(processA.hex()).toBe(before);
    shared.advance(ROTATION_SECONDS);
    processA.check();
    expect(processA.hex()).not.toBe(before);
    expect(shared.names).toEqual([]);
  });

  test('changes between private and shared when the setting is reloaded', async () => {
    const shared = createSharedStore();
    let isShared = true;
    const processA = await startProcess(
      shared,
      () => keys,
      () => isShared,
    );
    const processB = await startProcess(shared, () => keys);
    const common = processA.hex();
    isShared = false;
    processA.check();
    expect(processA.hex()).not.toBe(common);
    isShared = true;
    processA.check();
    await soon(() => expect(processA.hex()).toBe(processB.hex()));
  });

  test('is not shared without an active key, and still works', async () => {
    const shared = createSharedStore();
    let file = keys;
    const processA = await startProcess(shared, () => file);
    const before = processA.hex();
    const ended = { retireAt: shared.now() - 1 };
    file = {
      ...keys,
      signing: keys.signing.map((key) => ({ ...key, ...ended })),
      sealing: keys.sealing.map((key) => ({ ...key, ...ended })),
    };
    processA.check();
    const alone = processA.hex();
    expect(alone).not.toBe(before);
    processA.check();
    expect(processA.hex()).toBe(alone);
    expect(processA.log).toEqual(['session_tickets_not_shared']);
  });
});
