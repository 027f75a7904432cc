import { styleText } from 'node:util';
import { redactText } from '../lib/redact.ts';
import { Fault } from '../ports/fault.ts';
import type { AuditEvent } from './audit-events.ts';

/**
 * Secrets must not be passed to the logger in the first place. This removes those that are passed anyway, by their format or
 * by the name of the field.
 */
const SECRET_NAMES = new Set([
  'access_token',
  'refresh_token',
  'subject_token',
  'assertion',
  'logout_token',
  'client_secret',
  'device_code',
  'user_code',
  'code_verifier',
  'password',
  'passwordhash',
  'authorization',
  'cookie',
  'set-cookie',
  'secret',
  'token',
  'key',
]);

/** Random ids of gatehouse: about one in five thousand looks like the beginning of a JWT. */
const GENERATED_ID_FIELDS = new Set(['request_id', 'requestId', 'request', 'grant']);
const ID_PATTERN = /^[A-Za-z0-9_-]{1,24}$/;

export function redactValue(name: string, value: LogValue): LogValue {
  if (typeof value === 'string' && GENERATED_ID_FIELDS.has(name) && ID_PATTERN.test(value)) return value;
  if (typeof value === 'string') return SECRET_NAMES.has(name.toLowerCase()) ? '[redacted]' : redactText(value);
  if (Array.isArray(value)) return value.map((text: string) => redactText(text));
  return value;
}

export type { AuditEvent } from './audit-events.ts';

type LogLevel = 'debug' | 'info' | 'warn' | 'error';
export type LogValue = string | number | boolean | null | undefined | readonly string[];
/** Flat on purpose: nested objects could contain secrets. */
export type LogFields = Readonly<Record<string, LogValue>>;

export interface Logger {
  debug(event: string, fields?: LogFields): void;
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  error(event: string, fields?: LogFields): void;
  /** Logged at every level. */
  audit(event: AuditEvent, fields?: LogFields): void;
  /** For lines that are formatted elsewhere. */
  readonly output?: LogOutput;
}

export interface LogOutput {
  readonly format: 'json' | 'text';
  readonly isColoured?: boolean | undefined;
  /** Added to every line. */
  readonly fields: LogFields;
  /** In milliseconds. */
  readonly now: () => number;
  isEnabled(level: LogLevel): boolean;
  write(line: string): void;
}

const RANK = { debug: 0, info: 1, warn: 2, error: 3 } as const satisfies Record<LogLevel, number>;

export interface LoggerOptions {
  readonly level: LogLevel;
  readonly format: 'json' | 'text';
  /** Text lines have the escape sequences of a terminal. */
  readonly isColoured?: boolean | undefined;
  /** Receives whole lines with a newline. Important lines are dropped last. */
  readonly write: (line: string, isImportant?: boolean) => void;
  /** In milliseconds. */
  readonly now?: () => number;
  /** Added to every line, such as the worker process. */
  readonly fields?: LogFields;
}

export function createLogger({
  level,
  format,
  isColoured,
  write,
  now = Date.now,
  fields: baseFields = {},
}: LoggerOptions): Logger {
  const line = format === 'json' ? formatJsonLine : (entry: LogFields): string => formatTextLine(entry, isColoured);
  const emit = (entryLevel: LogLevel, event: string, fields: LogFields): void => {
    if (RANK[entryLevel] >= RANK[level])
      write(
        line(createEntry(new Date(now()), { level: entryLevel, event }, baseFields, fields)),
        RANK[entryLevel] >= RANK.warn,
      );
  };
  return {
    debug: (event, fields = {}) => emit('debug', event, fields),
    info: (event, fields = {}) => emit('info', event, fields),
    warn: (event, fields = {}) => emit('warn', event, fields),
    error: (event, fields = {}) => emit('error', event, fields),
    audit: (event, fields = {}) => write(line(auditEntry(new Date(now()), event, baseFields, fields)), true),
    output: {
      format,
      isColoured,
      fields: baseFields,
      now,
      isEnabled: (entryLevel) => RANK[entryLevel] >= RANK[level],
      write: (text) => write(text),
    },
  };
}

function createEntry(
  time: Date,
  head: { readonly level: LogLevel; readonly audit?: true; readonly event: string },
  baseFields: LogFields,
  fields: LogFields,
): LogFields {
  const entry: Record<string, LogValue> = { time: time.toISOString(), ...head, ...baseFields };
  for (const name of Object.keys(fields)) entry[name] = redactValue(name, fields[name]);
  return entry;
}

const auditEntry = (time: Date, event: AuditEvent, baseFields: LogFields, fields: LogFields): LogFields =>
  createEntry(time, { level: 'info', audit: true, event }, baseFields, fields);

/** An audit event as a line of JSON, for an audit sink. */
export const formatAuditLine = (time: Date, event: AuditEvent, baseFields: LogFields, fields: LogFields): string =>
  formatJsonLine(auditEntry(time, event, baseFields, fields));

/**
 * Also escapes what JSON.stringify does not: DEL, C1 controls (terminal escape sequences), line separators (U+2028, U+2029), and
 * characters that change the direction of text (UAX #9), with which a client could make a line read differently.
 */
export function quoteJson(value: unknown): string {
  const text = JSON.stringify(value);
  if (!CONTROL_CHARACTERS.test(text)) return text;
  return text.replace(CONTROL_CHARACTERS_ALL, escapeCharacter);
}

const CONTROL_CHARACTERS = /[\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;
const CONTROL_CHARACTERS_ALL = new RegExp(CONTROL_CHARACTERS, 'g');
const escapeCharacter = (char: string): string => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;

const formatJsonLine = (entry: LogFields): string => `${quoteJson(entry)}\n`;

/** Level and event of a text line. */
export function formatTextHead(level: string, event: string, isColoured = false): string {
  const paddedLevel = level.padEnd(5);
  if (!isColoured) return `${paddedLevel} ${event}`;
  const options = { validateStream: false };
  const colours = level === 'error' ? (['red'] as const) : level === 'warn' ? (['yellow'] as const) : [];
  return `${styleText(colours, paddedLevel, options)} ${styleText('bold', event, options)}`;
}

function formatTextLine({ time, level, event, ...fields }: LogFields, isColoured?: boolean): string {
  const rest = Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${quoteJson(value)}`);
  const head = formatTextHead(String(level), String(event), isColoured);
  return `${[String(time).slice(11, 19), head, ...rest].join(' ')}\n`;
}

/** Limits of buffered characters while standard output blocks; beyond them lines are dropped. */
const MAX_BUFFERED = 4 * 1_048_576;
const MAX_BUFFERED_IMPORTANT = 2 * MAX_BUFFERED;

/** Other lines are written in batches after this time or this many characters. */
const FLUSH_INTERVAL_MS = 5;
const FLUSH_THRESHOLD = 65_536;

/**
 * Writes lines to standard output in batches, without waiting for it. Important lines are written at the end of the current
 * turn of the event loop. Lines that cannot be written are dropped; `onLost` is called after the next successful write.
 */
export function createStdoutSink(
  stream: NodeJS.WritableStream = process.stdout,
  onLost: (lines: number) => void = () => {},
) {
  let buffered = '';
  let lines = 0;
  let lost = 0;
  let reported = 0;
  let timer: NodeJS.Timeout | undefined;
  let isFlushScheduled = false;
  const flush = (): void => {
    clearTimeout(timer);
    timer = undefined;
    isFlushScheduled = false;
    if (buffered === '') return;
    const text = buffered;
    const count = lines;
    buffered = '';
    lines = 0;
    stream.write(text, (error) => {
      if (error) lost += count;
      else if (lost > reported) {
        const newlyLost = lost - reported;
        reported = lost;
        onLost(newlyLost);
      }
    });
  };
  return {
    write: (line: string, isImportant = false): void => {
      // Undefined for files, whose writes are synchronous.
      const queued = ((stream as { readonly writableLength?: number }).writableLength ?? 0) + buffered.length;
      if (queued > (isImportant ? MAX_BUFFERED_IMPORTANT : MAX_BUFFERED)) {
        lost += 1;
        return;
      }
      lines += 1;
      buffered += line;
      if (isFlushScheduled) return;
      if (isImportant || buffered.length > FLUSH_THRESHOLD) {
        isFlushScheduled = true;
        setImmediate(flush);
      } else timer ??= setTimeout(flush, FLUSH_INTERVAL_MS);
    },
    flush,
    /** Lines dropped so far. */
    getLostCount: () => lost,
  };
}

/** A failed connection to several addresses is an `AggregateError` without a message. */
const describeCause = (cause: Error & { readonly code?: unknown }): string =>
  cause.message === '' && typeof cause.code === 'string' ? cause.code : cause.message;

export function errorFields(error: unknown): LogFields {
  if (!(error instanceof Error)) return { error: String(error) };
  const { code } = error as { code?: unknown };
  const fields = {
    error: error.message,
    ...(typeof code === 'string' && { code }),
    ...(error.cause instanceof Error && { cause: describeCause(error.cause) }),
  };
  // Where the failure of a dependency was noticed does not matter.
  if (error instanceof Fault) return error.issuer === undefined ? fields : { ...fields, issuer: error.issuer };
  return {
    ...fields,
    stack: error.stack
      ?.split('\n')
      .slice(1, 6)
      .map((frame) => frame.trim()),
  };
}
