import { createHmac, hash, randomBytes } from 'node:crypto';
import { isEqualConstantTime } from '../lib/constant-time.ts';

interface StoredSession {
  /** Digest of the token or the certificate of the sign-in. */
  readonly credential: string;
  readonly startedAt: number;
  readonly usedAt: number;
}

interface ConsoleSessionsOptions {
  /** Seconds. */
  readonly lifetime: number;
  readonly now: () => number;
}

const MAX_SESSIONS = 64;
const IDLE_SECONDS = 3_600;
const COOKIE_VALUE = /^[A-Za-z0-9_-]{43}$/;

export const isCookieValue = (value: string | undefined): value is string =>
  value !== undefined && COOKIE_VALUE.test(value);

/**
 * The sessions of the console, in memory. A browser has a random cookie before it signs in, which only serves to bind the
 * sign-in form to it; signing in replaces it.
 */
export class ConsoleSessions {
  readonly #options: ConsoleSessionsOptions;
  readonly #formKey = randomBytes(32);
  /** By digest of the cookie; the least recently used first. */
  readonly #sessions = new Map<string, StoredSession>();

  constructor(options: ConsoleSessionsOptions) {
    this.#options = options;
  }

  createCookieValue(): string {
    return randomBytes(32).toString('base64url');
  }

  /** Returns the value of the new cookie. */
  start(credential: string): string {
    const value = this.createCookieValue();
    const time = this.#options.now();
    for (const [id, session] of this.#sessions) if (this.#isExpired(session)) this.#sessions.delete(id);
    if (this.#sessions.size >= MAX_SESSIONS) this.#endOldest();
    this.#sessions.set(hash('sha256', value), { credential, startedAt: time, usedAt: time });
    return value;
  }

  /** The credential of a session that has not ended. Its idle time restarts. */
  find(value: string): string | undefined {
    const id = hash('sha256', value);
    const session = this.#sessions.get(id);
    if (session === undefined) return undefined;
    this.#sessions.delete(id);
    if (this.#isExpired(session)) return undefined;
    this.#sessions.set(id, { ...session, usedAt: this.#options.now() });
    return session.credential;
  }

  end(value: string): void {
    this.#sessions.delete(hash('sha256', value));
  }

  /** Ends the oldest session of the credential with the most sessions, so that a viewer cannot end sessions of operators. */
  #endOldest(): void {
    const byCredential = Map.groupBy(this.#sessions, ([, { credential }]) => credential);
    const [largest] = [...byCredential.values()].toSorted((one, other) => other.length - one.length);
    const [oldest] = largest ?? [];
    if (oldest !== undefined) this.#sessions.delete(oldest[0]);
  }

  /** A CSRF token for one cookie, one form and, where given, what the form is about. */
  createFormToken(value: string, form: string, subject = ''): string {
    return createHmac('sha256', this.#formKey)
      .update(JSON.stringify([value, form, subject]))
      .digest('base64url');
  }

  isValidFormToken(token: string, value: string, form: string, subject?: string): boolean {
    return isEqualConstantTime(token, this.createFormToken(value, form, subject));
  }

  #isExpired({ startedAt, usedAt }: StoredSession): boolean {
    const { lifetime, now } = this.#options;
    const time = now();
    return time >= startedAt + lifetime || time >= usedAt + IDLE_SECONDS || time < startedAt - 60;
  }
}
