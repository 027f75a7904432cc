import { HOST_PATTERN, isForwardableMethod } from '../../domain/request-target.ts';
import { normalizeHost } from '../../domain/rule-matcher.ts';
import type { HttpRequest } from '../../http/request-context.ts';
import { isServedMethod } from '../../http/request-head.ts';

/**
 * The request that a gateway asks about. Gateways send it in `X-Forwarded-*` (Traefik, Caddy), in `X-Original-*` (nginx), or
 * as method and path of their own request (Envoy). A gateway may forward client-sent fields under names that it does not
 * write itself, so all sources must agree; none is preferred, and nothing is filled in.
 */
export interface OriginalRequest {
  readonly method: string;
  /** Path and query as sent, or an absolute URL. */
  readonly url: string;
  /** The host, or undefined if no header field names it. */
  readonly host: string | undefined;
}

type OriginalRequestResult =
  | { readonly ok: true; readonly original: OriginalRequest }
  | { readonly ok: false; readonly detail: string };

const METHOD_FIELDS = ['x-forwarded-method', 'x-original-method'] as const;
const PATH_FIELDS = ['x-forwarded-uri', 'x-original-uri'] as const;
const ORIGINAL_REQUEST_FIELDS: ReadonlySet<string> = new Set([
  ...METHOD_FIELDS,
  ...PATH_FIELDS,
  'x-original-url',
  'x-forwarded-host',
  'x-forwarded-proto',
]);

/** Traefik sends `wss` for WebSockets. */
const SCHEME = /^(?:https?|wss?)$/;
const ABSOLUTE_URL = /^(https?):\/\/([^/?#\\]*)(.*)$/i;

const ambiguous = (detail: string): OriginalRequestResult => ({ ok: false, detail });

/** `pathSuffix`: what follows `/check` in the gateway's request target, unchanged. */
export function readOriginalRequest(
  { method, rawHeaders, head: { host } }: HttpRequest,
  pathSuffix: string,
): OriginalRequestResult {
  const values = new Map<string, string>();
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]?.toLowerCase() ?? '';
    if (!ORIGINAL_REQUEST_FIELDS.has(name)) continue;
    if (values.has(name)) return ambiguous(`more than one ${name}`);
    values.set(name, rawHeaders[at + 1] ?? '');
  }
  const getValues = (name: string): string[] => {
    const value = values.get(name);
    return value === undefined ? [] : [value];
  };
  const [url] = getValues('x-original-url');
  const [, urlScheme, urlHost, urlPath = url] = ABSOLUTE_URL.exec(url ?? '') ?? [];
  const isPathBased = pathSuffix.startsWith('/');

  const paths = [
    ...PATH_FIELDS.flatMap(getValues),
    ...(urlPath === undefined ? [] : [urlPath]),
    ...(isPathBased ? [pathSuffix] : []),
  ];
  const [path] = paths;
  if (path === undefined) return ambiguous('no header and no path names it');
  if (!allEqual(paths)) return ambiguous('conflicting paths');
  if (!path.startsWith('/')) return ambiguous('the value is not a path');

  // With the path in a header, the method of the gateway's own request means nothing: nginx always sends GET.
  const methods = [...METHOD_FIELDS.flatMap(getValues), ...(isPathBased ? [method] : [])];
  const [originalMethod] = methods;
  if (originalMethod === undefined) return ambiguous('no header names the method');
  if (!allEqual(methods)) return ambiguous('conflicting methods');
  if (!isForwardableMethod(originalMethod) || !isServedMethod(originalMethod))
    return ambiguous('the method is not supported');

  const hosts = [
    ...getValues('x-forwarded-host'),
    ...(urlHost === undefined ? [] : [urlHost]),
    ...(isPathBased ? [host] : []),
  ];
  if (!hosts.every((name) => HOST_PATTERN.test(name))) return ambiguous('the value is not a host');
  if (!allEqual(hosts.map(normalizeHost))) return ambiguous('conflicting hosts');

  const [scheme] = getValues('x-forwarded-proto');
  if (scheme !== undefined && !SCHEME.test(scheme)) return ambiguous('the value is not a scheme');
  if (scheme !== undefined && urlScheme !== undefined && scheme !== urlScheme.toLowerCase())
    return ambiguous('conflicting schemes');

  return { ok: true, original: { method: originalMethod, url: url ?? path, host: hosts[0] } };
}

const allEqual = (values: readonly string[]): boolean => values.every((value) => value === values[0]);
