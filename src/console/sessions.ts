import { createHmac, hash, randomBytes } from 'node:crypto';
import type { AdminMessage } from '../admin/node-request.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { formatCookie, parseCookies, readCookie } from '../pages/cookies.ts';
import { CONSOLE_PATH, type ConsolePath, type ConsoleRequest } from './context.ts';

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

/** A request, and what is known about the browser. */
export interface BrowserRequest extends Omit<AdminMessage, 'peer'>, Pick<ConsoleRequest, 'peer' | 'runChecks'> {
  /** Below `/console`; may be unknown. */
  readonly path: ConsolePath;
  /** The origin of the console, as the browser sees it. */
  readonly origin: string;
  readonly cookieName: string;
  /** A well-formed cookie: of a session, or of a browser that has not signed in. */
  readonly cookie: string | undefined;
}

export function readBrowserRequest(
  message: AdminMessage,
  runChecks: BrowserRequest['runChecks'],
): BrowserRequest | { readonly refused: 'host_invalid' | 'not_encrypted' } {
  const { isEncrypted, peer = '', path, headers } = message;
  // The admin token would be readable on the network.
  if (!isEncrypted && !isLoopback(peer)) return { refused: 'not_encrypted' };
  const base = `${isEncrypted ? 'https' : 'http'}://${headers['host']}`;
  if (headers['host'] === undefined || !URL.canParse(base)) return { refused: 'host_invalid' };
  const { origin, port } = new URL(base);
  // Browsers send the cookies of one port to all others of the host: another forwarded port may be another gatehouse.
  const cookieName = `${isEncrypted ? '__Host-' : ''}gatehouse-console-${port || (isEncrypted ? '443' : '80')}`;
  const cookie = readCookie(parseCookies(headers['cookie']), cookieName);
  return {
    ...message,
    path: path.slice(CONSOLE_PATH.length).replace(/\/$/, '') as ConsolePath,
    origin,
    peer,
    runChecks,
    cookieName,
    cookie: isCookieValue(cookie) ? cookie : undefined,
  };
}

const isLoopback = (address: string): boolean => /^(?:::ffff:)?127\.|^::1$/.test(address);

/** An empty value with no lifetime removes the cookie. */
export const formatSessionCookie = ({ cookieName, isEncrypted }: BrowserRequest, value: string, maxAge: number) =>
  formatCookie(cookieName, value, { maxAge, sameSite: 'Strict', path: isEncrypted ? '/' : CONSOLE_PATH });

/** Was it sent by a page of the console? Browsers send the header to loopback addresses and over TLS. */
export function isFromConsole({ headers: { 'sec-fetch-site': site } }: BrowserRequest): boolean {
  return site === undefined || site === 'same-origin';
}

const MAX_RETURN_URL = 1_024;

/** A URL of the console, or its first page. */
export const parseReturnUrl = (url: string | undefined): string =>
  url !== undefined && url.length <= MAX_RETURN_URL && /^\/console(?:[/?][!-[\]-~]*)?$/.test(url) ? url : CONSOLE_PATH;

/** Returns the URL to show after the sign-in. */
export function getReturnUrl({ path, query, method, url }: BrowserRequest): string {
  if (path === '/sign-in') return parseReturnUrl(query.get('next') ?? undefined);
  return parseReturnUrl(method === 'GET' ? url : undefined);
}
