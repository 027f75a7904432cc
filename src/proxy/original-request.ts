import { isMethod } from '../domain/method.ts';
import { hostName } from '../domain/rule-matcher.ts';
import { HOST, isServed } from './request-head.ts';

/**
 * Which request a gateway asks about. Each gateway tells it in its own way: in `X-Forwarded-*` (Traefik, Caddy), in
 * `X-Original-*` (nginx), or as method and path of its own question (Envoy). A gateway may pass on what its client sent
 * under the names it does not write itself, so everything that is told has to agree; nothing is preferred, nothing is
 * filled in.
 */
export interface OriginalRequest {
  readonly method: string;
  /** Path and query as sent, or a whole URL where one was told. */
  readonly url: string;
  /** Undefined when nobody told it. */
  readonly host: string | undefined;
}

export type OriginalReading =
  | { readonly ok: true; readonly original: OriginalRequest }
  | { readonly ok: false; readonly detail: string };

export interface Question {
  readonly method: string;
  readonly host: string;
  /** What stands after `/check` in the question's own target, untouched. */
  readonly rest: string;
  readonly rawHeaders: readonly string[];
}

const METHODS = ['x-forwarded-method', 'x-original-method'] as const;
const PATHS = ['x-forwarded-uri', 'x-original-uri'] as const;
const TOLD: ReadonlySet<string> = new Set([
  ...METHODS,
  ...PATHS,
  'x-original-url',
  'x-forwarded-host',
  'x-forwarded-proto',
]);

/** Traefik says `wss` where a WebSocket is asked for. */
const SCHEME = /^(?:https?|wss?)$/;
const WHOLE_URL = /^(https?):\/\/([^/?#\\]*)(.*)$/i;

const unclear = (detail: string): OriginalReading => ({ ok: false, detail });

export function readOriginal({ method, host, rest, rawHeaders }: Question): OriginalReading {
  const told = new Map<string, string>();
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]?.toLowerCase() ?? '';
    if (!TOLD.has(name)) continue;
    if (told.has(name)) return unclear(`more than one ${name}`);
    told.set(name, rawHeaders[at + 1] ?? '');
  }
  const given = (name: string): string[] => {
    const value = told.get(name);
    return value === undefined ? [] : [value];
  };
  const [url] = given('x-original-url');
  const [, urlScheme, urlHost, urlPath = url] = WHOLE_URL.exec(url ?? '') ?? [];
  const inPath = rest.startsWith('/');

  const paths = [
    ...PATHS.flatMap(given),
    ...(urlPath === undefined ? [] : [urlPath]),
    ...(inPath ? [rest] : []),
  ];
  const [path] = paths;
  if (path === undefined) return unclear('neither a header nor the path names it');
  if (!agree(paths)) return unclear('its path is told in two ways');
  if (!path.startsWith('/')) return unclear('what is told is not a path');

  // With the path in a header the question's own method says nothing: nginx always asks by GET.
  const methods = [...METHODS.flatMap(given), ...(inPath ? [method] : [])];
  const [asked] = methods;
  if (asked === undefined) return unclear('no header names its method');
  if (!agree(methods)) return unclear('its method is told in two ways');
  if (!isMethod(asked) || !isServed(asked)) return unclear('what is told is not a method that is served');

  const hosts = [
    ...given('x-forwarded-host'),
    ...(urlHost === undefined ? [] : [urlHost]),
    ...(inPath ? [host] : []),
  ];
  if (!hosts.every((name) => HOST.test(name))) return unclear('what is told is not a host');
  if (!agree(hosts.map(hostName))) return unclear('its host is told in two ways');

  const [scheme] = given('x-forwarded-proto');
  if (scheme !== undefined && !SCHEME.test(scheme)) return unclear('what is told is not a scheme');
  if (scheme !== undefined && urlScheme !== undefined && scheme !== urlScheme.toLowerCase())
    return unclear('its scheme is told in two ways');

  return { ok: true, original: { method: asked, url: url ?? path, host: hosts[0] } };
}

const agree = (values: readonly string[]): boolean => values.every((value) => value === values[0]);
