import type { AdminMessage } from '../admin/node-request.ts';
import { formatCookie, parseCookies, readCookie } from '../pages/cookies.ts';
import { CONSOLE_PATH, type ConsolePath, type ConsoleRequest } from './context.ts';
import { isCookieValue } from './sessions.ts';

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

/** Where to go after signing in. */
export function getReturnUrl({ path, query, method, url }: BrowserRequest): string {
  if (path === '/sign-in') return parseReturnUrl(query.get('next') ?? undefined);
  return parseReturnUrl(method === 'GET' ? url : undefined);
}
