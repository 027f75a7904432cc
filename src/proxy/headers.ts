import { writeScope } from '../domain/scope.ts';
import { foldedName, foldedNames } from '../http/folded-name.ts';
import { isTraceparent, newTraceparent } from '../observability/trace.ts';
import { CERTIFICATE_HEADERS } from '../tls/forwarded-certificate.ts';
import type { Caller } from './admission.ts';
import { type LocationTerms, rewriteLocation } from './location.ts';
import type { RequestHead } from './request-head.ts';

/**
 * Header lists are built, never passed through: hop-by-hop fields and what Connection names go first, then every
 * client-sent copy of a name that is ours, then ours are set. Lists are flat, as node and undici take them.
 */
export interface HeaderPolicy {
  /** Names that tell the upstream who is calling. */
  readonly user: string;
  readonly clientId: string;
  readonly scope: string;
  /** The name of our own session cookie: it concerns no upstream. */
  readonly cookie: string;
  /** Other names that only we write. */
  readonly reserved?: readonly string[];
}

/** `dropped`: ends here, or is written anew by us or by the HTTP client. */
type RequestName = 'plain' | 'dropped' | 'authorization' | 'cookie' | 'trace' | 'forwarded';
type AnswerName = 'plain' | 'dropped' | 'set-cookie' | 'server-timing' | 'location';

/** RFC 9110 §7.6.1, and the framing, which is never copied but made from what was read. */
const HOP_BY_HOP = foldedNames([
  'connection',
  'keep-alive',
  'proxy-connection',
  'proxy-authenticate',
  'proxy-authorization',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
]);

/** Names under which an upstream might trust what a client sends. */
const RESERVED = foldedNames([
  'forwarded',
  'x-real-ip',
  'x-client-ip',
  'true-client-ip',
  'x-rewrite-url',
  'x-http-method',
  'x-http-method-override',
  'x-method-override',
  'x-request-id',
  'proxy',
  ...CERTIFICATE_HEADERS,
]);
const RESERVED_PREFIXES = [
  'x-forwarded-',
  'x-original-',
  'x-gatehouse-',
  'x-ssl-',
  'ssl-client-',
  'x-client-cert-',
  'x-amzn-mtls-',
].map(foldedName);
/** Forwarded under their own name only, in any letter case. */
const ONE_SPELLING = foldedNames(['authorization', 'cookie', 'traceparent', 'tracestate']);
/** What a listed proxy in front may tell about its client. */
const TOLD_BY_PROXIES = new Set(['x-forwarded-for', 'x-forwarded-proto', 'x-forwarded-host']);
const HANDLED_APART = foldedNames(['host', 'content-length', 'expect']);
/** Not a field to objects that have it as a property. */
const NO_NAME = '__proto__';

/** Fields of a response whose values are looked at. */
const WATCHED: ReadonlyMap<string, 'set-cookie' | 'server-timing' | 'location'> = new Map([
  ['setcookie', 'set-cookie'],
  ['servertiming', 'server-timing'],
  ['location', 'location'],
]);

export interface ForwardFacts {
  readonly requestId: string;
  readonly peer: string;
  readonly encrypted: boolean;
  /** The peer is a listed proxy: what it says about its client is kept, and its own address added. */
  readonly trustedPeer: boolean;
  readonly host: string;
  readonly forwardAuthorization: boolean;
  readonly caller: Caller | undefined;
  /** The traceparent to send; left out, it is filled in here with the one that is sent. */
  trace?: string | undefined;
}

export interface HeaderRules {
  forUpstream(rawHeaders: readonly string[], head: RequestHead, facts: ForwardFacts): string[];
  forClient(
    rawHeaders: readonly string[],
    status: number,
    requestId: string,
    location?: LocationTerms,
  ): string[];
}

export function headerRules(policy: HeaderPolicy): HeaderRules {
  const identityNames = [policy.user, policy.clientId, policy.scope, ...(policy.reserved ?? [])];
  const ours = foldedNames(identityNames);
  const isReserved = (name: string): boolean =>
    RESERVED.has(name) || ours.has(name) || RESERVED_PREFIXES.some((prefix) => name.startsWith(prefix));

  const classifyRequest = remembering<RequestName>((name) => {
    const lower = name.toLowerCase();
    if (lower === 'authorization' || lower === 'cookie') return lower;
    if (lower === 'traceparent' || lower === 'tracestate') return 'trace';
    const plain = foldedName(name);
    if (TOLD_BY_PROXIES.has(lower) && !ours.has(plain)) return 'forwarded';
    const isDropped =
      lower === NO_NAME ||
      HOP_BY_HOP.has(plain) ||
      HANDLED_APART.has(plain) ||
      ONE_SPELLING.has(plain) ||
      isReserved(plain);
    return isDropped ? 'dropped' : 'plain';
  });
  const classifyAnswer = remembering<AnswerName>((name) => {
    const plain = foldedName(name);
    const watched = WATCHED.get(plain);
    if (watched !== undefined) return watched;
    const isOurs = ours.has(plain) || plain === 'xrequestid' || plain.startsWith('xgatehouse');
    return HOP_BY_HOP.has(plain) || isOurs ? 'dropped' : 'plain';
  });

  return {
    forUpstream(rawHeaders, head, facts) {
      const list: string[] = [];
      const told = new Map<string, string>();
      let trace: string | undefined;
      let traceState: string | undefined;
      for (let at = 0; at < rawHeaders.length; at += 2) {
        const name = rawHeaders[at] ?? '';
        const value = rawHeaders[at + 1] ?? '';
        const kind = classifyRequest(name);
        if (kind === 'dropped' || head.connection?.has(name.toLowerCase()) === true) continue;
        switch (kind) {
          case 'plain':
            list.push(name, value);
            break;
          case 'authorization':
            if (facts.forwardAuthorization) list.push(name, value);
            break;
          case 'cookie': {
            const rest = withoutCookie(value, policy.cookie);
            if (rest !== '') list.push(name, rest);
            break;
          }
          case 'trace':
            if (name.length === 11 && name.toLowerCase() === 'traceparent') trace = value;
            else traceState = traceState === undefined ? value : `${traceState},${value}`;
            break;
          case 'forwarded':
            if (facts.trustedPeer) joinTo(told, name.toLowerCase(), value);
            break;
        }
      }
      if (head.contentLength !== undefined) list.push('content-length', String(head.contentLength));
      pushTrace(list, trace, traceState, facts);
      pushForwarded(list, told, facts);
      if (facts.caller !== undefined) list.push(...identityHeaders(policy, facts.caller));
      return list;
    },

    forClient(rawHeaders, status, requestId, location) {
      const list: string[] = ['X-Request-Id', requestId];
      let named: Set<string> | undefined;
      for (let at = 0; at < rawHeaders.length; at += 2) {
        const name = rawHeaders[at] ?? '';
        if (name.length === 10 && name.toLowerCase() === 'connection')
          for (const option of (rawHeaders[at + 1] ?? '').split(','))
            (named ??= new Set()).add(option.trim().toLowerCase());
      }
      // RFC 9110 §7.6.1: no option can end what is meant for everybody, and the length says where the answer ends.
      named?.delete('content-length');
      for (let at = 0; at < rawHeaders.length; at += 2) {
        const name = rawHeaders[at] ?? '';
        const value = rawHeaders[at + 1] ?? '';
        const kind = classifyAnswer(name);
        if (kind === 'dropped' || named?.has(name.toLowerCase()) === true) continue;
        if (kind === 'set-cookie' && setsCookie(value, policy.cookie)) continue;
        if (kind === 'server-timing' && LOOKS_LIKE_TOKEN.test(value)) continue;
        // RFC 9110 §8.6: no Content-Length in a 204.
        if (status === 204 && name.toLowerCase() === 'content-length') continue;
        list.push(
          name,
          kind === 'location' && location !== undefined ? rewriteLocation(value, location) : value,
        );
      }
      return list;
    },
  };
}

/** Browsers forgive spaces around the name, and send a cookie without a name as if its value began with one. */
const setsCookie = (value: string, name: string): boolean => {
  const set = value
    .replace(/^[\s=]+/, '')
    .split(/[=;]/, 1)[0]
    ?.trimEnd();
  return set !== undefined && isOurs(set, name);
};

/** The session's cookie, and the one that lives while somebody signs in with an OpenID provider. */
const isOurs = (cookie: string, name: string): boolean => cookie === name || cookie === `${name}-openid`;

/** Looked for from its dot backwards: a long text of beginnings would be read again from each of them. */
const LOOKS_LIKE_TOKEN = /(?<=\beyJ[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]/;

/** Header names repeat endlessly. The memory has a bound, so that invented names cannot make it grow. */
function remembering<Kind extends string>(classify: (name: string) => Kind): (name: string) => Kind {
  const known = new Map<string, Kind>();
  return (name) => {
    const remembered = known.get(name);
    if (remembered !== undefined) return remembered;
    const kind = classify(name);
    if (known.size < 1_000 && name.length <= 64) known.set(name, kind);
    return kind;
  };
}

const joinTo = (told: Map<string, string>, name: string, value: string): void => {
  const before = told.get(name);
  told.set(name, before === undefined ? value : `${before}, ${value}`);
};

function withoutCookie(cookies: string, name: string): string {
  if (!cookies.includes(name)) return cookies;
  return cookies
    .split(';')
    .map(bare)
    .filter((cookie) => cookie !== '' && !isOurs(cookie.split('=', 1)[0]?.trim() ?? '', name))
    .join('; ');
}

/** RFC 9110 §5.6.3: less the spaces and tabs around it, and nothing else; a byte of UTF-8 can look like another kind of space. */
function bare(text: string): string {
  let [from, end] = [0, text.length];
  while (from < end && isBlank(text.charCodeAt(from))) from += 1;
  while (end > from && isBlank(text.charCodeAt(end - 1))) end -= 1;
  return text.slice(from, end);
}

const isBlank = (code: number): boolean => code === 0x20 || code === 0x09;

const FORWARDED_HOST = /^[A-Za-z0-9._[\]:-]{1,262}$/;
const FORWARDED_FOR = /^[0-9A-Za-z.:[\]_, -]{1,2048}$/;

function pushForwarded(list: string[], told: ReadonlyMap<string, string>, facts: ForwardFacts): void {
  const before = told.get('x-forwarded-for');
  const chain = before !== undefined && FORWARDED_FOR.test(before) ? `${before}, ${facts.peer}` : facts.peer;
  const proto = told.get('x-forwarded-proto');
  const host = told.get('x-forwarded-host');
  list.push('X-Forwarded-For', chain);
  list.push(
    'X-Forwarded-Proto',
    proto === 'http' || proto === 'https' ? proto : facts.encrypted ? 'https' : 'http',
  );
  if (host !== undefined && FORWARDED_HOST.test(host)) list.push('X-Forwarded-Host', host);
  else if (facts.host !== '') list.push('X-Forwarded-Host', facts.host);
  list.push('X-Request-Id', facts.requestId);
}

/** What follows from a caller alone is written once and remembered with it. */
const identities = new WeakMap<Caller, readonly [string, string, string]>();

const NOBODY = ['', '', ''] as const;

/** Names and values that tell who is calling; the values are empty when nobody in particular is. */
export function identityHeaders(policy: HeaderPolicy, caller: Caller | undefined): string[] {
  const [user, clientId, scope] = caller === undefined ? NOBODY : identityOf(caller);
  return [policy.user, user, policy.clientId, clientId, policy.scope, scope];
}

function identityOf(caller: Caller): readonly [string, string, string] {
  const known = identities.get(caller);
  if (known !== undefined) return known;
  const { identity, clientId } = caller.bearer;
  const values = [headerText(identity), headerText(clientId), headerText(writeScope(caller.scope))] as const;
  identities.set(caller, values);
  return values;
}

/** Printable ASCII as it is; every other byte, and the percent sign, percent-encoded: no name can end a line. */
const headerText = (text: string): string =>
  text.replace(/[^\x20-\x24\x26-\x7e]+/g, (run) =>
    [...Buffer.from(run, 'utf8')]
      .map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`)
      .join(''),
  );

/** W3C Trace Context: kept where there is one, begun where there is none. Our own span stands in it when we record one. */
function pushTrace(
  list: string[],
  parent: string | undefined,
  state: string | undefined,
  facts: ForwardFacts,
): void {
  const known = parent !== undefined && isTraceparent(parent);
  facts.trace ??= known ? parent : newTraceparent();
  list.push('traceparent', facts.trace);
  if (known && state !== undefined) list.push('tracestate', state);
}
