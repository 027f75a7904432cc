import { createHmac } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { flattenString } from '../lib/flat-string.ts';
import { redactStart, redactText } from '../lib/redact.ts';
import { TwoGenerationCache } from '../lib/two-generation-cache.ts';
import { ACCESS_FIELDS, type AccessField } from './access-fields.ts';
import { formatTextHead, type LogOutput, quoteJson } from './logger.ts';

/** A request that has ended. The object may be reused for the next one: do not keep it. */
export interface RequestRecord {
  id: string;
  /** As sent to the upstream. */
  traceparent: string | undefined;
  /** Parent span id, if this request is recorded as a span; empty for a root span. */
  parentSpan: string | undefined;
  clientAddress: string;
  method: string | undefined;
  /** As received; the log omits the query. */
  url: string | undefined;
  status: number;
  aborted: boolean;
  seconds: number;
  upstreamSeconds: number | undefined;
  bytesIn: number | undefined;
  bytesOut: number | undefined;
  rule: string | undefined;
  decision: string | undefined;
  reason: string | undefined;
  identity: string | undefined;
  name: string | undefined;
  clientId: string | undefined;
  grantId: string | undefined;
  upstream: string | undefined;
  originalRequest: string | undefined;
  grpcStatus: number | undefined;
  grpcMethod: string | undefined;
}

export interface AccessLogOptions {
  readonly exclude: readonly AccessField[];
  readonly pseudonymise: readonly AccessField[];
  readonly pseudonymKey?: string;
}

type AccessLog = (record: RequestRecord) => void;

const MAX_PATH = 512;
/** Longest valid client id; clients may send longer ones. */
const MAX_CLIENT_ID = 256;

/** One line per request. Lines are concatenated from cached parts, since this runs on the request path. */
export function createAccessLog(output: LogOutput, options: AccessLogOptions): AccessLog {
  if (!output.isEnabled('info')) return () => {};
  const json = output.format === 'json';
  const pseudonymised = new Set<string>(options.pseudonymise);
  const excluded = new Set<string>(options.exclude);
  // The name would reveal whose pseudonym it is.
  if (pseudonymised.has('identity') || excluded.has('identity')) excluded.add('name');
  const pseudonymise = createPseudonymiser(options.pseudonymKey ?? '');
  /** Text before a value; empty for an excluded field. */
  const prefixes = Object.fromEntries(
    Object.keys(ACCESS_FIELDS).map((name) => [
      name,
      excluded.has(name) ? '' : json ? `,${JSON.stringify(name)}:` : ` ${name}=`,
    ]),
  ) as Record<AccessField, string>;
  const constantFields = Object.entries(output.fields)
    .map(([name, value]) => (json ? `,${JSON.stringify(name)}:${quoteJson(value)}` : ` ${name}=${quoteJson(value)}`))
    .join('');
  const head = flattenString(
    `${json ? '","level":"info","event":"request"' : ` ${formatTextHead('info', 'request', output.isColoured)}`}${constantFields}${prefixes.request_id}`,
  );
  const end = json ? '}\n' : '\n';
  const maskValue = (name: AccessField, value: string): string =>
    pseudonymised.has(name) ? pseudonymise(name, value) : value;
  /** Cached, since many lines have the same millisecond. */
  const formatLineStart = cacheLast((ms: number) => {
    const time = new Date(ms).toISOString();
    return `${json ? `{"time":"${time}` : time.slice(11, 19)}${head}`;
  });
  const createField = (name: AccessField, write: (value: string) => string): ((value: string) => string) =>
    prefixes[name] === '' ? () => '' : cacheRecent((value) => prefixes[name] + write(maskValue(name, value)));
  const from = createField('from', quoteText);
  const method = createField('method', quoteText);
  const grpcMethod = createField('grpc_method', quoteText);
  const rule = createField('rule', quoteText);
  const decision = createField('decision', quoteText);
  const identity = createField('identity', quoteRedacted);
  const userName = createField('name', quoteRedacted);
  const client = createField('client', quoteRedacted);
  // Cached with the other fields of its grant.
  const grant = (value: string): string =>
    prefixes.grant === '' ? '' : prefixes.grant + quoteText(maskValue('grant', value));
  const upstream = createField('upstream', quoteText);
  const status = cacheLast((code: number) => prefixes.status + code);

  const formatDecision = cacheByGrant((record) => {
    const { reason } = record;
    let text = '';
    if (record.rule !== undefined) text += rule(record.rule);
    if (record.decision !== undefined) text += decision(record.decision);
    if (reason !== undefined && prefixes.reason !== '') text += prefixes.reason + quoteRedacted(reason);
    if (record.identity !== undefined) text += identity(record.identity);
    if (record.name !== undefined) text += userName(record.name);
    if (record.clientId !== undefined) text += client(record.clientId.slice(0, MAX_CLIENT_ID));
    if (record.grantId !== undefined) text += grant(record.grantId);
    if (record.upstream !== undefined) text += upstream(record.upstream);
    return text;
  });

  return (record) => {
    const { id, traceparent, originalRequest } = record;
    let line = formatLineStart(output.now()) + quoteText(id);
    if (traceparent !== undefined && prefixes.trace_id !== '')
      line += `${prefixes.trace_id}"${traceparent.slice(3, 35)}"`;
    line += from(record.clientAddress) + method(truncateMethod(record.method ?? ''));
    if (prefixes.path !== '') line += prefixes.path + quoteRedacted(getPath(record.url));
    line += status(record.status);
    if (record.grpcStatus !== undefined && prefixes.grpc_status !== '')
      line += prefixes.grpc_status + record.grpcStatus;
    if (record.grpcMethod !== undefined) line += grpcMethod(record.grpcMethod);
    if (record.aborted) line += `${prefixes.aborted}true`;
    line += prefixes.ms + formatMilliseconds(record.seconds);
    if (record.upstreamSeconds !== undefined && prefixes.upstream_ms !== '')
      line += prefixes.upstream_ms + formatMilliseconds(record.upstreamSeconds);
    if (record.bytesIn !== undefined && prefixes.bytes_in !== '') line += prefixes.bytes_in + record.bytesIn;
    if (record.bytesOut !== undefined && prefixes.bytes_out !== '') line += prefixes.bytes_out + record.bytesOut;
    line += formatDecision(record);
    if (originalRequest !== undefined && prefixes.original !== '')
      line += prefixes.original + quoteText(redactStart(originalRequest, MAX_PATH));
    output.write(line + end);
  };
}

const MAX_METHOD = 32;

/** With HTTP/2, a rejected method can be as long as a request head. */
const truncateMethod = (method: string): string => (method.length > MAX_METHOD ? method.slice(0, MAX_METHOD) : method);

const CACHE_SIZE = 1_024;
const MAX_KEY_LENGTH = 256;

function cacheRecent(write: (value: string) => string): (value: string) => string {
  const cache = new TwoGenerationCache<string>(CACHE_SIZE, MAX_KEY_LENGTH);
  return (value) => {
    const cached = cache.get(value);
    if (cached !== undefined) return cached;
    const text = flattenString(write(value));
    cache.set(value, text);
    return text;
  };
}

/** The formatted part of a line, and the values it was formatted from. */
interface CachedDecision {
  readonly rule: string | undefined;
  readonly decision: string | undefined;
  readonly identity: string | undefined;
  readonly name: string | undefined;
  readonly clientId: string | undefined;
  readonly upstream: string | undefined;
  text: string;
  isFlat: boolean;
}

const MAX_CACHED_LENGTH = 1_024;

/** Requests with one grant usually match the same rule, so this part of their lines is cached by grant. */
function cacheByGrant(write: (record: RequestRecord) => string): (record: RequestRecord) => string {
  const grants = new TwoGenerationCache<CachedDecision>(CACHE_SIZE, MAX_KEY_LENGTH);
  return (record) => {
    const { rule, grantId, reason, decision, identity, name, clientId, upstream } = record;
    if (grantId === undefined || reason !== undefined) return write(record);
    const cached = grants.get(grantId);
    if (
      cached !== undefined &&
      cached.rule === rule &&
      cached.decision === decision &&
      cached.identity === identity &&
      cached.name === name &&
      cached.clientId === clientId &&
      cached.upstream === upstream
    ) {
      if (!cached.isFlat) {
        cached.isFlat = true;
        cached.text = flattenString(cached.text);
      }
      return cached.text;
    }
    const text = write(record);
    const size = text.length + (identity?.length ?? 0) + (clientId?.length ?? 0);
    if (size <= MAX_CACHED_LENGTH)
      grants.set(grantId, { rule, decision, identity, name, clientId, upstream, text, isFlat: false });
    return text;
  };
}

/** Needs no escaping, in JSON or on a terminal. */
const SAFE_TEXT = /^[\x20\x21\x23-\x5b\x5d-\x7e]*$/;
const quoteText = (text: string): string => (SAFE_TEXT.test(text) ? `"${text}"` : quoteJson(text));
/** For client input, which may contain secrets. */
const quoteRedacted = (text: string): string => quoteText(redactText(text));

/** Tenths of milliseconds; most durations are short enough to be in this table. */
const SMALL_NUMBERS = Array.from({ length: 1_000 }, (_, tenths) => String(tenths / 10));
function formatMilliseconds(seconds: number): string {
  const tenths = Math.round(seconds * 10_000);
  return SMALL_NUMBERS[tenths] ?? String(tenths / 10);
}

const getPath = (url = ''): string => {
  const query = url.indexOf('?');
  const path = query < 0 ? url : url.slice(0, query);
  return path.length <= MAX_PATH ? path : redactStart(path, MAX_PATH);
};

function cacheLast<T>(compute: (value: T) => string): (value: T) => string {
  let last: T | undefined;
  let text = '';
  return (value) => {
    if (value !== last) {
      last = value;
      text = compute(value);
    }
    return text;
  };
}

const MAX_PSEUDONYMS = 10_000;

/** Equal values of one field have equal pseudonyms; equal values of different fields do not. */
function createPseudonymiser(key: string): (name: string, value: string) => string {
  const cache = new LRUCache<string, string>({ max: MAX_PSEUDONYMS });
  return (name, value) => {
    const text = `${name}\0${value}`;
    let found = cache.get(text);
    if (found === undefined) {
      found = `~${createHmac('sha256', key).update(text).digest('base64url').slice(0, 22)}`;
      cache.set(text, found);
    }
    return found;
  };
}
