import { formatScope, type Scope } from '../../domain/scope.ts';
import { foldFieldName, foldFieldNames, memoizeByFieldName, sliceTrimmed } from '../../http/fold-field-name.ts';
import type { RequestHead } from '../../http/request-head.ts';
import { filterTrailers } from '../../http/trailers.ts';
import { createHiddenProperty } from '../../lib/hidden-property.ts';
import { isTraceparent, newTraceparent } from '../../observability/trace-context.ts';
import { CERTIFICATE_HEADERS } from '../../x509/forwarded-certificate.ts';
import type { Caller } from './authorize.ts';
import { type LocationRewrite, rewriteLocation } from './upstream-rewriter.ts';

/**
 * Header lists are built, never passed through: hop-by-hop fields and those that Connection names are dropped, then every
 * client-sent copy of a name that gatehouse writes, then gatehouse's fields are added. Lists are flat, like `rawHeaders`.
 */
export interface HeaderPolicy {
  /** Names of the fields that identify the caller to the upstream. */
  readonly user: string;
  readonly clientId: string;
  readonly scope: string;
  /** Names of the fields with the caller's profile; undefined: not sent. */
  readonly name?: string | undefined;
  readonly email?: string | undefined;
  readonly groups?: string | undefined;
  /** The session cookie of the confirmation pages, which is not forwarded. */
  readonly cookie: string;
  /** Other names that only gatehouse writes. */
  readonly reserved?: readonly string[];
}

/** `dropped`: not forwarded, or rewritten. */
type RequestFieldKind = 'plain' | 'dropped' | 'authorization' | 'cookie' | 'traceparent' | 'tracestate' | 'forwarded';
type ResponseFieldKind = 'plain' | 'dropped' | 'set-cookie' | 'server-timing' | 'location';

/** RFC 9110 §7.6.1, and the framing, which is rewritten. */
const HOP_BY_HOP = foldFieldNames([
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

/** Fields that an upstream might trust although a client sent them. */
const RESERVED_NAMES = foldFieldNames([
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
].map(foldFieldName);
/** Forwarded only under their exact name, in any letter case. */
const EXACT_NAMES = foldFieldNames(['authorization', 'dpop', 'cookie', 'traceparent', 'tracestate']);
/** What a trusted proxy may say about its client. */
const TRUSTED_PROXY_FIELDS = new Set(['x-forwarded-for', 'x-forwarded-proto', 'x-forwarded-host']);
const REBUILT_FIELDS = foldFieldNames(['host', 'content-length', 'expect']);
/** What a gateway needs to read and to forward a request. */
const CONNECTION_FIELDS: ReadonlySet<string> = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);
/** Objects treat it as their prototype. */
const PROTOTYPE_NAME = '__proto__';

/** Response fields whose values are inspected. */
const INSPECTED_FIELDS: ReadonlyMap<string, 'set-cookie' | 'server-timing' | 'location'> = new Map([
  ['setcookie', 'set-cookie'],
  ['servertiming', 'server-timing'],
  ['location', 'location'],
]);

export interface ForwardInfo {
  readonly requestId: string;
  readonly peer: string;
  readonly encrypted: boolean;
  /** The peer is a trusted proxy: its forwarded fields are kept, and its address is added. */
  readonly isTrustedPeer: boolean;
  readonly host: string;
  readonly forwardAuthorization: boolean;
  readonly caller: Caller | undefined;
  /** The traceparent to send; omitted: the client's, or a new one. */
  readonly trace?: string | undefined;
}

export interface RequestHeaders {
  /** Names and values, without the framing, which the exchange writes. */
  readonly list: string[];
  /** The traceparent among them. */
  readonly trace: string;
}

interface RequestChanges {
  /** Names in lower case. */
  readonly removed: readonly string[];
  /** The value that replaces that of the client; undefined: it is not replaced. */
  readonly cookie?: string;
}

export class HeaderRules {
  readonly #policy: HeaderPolicy;
  readonly #getRequestFieldKind: (name: string) => RequestFieldKind;
  readonly #getResponseFieldKind: (name: string) => ResponseFieldKind;

  constructor(policy: HeaderPolicy) {
    const { user, clientId, scope, name, email, groups, reserved = [] } = policy;
    const ownNames = foldFieldNames(
      [user, clientId, scope, name, email, groups, ...reserved].filter((field) => field !== undefined),
    );
    this.#policy = policy;
    this.#getRequestFieldKind = memoizeByFieldName((name) => classifyRequestField(name, ownNames));
    this.#getResponseFieldKind = memoizeByFieldName((name) => classifyResponseField(name, ownNames));
  }

  buildRequestHeaders(rawHeaders: readonly string[], head: RequestHead, info: ForwardInfo): RequestHeaders {
    const list: string[] = [];
    const forwarded = new Map<string, string>();
    let parent: string | undefined;
    let traceState: string | undefined;
    for (let at = 0; at < rawHeaders.length; at += 2) {
      const name = rawHeaders[at] ?? '';
      const value = rawHeaders[at + 1] ?? '';
      const kind = this.#getRequestFieldKind(name);
      if (kind === 'dropped' || head.connection?.has(name.toLowerCase()) === true) continue;
      switch (kind) {
        case 'plain':
          list.push(name, value);
          break;
        case 'authorization':
          if (info.forwardAuthorization) list.push(name, value);
          break;
        case 'cookie': {
          const rest = removeOwnCookies(value, this.#policy.cookie);
          if (rest !== '') list.push(name, rest);
          break;
        }
        case 'traceparent':
          parent = value;
          break;
        case 'tracestate':
          traceState = traceState === undefined ? value : `${traceState},${value}`;
          break;
        case 'forwarded':
          if (info.isTrustedPeer) appendValue(forwarded, name.toLowerCase(), value);
          break;
      }
    }
    // W3C Trace Context: a valid context is forwarded. A span that gatehouse records becomes the parent.
    const validParent = parent !== undefined && isTraceparent(parent) ? parent : undefined;
    const trace = info.trace ?? validParent ?? newTraceparent();
    list.push('traceparent', trace);
    if (validParent !== undefined && traceState !== undefined) list.push('tracestate', traceState);
    pushForwarded(list, forwarded, info);
    if (info.caller !== undefined) pushIdentity(list, this.#policy, getIdentityValues(info.caller), false);
    return { list, trace };
  }

  /** What a client may not send as a header field, it may not send as a trailer either. */
  buildRequestTrailers(trailers: readonly string[]): readonly string[] | undefined {
    const list: string[] = [];
    for (let at = 0; at + 1 < trailers.length; at += 2) {
      const name = trailers[at] as string;
      if (this.#getRequestFieldKind(name) === 'plain') list.push(name, trailers[at + 1] as string);
    }
    return filterTrailers(list);
  }

  buildResponseTrailers(trailers: readonly string[]): readonly string[] | undefined {
    return filterTrailers(this.buildResponseHeaders(trailers, 200));
  }

  /** What another gateway must change in a request, so that it forwards what `buildRequestHeaders` would. It has set the framing itself. */
  getChanges(
    rawHeaders: readonly string[],
    { forwardAuthorization, isTrustedPeer }: Pick<ForwardInfo, 'forwardAuthorization' | 'isTrustedPeer'>,
  ): RequestChanges {
    const removed: string[] = [];
    const cookies: string[] = [];
    let hasOwnCookies = false;
    for (let at = 0; at < rawHeaders.length; at += 2) {
      const name = (rawHeaders[at] ?? '').toLowerCase();
      const value = rawHeaders[at + 1] ?? '';
      const kind = this.#getRequestFieldKind(name);
      if (kind === 'cookie') {
        const rest = removeOwnCookies(value, this.#policy.cookie);
        hasOwnCookies ||= rest !== value;
        if (rest !== '') cookies.push(rest);
      }
      const isRemoved =
        (kind === 'dropped' && !CONNECTION_FIELDS.has(name)) ||
        (kind === 'authorization' && !forwardAuthorization) ||
        // Gateways write the other two themselves.
        (kind === 'forwarded' && name === 'x-forwarded-host' && !isTrustedPeer);
      if (isRemoved) removed.push(name);
    }
    if (!hasOwnCookies) return { removed };
    return cookies.length === 0 ? { removed: [...removed, 'cookie'] } : { removed, cookie: cookies.join('; ') };
  }

  /** Without `X-Request-Id`. */
  buildResponseHeaders(rawHeaders: readonly string[], status: number, location?: LocationRewrite): string[] {
    const list: string[] = [];
    const connectionOptions = readConnectionOptions(rawHeaders);
    for (let at = 0; at < rawHeaders.length; at += 2) {
      const name = rawHeaders[at] ?? '';
      const value = rawHeaders[at + 1] ?? '';
      const kind = this.#getResponseFieldKind(name);
      if (kind === 'dropped' || connectionOptions?.has(name.toLowerCase()) === true) continue;
      if (kind === 'set-cookie' && setsOwnCookie(value, this.#policy.cookie)) continue;
      if (kind === 'server-timing' && JWT_LIKE.test(value)) continue;
      // RFC 9110 §8.6: no Content-Length in a 204.
      if (status === 204 && name.toLowerCase() === 'content-length') continue;
      const isRewritten = kind === 'location' && location !== undefined;
      list.push(name, isRewritten ? rewriteLocation(value, location) : value);
    }
    return list;
  }
}

function classifyRequestField(name: string, ownNames: ReadonlySet<string>): RequestFieldKind {
  const lower = name.toLowerCase();
  if (lower === 'authorization' || lower === 'cookie') return lower;
  // A proof is a credential for this request, as the token is.
  if (lower === 'dpop') return 'authorization';
  if (lower === 'traceparent' || lower === 'tracestate') return lower;
  const folded = foldFieldName(name);
  if (TRUSTED_PROXY_FIELDS.has(lower) && !ownNames.has(folded)) return 'forwarded';
  const isDropped =
    lower === PROTOTYPE_NAME ||
    HOP_BY_HOP.has(folded) ||
    REBUILT_FIELDS.has(folded) ||
    EXACT_NAMES.has(folded) ||
    RESERVED_NAMES.has(folded) ||
    ownNames.has(folded) ||
    RESERVED_PREFIXES.some((prefix) => folded.startsWith(prefix));
  return isDropped ? 'dropped' : 'plain';
}

function classifyResponseField(name: string, ownNames: ReadonlySet<string>): ResponseFieldKind {
  const folded = foldFieldName(name);
  const inspected = INSPECTED_FIELDS.get(folded);
  if (inspected !== undefined) return inspected;
  const isOwn = ownNames.has(folded) || folded === 'xrequestid' || folded.startsWith('xgatehouse');
  return HOP_BY_HOP.has(folded) || isOwn ? 'dropped' : 'plain';
}

/** RFC 9110 §7.6.1: the fields that a Connection field names. Content-Length is end-to-end and cannot be among them. */
function readConnectionOptions(rawHeaders: readonly string[]): ReadonlySet<string> | undefined {
  let options: Set<string> | undefined;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    if (name.length === 10 && name.toLowerCase() === 'connection')
      for (const option of (rawHeaders[at + 1] ?? '').split(','))
        (options ??= new Set()).add(option.trim().toLowerCase());
  }
  options?.delete('content-length');
  return options;
}

/** Browsers ignore spaces around the name, and send a cookie without a name as if its value began with one. */
const setsOwnCookie = (value: string, name: string): boolean => {
  const cookieName = value
    .replace(/^[\s=]+/, '')
    .split(/[=;]/, 1)[0]
    ?.trimEnd();
  return cookieName !== undefined && isOwnCookie(cookieName, name);
};

/** The session cookie, the one used during a sign-in with an OpenID provider, and those of authorization requests. */
const isOwnCookie = (cookie: string, name: string): boolean =>
  cookie === name || cookie === `${name}-openid` || cookie.startsWith(`${name}-browser`);

/** Matched backwards from the dot: matching forwards takes quadratic time on repeated prefixes. */
const JWT_LIKE = /(?<=\beyJ[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]/;

const appendValue = (forwarded: Map<string, string>, name: string, value: string): void => {
  const previous = forwarded.get(name);
  forwarded.set(name, previous === undefined ? value : `${previous}, ${value}`);
};

function removeOwnCookies(cookies: string, name: string): string {
  if (!cookies.includes(name)) return cookies;
  return cookies
    .split(';')
    .map((cookie) => sliceTrimmed(cookie))
    .filter((cookie) => cookie !== '' && !isOwnCookie(cookie.split('=', 1)[0]?.trim() ?? '', name))
    .join('; ');
}

const FORWARDED_HOST = /^[A-Za-z0-9._[\]:-]{1,262}$/;
const FORWARDED_FOR = /^[0-9A-Za-z.:[\]_, -]{1,2048}$/;

function pushForwarded(list: string[], forwarded: ReadonlyMap<string, string>, info: ForwardInfo): void {
  const forwardedFor = forwarded.get('x-forwarded-for');
  const chain =
    forwardedFor !== undefined && FORWARDED_FOR.test(forwardedFor) ? `${forwardedFor}, ${info.peer}` : info.peer;
  const proto = forwarded.get('x-forwarded-proto');
  const host = forwarded.get('x-forwarded-host');
  list.push('X-Forwarded-For', chain);
  list.push('X-Forwarded-Proto', proto === 'http' || proto === 'https' ? proto : info.encrypted ? 'https' : 'http');
  if (host !== undefined && FORWARDED_HOST.test(host)) list.push('X-Forwarded-Host', host);
  else if (info.host !== '') list.push('X-Forwarded-Host', info.host);
  list.push('X-Request-Id', info.requestId);
}

export interface IdentityValues {
  readonly user: string;
  readonly clientId: string;
  readonly scope: string;
  /** Empty if the profile does not have it. */
  readonly name: string;
  readonly email: string;
  readonly groups: string;
}

const NO_IDENTITY: IdentityValues = { user: '', clientId: '', scope: '', name: '', email: '', groups: '' };
const PROFILE_FIELDS = ['name', 'email', 'groups'] as const;

function pushIdentity(list: string[], policy: HeaderPolicy, values: IdentityValues, sendsEmpty: boolean): void {
  list.push(policy.user, values.user, policy.clientId, values.clientId, policy.scope, values.scope);
  for (const part of PROFILE_FIELDS) {
    const field = policy[part];
    if (field !== undefined && (sendsEmpty || values[part] !== '')) list.push(field, values[part]);
  }
}

/**
 * Names and values that identify the caller to another gateway. Values that are not known are empty, so that the gateway
 * overwrites what a client sent.
 */
export function createIdentityHeaders(policy: HeaderPolicy, caller: Caller | undefined): string[] {
  const list: string[] = [];
  pushIdentity(list, policy, caller === undefined ? NO_IDENTITY : getIdentityValues(caller), true);
  return list;
}

function getIdentityValues(caller: Caller): IdentityValues {
  if (caller.identityValues !== undefined) return caller.identityValues;
  const { identity, clientId, profile = {} } = caller.bearer;
  const values: IdentityValues = {
    user: encodeHeaderValue(identity),
    clientId: encodeHeaderValue(clientId),
    scope: encodeScope(caller.scope),
    name: encodeHeaderValue(profile.name ?? ''),
    email: encodeHeaderValue(profile.email ?? ''),
    groups: encodeGroups(profile.groups ?? []),
  };
  caller.identityValues = values;
  return values;
}

/** Tokens of one scope share it. */
const encodedScopes = createHiddenProperty<Scope, string>();

function encodeScope(scope: Scope): string {
  const known = encodedScopes.get(scope);
  if (known !== undefined) return known;
  const text = encodeHeaderValue(formatScope(scope));
  encodedScopes.set(scope, text);
  return text;
}

/** An upstream that accepts 8 KiB of headers must accept it among the others. */
const MAX_GROUPS_LENGTH = 4_096;

/** Commas within a name are percent-encoded. A list that is too long is omitted: part of it could be taken for all of it. */
function encodeGroups(groups: readonly string[]): string {
  const text = groups.map((group) => encodeHeaderValue(group).replaceAll(',', '%2C')).join(',');
  return text.length <= MAX_GROUPS_LENGTH ? text : '';
}

/**
 * Everything but printable ASCII is percent-encoded, and the percent sign: no name can end a header line. So are spaces at the
 * ends, which recipients remove (RFC 9110 §5.5).
 */
const encodeHeaderValue = (text: string): string =>
  text.replace(/[^\x20-\x24\x26-\x7e]+|^ +| +$/g, (run) =>
    [...Buffer.from(run, 'utf8')].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`).join(''),
  );
