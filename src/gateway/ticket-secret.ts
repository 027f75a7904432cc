import { randomBytes } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { PASSING_NOTE, type Store } from '../ports/store.ts';
import type { Keyring } from '../tokens/keyring.ts';
import { openSecret, sealSecret } from '../tokens/sealed-secret.ts';

export interface TicketSecretOptions {
  /** Is it to be the same in all workers and replicas? */
  readonly isShared: () => boolean;
  readonly notes: Store['notes'];
  /** Of the configuration in force. */
  readonly keyring: () => Keyring;
  readonly now: () => Epoch;
  readonly log: Logger;
}

export interface TicketSecret {
  /** What tickets are made with now. Overwritten when it has ended. */
  current(): Buffer;
  /** Hands over what is in force, and whatever comes after it. */
  follow(use: (secret: Buffer) => void): void;
  /** Settings or keys have changed: does what the next look would do, now. */
  look(): void;
  /** Before the store closes. */
  stop(): Promise<void>;
}

/** Seconds a secret is in force. All replicas tell the time in the same way, and change together. */
export const PERIOD = 3_600;
/** The next one is fetched so many seconds before it is needed: a store that is away for a moment then is not noticed. */
const AHEAD = 120;
/** It is kept for so many seconds more, for those whose clock is behind. */
const SKEW = 300;
const LOOK_MS = 1_000;
/** Seconds until a store that did not answer is asked again. */
const AGAIN = 5;
const SECRET_BYTES = 32;

/**
 * Keeps the secret of TLS session tickets: drawn at random for each period by whoever comes first, kept in the store under a
 * sealing key, forgotten with its period. There is one at a time. An older one would have to be taken as well for tickets
 * of the last period to count, and is worth less than the certainty that nothing opens them any more.
 */
export async function keepTicketSecret(options: TicketSecretOptions): Promise<TicketSecret> {
  const { isShared, notes, keyring, now, log } = options;
  let inForce: Held = { name: '', secret: randomBytes(SECRET_BYTES), isShared: false };
  /** Fetched for later. */
  let next: Pick<Held, 'name' | 'secret'> | undefined;
  let fetching: Promise<void> | undefined;
  let triedAt: Epoch = 0;
  let isTold = false;
  let use = (_secret: Buffer): void => {};

  const take = (held: Held): void => {
    inForce.secret.fill(0);
    inForce = held;
    use(held.secret);
  };
  const fetchNow = async (wanted: Wanted): Promise<void> => {
    const secret = await fetchSecret(notes, keyring(), wanted);
    if (wanted.name === inForce.name) {
      if (isTold) log.info('tickets_shared_again');
      isTold = false;
      return take({ name: wanted.name, secret, isShared: true });
    }
    next?.secret.fill(0);
    next = { name: wanted.name, secret };
  };
  const failed = (error: unknown): void => {
    // While there is one that is shared, there is time to try again.
    if (inForce.isShared || isTold) return;
    isTold = true;
    log.warn('tickets_not_shared', {
      ...errorFields(error),
      note: 'TLS sessions are resumed by the process they began with; at others they begin anew',
    });
  };
  const fetch = (wanted: Wanted): void => {
    if (fetching !== undefined || Math.abs(now() - triedAt) < AGAIN) return;
    triedAt = now();
    fetching = fetchNow(wanted)
      .catch(failed)
      .finally(() => {
        fetching = undefined;
      });
  };

  const lookFor = (wanted: Wanted, later: Wanted): void => {
    const name = isShared() ? wanted.name : `own ${wanted.name}`;
    if (inForce.name !== name) {
      // A new one is asked for at once, however lately another was.
      triedAt = 0;
      if (next?.name === name) {
        take({ ...next, isShared: true });
        next = undefined;
      }
      // Never the old one for longer than its time: until the new one is there, one that nobody else has.
      else take({ name, secret: randomBytes(SECRET_BYTES), isShared: false });
    }
    if (!isShared()) return;
    if (!inForce.isShared) fetch(wanted);
    else if (later.name !== name && later.name !== next?.name) fetch(later);
  };
  const look = (): void => {
    try {
      lookFor(wantedAt(now(), keyring()), wantedAt(now() + AHEAD, keyring()));
    } catch (error) {
      // No key is active: tickets go on for a period under what nobody else has.
      const name = `none ${Math.floor(now() / PERIOD)}`;
      if (inForce.name !== name) take({ name, secret: randomBytes(SECRET_BYTES), isShared: false });
      failed(error);
    }
  };

  look();
  await fetching;
  const timer = setInterval(look, LOOK_MS).unref();
  return {
    current: () => inForce.secret,
    follow(by) {
      use = by;
      use(inForce.secret);
    },
    look,
    async stop() {
      clearInterval(timer);
      await fetching;
    },
  };
}

interface Held {
  readonly name: string;
  readonly secret: Buffer;
  /** Others have it too, or get it when they ask. */
  readonly isShared: boolean;
}

interface Wanted {
  readonly name: string;
  readonly sealing: string;
  readonly end: Epoch;
}

/** Named by the sealing key as well: new keys bring a new secret with them, and whoever has the old key cannot read it. */
function wantedAt(time: Epoch, keyring: Keyring): Wanted {
  const period = Math.floor(time / PERIOD);
  const { sealing } = keyring.current(time);
  return { name: `${PASSING_NOTE}tickets-${period}-${sealing}`, sealing, end: (period + 1) * PERIOD };
}

async function fetchSecret(
  notes: Store['notes'],
  keyring: Keyring,
  { name, sealing, end }: Wanted,
): Promise<Buffer> {
  const key = keyring.sealing(sealing);
  if (key === undefined) throw new Fault('keys_unavailable', 'the sealing key of now is in the keyring');
  const open = (sealed: string | undefined): Buffer => {
    const secret = openSecret(key, name, sealed ?? '');
    if (secret?.length !== SECRET_BYTES)
      throw new Fault('store_record_unreadable', 'the secret of TLS tickets in the store does not open');
    return secret;
  };
  const found = await notes.read(name);
  if (found !== undefined) return open(found.record['sealed']);
  const secret = randomBytes(SECRET_BYTES);
  const made = await notes.create(name, { sealed: sealSecret(key, name, secret) }, end + SKEW);
  if (made === 'created') return secret;
  secret.fill(0);
  const theirs = await notes.read(name);
  if (theirs === undefined) throw new Fault('store_unavailable', 'the secret of TLS tickets is gone again');
  return open(theirs.record['sealed']);
}
