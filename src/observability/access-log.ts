import { createHmac } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { ACCESS_FIELDS, type AccessField } from './access-fields.ts';
import { flat } from './flat-text.ts';
import { type LogOutput, quote } from './logger.ts';
import { Recent } from './recent.ts';
import { redactText } from './redact.ts';

/** What is known of a request when it has ended. One that is filled again and again will do: nobody keeps it. */
export interface RequestFacts {
  id: string;
  /** The traceparent it was sent on with. */
  trace: string | undefined;
  /** The span that called us, when this request is recorded as a span. */
  parentSpan: string | undefined;
  from: string;
  method: string | undefined;
  /** As it was sent; the query is cut off here. */
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
  clientId: string | undefined;
  grantId: string | undefined;
  upstream: string | undefined;
  original: string | undefined;
}

export interface AccessTerms {
  readonly exclude: readonly AccessField[];
  readonly pseudonymise: readonly AccessField[];
  readonly pseudonymKey?: string;
}

export type AccessLog = (facts: RequestFacts) => void;

const MAX_PATH = 512;
/** As long as a client id can be; a stranger may send a longer one. */
const MAX_CLIENT_ID = 256;

/**
 * One line for each request: who, what, which rule, what was decided, how long. Put together piece by piece: it is
 * written for every request, and is to cost next to nothing.
 */
export function createAccessLog(output: LogOutput, terms: AccessTerms): AccessLog {
  if (!output.takes('info')) return () => {};
  const json = output.format === 'json';
  const excluded = new Set<string>(terms.exclude);
  const hidden = new Set<string>(terms.pseudonymise);
  const pseudonym = pseudonyms(terms.pseudonymKey ?? '');
  /** What stands before a value; empty for a field that is left out. */
  const before = Object.fromEntries(
    Object.keys(ACCESS_FIELDS).map((name) => [
      name,
      excluded.has(name) ? '' : json ? `,${JSON.stringify(name)}:` : ` ${name}=`,
    ]),
  ) as Record<AccessField, string>;
  const constant = Object.entries(output.fields)
    .map(([name, value]) => (json ? `,${JSON.stringify(name)}:${quote(value)}` : ` ${name}=${quote(value)}`))
    .join('');
  const middle = flat(
    `${json ? '","level":"info","event":"request"' : ' info  request'}${constant}${before.request_id}`,
  );
  const end = json ? '}\n' : '\n';
  const masked = (name: AccessField, value: string): string =>
    hidden.has(name) ? pseudonym(name, value) : value;
  /** How a line begins: many belong to one millisecond. */
  const beginning = lastOnly((ms: number) => {
    const time = new Date(ms).toISOString();
    return `${json ? `{"time":"${time}` : time.slice(11, 19)}${middle}`;
  });
  /** A field with its value; nothing where the field is left out. */
  const field = (name: AccessField, write: (value: string) => string): ((value: string) => string) =>
    before[name] === '' ? () => '' : repeated((value) => before[name] + write(masked(name, value)));
  const from = field('from', quoted);
  const method = field('method', quoted);
  const rule = field('rule', quoted);
  const decision = field('decision', quoted);
  const identity = field('identity', plain);
  const client = field('client', plain);
  const grant = field('grant', quoted);
  const upstream = field('upstream', quoted);
  const status = lastOnly((code: number) => before.status + code);

  /** What was decided, about whom, by which rule. */
  const ruling = repeatedForGrants((facts) => {
    const { reason } = facts;
    let text = '';
    if (facts.rule !== undefined) text += rule(facts.rule);
    if (facts.decision !== undefined) text += decision(facts.decision);
    if (reason !== undefined && before.reason !== '') text += before.reason + plain(reason);
    if (facts.identity !== undefined) text += identity(facts.identity);
    if (facts.clientId !== undefined) text += client(facts.clientId.slice(0, MAX_CLIENT_ID));
    if (facts.grantId !== undefined) text += grant(facts.grantId);
    if (facts.upstream !== undefined) text += upstream(facts.upstream);
    return text;
  });

  return (facts) => {
    const { id, trace, original } = facts;
    let line = beginning(output.now()) + quoted(id);
    if (trace !== undefined && before.trace_id !== '') line += `${before.trace_id}"${trace.slice(3, 35)}"`;
    line += from(facts.from) + method(shortened(facts.method ?? ''));
    if (before.path !== '') line += before.path + plain(pathOf(facts.url));
    line += status(facts.status);
    if (facts.aborted) line += `${before.aborted}true`;
    line += before.ms + milliseconds(facts.seconds);
    if (facts.upstreamSeconds !== undefined && before.upstream_ms !== '')
      line += before.upstream_ms + milliseconds(facts.upstreamSeconds);
    if (facts.bytesIn !== undefined && before.bytes_in !== '') line += before.bytes_in + facts.bytesIn;
    if (facts.bytesOut !== undefined && before.bytes_out !== '') line += before.bytes_out + facts.bytesOut;
    line += ruling(facts);
    if (original !== undefined && before.original !== '')
      line += before.original + plain(original.slice(0, MAX_PATH));
    output.write(line + end);
  };
}

const MAX_METHOD = 32;

/** Over HTTP/2 a method that is refused may be as long as a request head. */
const shortened = (method: string): string =>
  method.length > MAX_METHOD ? method.slice(0, MAX_METHOD) : method;

const SHELF = 1_024;
const LONGEST = 256;

/** Rules, people and clients are named again and again: how one of them is written is worked out once. */
function repeated(write: (value: string) => string): (value: string) => string {
  const recent = new Recent<string>(SHELF, LONGEST);
  return (value) => {
    const known = recent.get(value);
    if (known !== undefined) return known;
    const text = flat(write(value));
    recent.set(value, text);
    return text;
  };
}

/** What a line says about a grant that used a rule, and what it was made from. */
interface Told {
  readonly rule: string | undefined;
  readonly decision: string | undefined;
  readonly identity: string | undefined;
  readonly clientId: string | undefined;
  readonly upstream: string | undefined;
  text: string;
  inOnePiece: boolean;
}

const LONGEST_TOLD = 1_024;

/** The same grant is admitted by the same rule again and again: this part of its lines is worked out once. */
function repeatedForGrants(write: (facts: RequestFacts) => string): (facts: RequestFacts) => string {
  const grants = new Recent<Told>(SHELF, LONGEST);
  return (facts) => {
    const { rule, grantId, reason, decision, identity, clientId, upstream } = facts;
    if (grantId === undefined || reason !== undefined) return write(facts);
    const told = grants.get(grantId);
    if (
      told !== undefined &&
      told.rule === rule &&
      told.decision === decision &&
      told.identity === identity &&
      told.clientId === clientId &&
      told.upstream === upstream
    ) {
      if (!told.inOnePiece) {
        told.inOnePiece = true;
        told.text = flat(told.text);
      }
      return told.text;
    }
    const text = write(facts);
    const size = text.length + (identity?.length ?? 0) + (clientId?.length ?? 0);
    if (size <= LONGEST_TOLD)
      grants.set(grantId, { rule, decision, identity, clientId, upstream, text, inOnePiece: false });
    return text;
  };
}

/** Needs nothing done to it, in JSON or on a terminal. */
const HARMLESS = /^[\x20\x21\x23-\x5b\x5d-\x7e]*$/;
const quoted = (text: string): string => (HARMLESS.test(text) ? `"${text}"` : quote(text));
/** Of somebody else's making: looked through for secrets. */
const plain = (text: string): string => quoted(redactText(text));

/** With one decimal; a number is written faster when it is known by heart, and nearly all are small. */
const SMALL = Array.from({ length: 1_000 }, (_, tenths) => String(tenths / 10));
function milliseconds(seconds: number): string {
  const tenths = Math.round(seconds * 10_000);
  return SMALL[tenths] ?? String(tenths / 10);
}

const pathOf = (url = ''): string => {
  const query = url.indexOf('?');
  const most = query < 0 || query > MAX_PATH ? MAX_PATH : query;
  return url.length <= most ? url : url.slice(0, most);
};

/** Worked out again only when it is asked about something else than last time. */
function lastOnly<T>(work: (value: T) => string): (value: T) => string {
  let last: T | undefined;
  let text = '';
  return (value) => {
    if (value !== last) {
      last = value;
      text = work(value);
    }
    return text;
  };
}

const MOST_PSEUDONYMS = 10_000;

/** Equal values stay equal; the same text in two fields does not. */
function pseudonyms(key: string): (name: string, value: string) => string {
  const known = new LRUCache<string, string>({ max: MOST_PSEUDONYMS });
  return (name, value) => {
    const text = `${name}\0${value}`;
    let found = known.get(text);
    if (found === undefined) {
      found = `~${createHmac('sha256', key).update(text).digest('base64url').slice(0, 22)}`;
      known.set(text, found);
    }
    return found;
  };
}
