import { randomBytes } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { type Store, TRANSIENT_NOTE_PREFIX } from '../ports/store.ts';
import type { SealingKeys } from '../tokens/keyring.ts';
import { decryptSecret, encryptSecret } from '../tokens/sealer.ts';

interface TicketSecretRotationOptions {
  /** Do all workers and replicas share the secret? */
  readonly isShared: () => boolean;
  readonly notes: Store['notes'];
  readonly keyring: () => SealingKeys;
  readonly now: () => Epoch;
  readonly log: Logger;
}

/** Seconds. Periods start at multiples of this time, so all replicas rotate together. */
export const ROTATION_SECONDS = 3_600;
/** Seconds before its period that the next secret is fetched, to bridge a short outage of the store. */
const PREFETCH_SECONDS = 120;
/** Seconds that the record outlives its period, for replicas whose clock is behind. */
const CLOCK_SKEW_SECONDS = 300;
const CHECK_INTERVAL_MS = 1_000;
const RETRY_SECONDS = 5;
const SECRET_BYTES = 32;

interface TicketSecret {
  readonly name: string;
  readonly secret: Buffer;
  /** Stored, so that other processes can use it. */
  readonly isShared: boolean;
}

const createLocalSecret = (name: string): TicketSecret => ({
  name,
  secret: randomBytes(SECRET_BYTES),
  isShared: false,
});

/**
 * Rotates the secret of TLS session tickets. The first process of a period generates it and stores it encrypted with a
 * sealing key; it is deleted after its period. Only one secret is valid at a time: tickets of the previous period cannot be
 * decrypted any more.
 */
export class TicketSecretRotation {
  readonly #options: TicketSecretRotationOptions;
  #active = createLocalSecret('');
  /** The prefetched secret of the next period. */
  #next: TicketSecret | undefined;
  #fetching: Promise<void> | undefined;
  #attemptedAt: Epoch = 0;
  #isFailureReported = false;
  #listener = (_secret: Buffer): void => {};
  #timer: NodeJS.Timeout | undefined;

  private constructor(options: TicketSecretRotationOptions) {
    this.#options = options;
  }

  static async start(options: TicketSecretRotationOptions): Promise<TicketSecretRotation> {
    const rotation = new TicketSecretRotation(options);
    rotation.check();
    await rotation.#fetching;
    rotation.#timer = setInterval(() => rotation.check(), CHECK_INTERVAL_MS).unref();
    return rotation;
  }

  /** The secret of the current period. Zeroed when it is replaced. */
  current(): Buffer {
    return this.#active.secret;
  }

  /** Calls the listener with the current secret and with each new one. */
  subscribe(listener: (secret: Buffer) => void): void {
    this.#listener = listener;
    listener(this.#active.secret);
  }

  /** After a change of settings or keys: checks now instead of at the next interval. */
  check(): void {
    const { now, keyring } = this.#options;
    try {
      this.#update(getSecretSpec(now(), keyring()), getSecretSpec(now() + PREFETCH_SECONDS, keyring()));
    } catch (error) {
      // No key is active: use a random secret for this period.
      const name = `none ${Math.floor(now() / ROTATION_SECONDS)}`;
      if (this.#active.name !== name) this.#activate(createLocalSecret(name));
      this.#reportFailure(error);
    }
  }

  /** Must be called before the store closes. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#fetching;
  }

  #update(spec: SecretSpec, upcoming: SecretSpec): void {
    const isShared = this.#options.isShared();
    const name = isShared ? spec.name : `own ${spec.name}`;
    if (this.#active.name !== name) this.#beginPeriod(name);
    if (!isShared) return;
    if (!this.#active.isShared) this.#startFetch(spec);
    else if (upcoming.name !== name && upcoming.name !== this.#next?.name) this.#startFetch(upcoming);
  }

  #beginPeriod(name: string): void {
    // No need to wait for the retry interval.
    this.#attemptedAt = 0;
    if (this.#next?.name === name) {
      this.#activate(this.#next);
      this.#next = undefined;
    }
    // The old secret never outlives its period: a random one bridges the time until the new one is fetched.
    else this.#activate(createLocalSecret(name));
  }

  #activate(secret: TicketSecret): void {
    this.#active.secret.fill(0);
    this.#active = secret;
    this.#listener(secret.secret);
  }

  #startFetch(spec: SecretSpec): void {
    const { now } = this.#options;
    if (this.#fetching !== undefined || Math.abs(now() - this.#attemptedAt) < RETRY_SECONDS) return;
    this.#attemptedAt = now();
    this.#fetching = this.#fetch(spec)
      .catch((error: unknown) => this.#reportFailure(error))
      .finally(() => {
        this.#fetching = undefined;
      });
  }

  async #fetch(spec: SecretSpec): Promise<void> {
    const { notes, keyring, log } = this.#options;
    const { name } = spec;
    const fetched = { name, secret: await fetchSecret(notes, keyring(), spec), isShared: true };
    if (name !== this.#active.name) {
      this.#next?.secret.fill(0);
      this.#next = fetched;
      return;
    }
    if (this.#isFailureReported) log.info('session_tickets_shared');
    this.#isFailureReported = false;
    this.#activate(fetched);
  }

  #reportFailure(error: unknown): void {
    // While the current secret is shared, a retry is early enough.
    if (this.#active.isShared || this.#isFailureReported) return;
    this.#isFailureReported = true;
    this.#options.log.warn('session_tickets_not_shared', {
      ...errorFields(error),
      note: 'TLS sessions are resumed only by the process that issued the ticket; other processes make a full handshake',
    });
  }
}

type SecretSpec = ReturnType<typeof getSecretSpec>;

/** The name includes the sealing key: a key rotation also rotates the secret. */
function getSecretSpec(time: Epoch, keyring: SealingKeys) {
  const period = Math.floor(time / ROTATION_SECONDS);
  const { kid: sealing } = keyring.getCurrentSealingKey(time);
  return {
    name: `${TRANSIENT_NOTE_PREFIX}tickets-${period}-${sealing}`,
    sealing,
    expires: (period + 1) * ROTATION_SECONDS,
  };
}

async function fetchSecret(
  notes: Store['notes'],
  keyring: SealingKeys,
  { name, sealing, expires }: SecretSpec,
): Promise<Buffer> {
  const key = keyring.getSealingKey(sealing);
  if (key === undefined) throw new Fault('keys_unavailable', 'the current sealing key is not in the keyring');
  const open = (sealed: string | undefined): Buffer => {
    const secret = decryptSecret(key, name, sealed ?? '');
    if (secret?.length !== SECRET_BYTES)
      throw new Fault('store_record_unreadable', 'the TLS session-ticket secret in the store cannot be decrypted');
    return secret;
  };
  const found = await notes.read(name);
  if (found !== undefined) return open(found.record['sealed']);
  const secret = randomBytes(SECRET_BYTES);
  const outcome = await notes.create(name, { sealed: encryptSecret(key, name, secret) }, expires + CLOCK_SKEW_SECONDS);
  if (outcome === 'created') return secret;
  secret.fill(0);
  const existing = await notes.read(name);
  if (existing === undefined)
    throw new Fault('store_unavailable', 'the TLS session-ticket secret was removed from the store');
  return open(existing.record['sealed']);
}
