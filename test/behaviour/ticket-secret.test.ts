import { afterEach, describe, expect, test, vi } from 'vitest';
import { keepTicketSecret, PERIOD, type TicketSecret } from '../../src/gateway/ticket-secret.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { Fault } from '../../src/ports/fault.ts';
import { PASSING_NOTE, type Store } from '../../src/ports/store.ts';
import { memoryStore } from '../../src/stores/memory.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { type KeyringFile, newKeyring, rotateKeyring } from '../../src/tokens/keyring-file.ts';
import { openSecret, sealSecret } from '../../src/tokens/sealed-secret.ts';

const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 10 });

/** In the middle of a period. */
const BEGIN = 240_000 * PERIOD + PERIOD / 2;

/** The time all of them share, and a store that can be away. */
function world() {
  let time = BEGIN;
  const now = (): number => time;
  const { notes: stored } = memoryStore({ now });
  const names: string[] = [];
  let isAway = false;
  const asked =
    <A extends unknown[], R>(ask: (name: string, ...rest: A) => Promise<R>) =>
    async (name: string, ...rest: A): Promise<R> => {
      names.push(name);
      if (isAway) throw new Fault('store_unavailable', 'away');
      return ask(name, ...rest);
    };
  const notes: Store['notes'] = {
    read: asked((name) => stored.read(name)),
    create: asked((name, ...rest: [Readonly<Record<string, string>>, number]) =>
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
    away: (is: boolean) => void (isAway = is),
  };
}

const kept: TicketSecret[] = [];
afterEach(() => Promise.all(kept.splice(0).map((one) => one.stop())));

interface Process extends TicketSecret {
  readonly log: string[];
  /** Every secret that was in force, as it was then. */
  readonly used: string[];
  hex(): string;
}

async function process(
  { notes, now }: Pick<ReturnType<typeof world>, 'notes' | 'now'>,
  file: () => KeyringFile,
  isShared = (): boolean => true,
): Promise<Process> {
  const log: string[] = [];
  const secret = await keepTicketSecret({
    isShared,
    notes,
    keyring: () => openKeyring(file()),
    now,
    log: createLogger({
      level: 'debug',
      format: 'json',
      write: (line) => void log.push((JSON.parse(line) as { event: string }).event),
    }),
  });
  const used: string[] = [];
  secret.follow((one) => used.push(one.toString('hex')));
  kept.push(secret);
  return Object.assign(secret, { log, used, hex: () => secret.current().toString('hex') });
}

const keys = newKeyring('EdDSA');

describe('the secret of TLS tickets', () => {
  test('is the same in all processes on one store, and lies there sealed', async () => {
    const here = world();
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
    expect(name.startsWith(PASSING_NOTE)).toBe(true);
    const note = JSON.stringify((await here.stored.read(name))?.record);
    for (const form of ['hex', 'base64', 'base64url', 'latin1'] as const)
      expect(note).not.toContain(one.current().toString(form).slice(0, 20));
  });

  test('changes with the period, for all at once, and the one before is gone from memory and store', async () => {
    const here = world();
    const [one, two] = [await process(here, () => keys), await process(here, () => keys)];
    const first = one.current();
    const before = one.hex();
    const [name = ''] = here.names;
    here.advance(PERIOD / 2 + 1);
    one.look();
    expect(one.hex()).not.toBe(before);
    two.look();
    await soon(() => expect(two.hex()).toBe(one.hex()));
    expect(one.hex()).not.toBe(before);
    expect(first.every((byte) => byte === 0)).toBe(true);
    here.advance(300);
    expect(await here.stored.read(name)).toBeUndefined();
  });

  test('of the next period is fetched before it begins, so that a store that is away just then is not missed', async () => {
    const here = world();
    const [one, two] = [await process(here, () => keys), await process(here, () => keys)];
    const before = one.hex();
    here.advance(PERIOD / 2 - 60);
    for (const each of [one, two]) each.look();
    await soon(() => expect(new Set(here.names).size).toBe(2));
    expect([one.hex(), two.hex()]).toEqual([before, before]);
    await soon(async () => expect(await here.stored.read(here.names.at(-1) ?? '')).toBeDefined());
    // One turn of the event loop: what was fetched is put aside.
    await new Promise(setImmediate);
    here.away(true);
    here.advance(61);
    for (const each of [one, two]) each.look();
    expect(one.hex()).toBe(two.hex());
    expect(one.hex()).not.toBe(before);
    // From the one to the other, with nothing in between.
    expect(one.used).toEqual([before, one.hex()]);
    expect(one.log).toEqual([]);
  });

  test('is one of its own while the store is away, never the old one, and the shared one when it is back', async () => {
    const here = world();
    const [one, two] = [await process(here, () => keys), await process(here, () => keys)];
    const before = one.hex();
    here.away(true);
    here.advance(PERIOD / 2 + 1);
    for (const each of [one, two]) each.look();
    expect(new Set([before, one.hex(), two.hex()]).size).toBe(3);
    await soon(() => expect(one.log).toEqual(['tickets_not_shared']));
    here.away(false);
    here.advance(6);
    for (const each of [one, two]) each.look();
    await soon(() => expect(one.hex()).toBe(two.hex()));
    expect(one.used).not.toContain(Buffer.alloc(32).toString('hex'));
    expect(one.used.filter((secret) => secret === before)).toHaveLength(1);
    await soon(() => expect(one.log).toEqual(['tickets_not_shared', 'tickets_shared_again']));
  });

  test('is there from the start, also when the store is not', async () => {
    const here = world();
    here.away(true);
    const one = await process(here, () => keys);
    expect(one.current().some((byte) => byte !== 0)).toBe(true);
    expect(one.log).toEqual(['tickets_not_shared']);
  });

  test('is another one when the keys were rotated, from the moment the new key is active', async () => {
    const here = world();
    let file = keys;
    const [one, two] = [await process(here, () => file), await process(here, () => file)];
    const before = one.hex();
    file = rotateKeyring(keys, { alg: 'EdDSA', now: here.now(), publishBefore: 600 });
    for (const each of [one, two]) each.look();
    expect([one.hex(), two.hex()]).toEqual([before, before]);
    here.advance(601);
    one.look();
    expect(one.hex()).not.toBe(before);
    two.look();
    await soon(() => expect(one.hex()).toBe(two.hex()));
    expect(two.hex()).not.toBe(before);
  });

  test('under other keys does not open, and what was put in its place by somebody else is not taken', async () => {
    const here = world();
    const one = await process(here, () => keys);
    const [name = ''] = here.names;
    const [sealing] = openKeyring(keys).sealingKeys;
    if (sealing === undefined) throw new Error('a keyring has a sealing key');
    const sound = (await here.stored.read(name))?.record['sealed'] ?? '';
    expect(openSecret(sealing, name, sound)?.toString('hex')).toBe(one.hex());
    const [other] = openKeyring(newKeyring('EdDSA')).sealingKeys;
    expect(other && openSecret(other, name, sound)).toBeUndefined();
    const ofAnotherTime = sealSecret(sealing, `${name}0`, one.current());
    const bytes = Buffer.from(sound, 'base64url');
    const forged = Array.from(bytes.keys(), (at) => {
      const copy = Buffer.from(bytes);
      copy[at] = (copy[at] ?? 0) ^ 1;
      return copy.toString('base64url');
    });
    for (const sealed of [ofAnotherTime, sound.slice(0, 20), sound.slice(0, -2), '', ...forged])
      expect(openSecret(sealing, name, sealed)).toBeUndefined();
    for (const sealed of [ofAnotherTime, 'x']) {
      const put = {
        ...here.notes,
        read: async () => ({ record: { sealed }, version: '1' as never, now: 0 }),
      };
      const victim = await process({ notes: put, now: here.now }, () => keys);
      expect(victim.hex()).not.toBe(one.hex());
      expect(victim.log).toEqual(['tickets_not_shared']);
    }
  });

  test('of a process is its own, changes with the period too, and the store hears nothing of it', async () => {
    const here = world();
    const own = () => false;
    const [one, two] = [await process(here, () => keys, own), await process(here, () => keys, own)];
    const before = one.hex();
    expect(two.hex()).not.toBe(before);
    one.look();
    expect(one.hex()).toBe(before);
    here.advance(PERIOD);
    one.look();
    expect(one.hex()).not.toBe(before);
    expect(here.names).toEqual([]);
  });

  test('moves from one kind to the other by a reload', async () => {
    const here = world();
    let isShared = true;
    const one = await process(
      here,
      () => keys,
      () => isShared,
    );
    const two = await process(here, () => keys);
    const common = one.hex();
    isShared = false;
    one.look();
    expect(one.hex()).not.toBe(common);
    isShared = true;
    one.look();
    await soon(() => expect(one.hex()).toBe(two.hex()));
  });

  test('a keyring without an active key costs the sharing and nothing else', async () => {
    const here = world();
    let file = keys;
    const one = await process(here, () => file);
    const before = one.hex();
    const ended = { retireAt: here.now() - 1 };
    file = {
      ...keys,
      signing: keys.signing.map((key) => ({ ...key, ...ended })),
      sealing: keys.sealing.map((key) => ({ ...key, ...ended })),
    };
    one.look();
    const alone = one.hex();
    expect(alone).not.toBe(before);
    one.look();
    expect(one.hex()).toBe(alone);
    expect(one.log).toEqual(['tickets_not_shared']);
  });
});
