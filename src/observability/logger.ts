import type { AuditEvent } from './audit-events.ts';
import { redactValue } from './redact.ts';

export type { AuditEvent } from './audit-events.ts';
export type LogLevel = 'debug' | 'info' | 'warn' | 'error';
export type LogValue = string | number | boolean | null | undefined | readonly string[];
/** What a log line may hold: flat, and named one by one where it is written. Objects are not poured into logs. */
export type LogFields = Readonly<Record<string, LogValue>>;

export interface Logger {
  debug(event: string, fields?: LogFields): void;
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  error(event: string, fields?: LogFields): void;
  /** What happened to a grant, and to whom: one line each, never dropped by level. */
  audit(event: AuditEvent, fields?: LogFields): void;
  /** Where lines go that somebody else has put together. */
  readonly output?: LogOutput;
}

export interface LogOutput {
  readonly format: 'json' | 'text';
  /** Stand in every line. */
  readonly fields: LogFields;
  /** In milliseconds. */
  readonly now: () => number;
  takes(level: LogLevel): boolean;
  write(line: string): void;
}

const RANK = { debug: 0, info: 1, warn: 2, error: 3 } as const satisfies Record<LogLevel, number>;

export interface LoggerOptions {
  readonly level: LogLevel;
  readonly format: 'json' | 'text';
  /** Takes whole lines, newline included; one that matters is to be kept where others are given up. */
  readonly write: (line: string, matters?: boolean) => void;
  /** In milliseconds. */
  readonly now?: () => number;
  /** Stand in every line, such as which of several worker processes wrote it. */
  readonly fields?: LogFields;
}

export function createLogger({
  level,
  format,
  write,
  now = Date.now,
  fields: everywhere = {},
}: LoggerOptions): Logger {
  const line = format === 'json' ? jsonLine : textLine;
  const emit = (at: LogLevel, event: string, fields: LogFields): void => {
    if (RANK[at] >= RANK[level])
      write(line(entryOf(new Date(now()), at, event, everywhere, fields)), RANK[at] >= RANK.warn);
  };
  return {
    debug: (event, fields = {}) => emit('debug', event, fields),
    info: (event, fields = {}) => emit('info', event, fields),
    warn: (event, fields = {}) => emit('warn', event, fields),
    error: (event, fields = {}) => emit('error', event, fields),
    audit: (event, fields = {}) => write(line(auditEntry(new Date(now()), event, everywhere, fields)), true),
    output: {
      format,
      fields: everywhere,
      now,
      takes: (at) => RANK[at] >= RANK[level],
      write: (text) => write(text),
    },
  };
}

type Entry = Record<string, LogValue>;

function entryOf(
  time: Date,
  level: LogLevel,
  event: string,
  everywhere: LogFields,
  fields: LogFields,
  audit = false,
): Entry {
  const entry: Entry = { time: time.toISOString(), level };
  if (audit) entry['audit'] = true;
  entry['event'] = event;
  for (const name of Object.keys(everywhere)) entry[name] = everywhere[name];
  for (const name of Object.keys(fields)) entry[name] = redactValue(name, fields[name]);
  return entry;
}

const auditEntry = (time: Date, event: AuditEvent, everywhere: LogFields, fields: LogFields): Entry =>
  entryOf(time, 'info', event, everywhere, fields, true);

/** An audit event as a line of JSON, for a sink of its own. */
export const auditLine = (time: Date, event: AuditEvent, everywhere: LogFields, fields: LogFields): string =>
  jsonLine(auditEntry(time, event, everywhere, fields));

/**
 * JSON without what a terminal or a reader of lines would act on. JSON itself leaves DEL, the C1 controls (one
 * of them begins terminal commands) and two more line ends as they are.
 */
export function quote(value: unknown): string {
  const text = JSON.stringify(value);
  if (!ACTIVE.test(text)) return text;
  return text.replace(/[\u007f-\u009f\u2028\u2029]/g, escaped);
}

const ACTIVE = /[\u007f-\u009f\u2028\u2029]/;
const escaped = (char: string): string => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;

const jsonLine = (entry: LogFields): string => `${quote(entry)}\n`;

function textLine({ time, level, event, ...fields }: LogFields): string {
  const rest = Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${quote(value)}`);
  return `${[String(time).slice(11, 19), String(level).padEnd(5), event, ...rest].join(' ')}\n`;
}

export interface Sink {
  readonly write: (line: string, matters?: boolean) => void;
  readonly flush: () => void;
  /** Lines lost so far. */
  readonly lost: () => number;
}

/** What a reader that has stopped reading may cost: beyond it lines are lost, those that matter later than others. */
const MOST_WAITING = 4 * 1_048_576;
const MOST_THAT_MATTER = 2 * MOST_WAITING;

/** Lines that do not matter more than others wait this long for company, or until there are so many characters. */
const GATHER_MS = 5;
const GATHERED = 65_536;

/**
 * Gathers lines into one write to standard output, and never waits for it: those that matter are written at the end of
 * this turn of the event loop, with all that came before. What could not be written is lost; `onLost` hears of it with
 * the first write that gets through again.
 */
export function stdoutSink(
  stream: NodeJS.WritableStream = process.stdout,
  onLost: (lines: number) => void = () => {},
): Sink {
  let waiting = '';
  let lines = 0;
  let lost = 0;
  let told = 0;
  let timer: NodeJS.Timeout | undefined;
  let isDue = false;
  const flush = (): void => {
    clearTimeout(timer);
    timer = undefined;
    isDue = false;
    if (waiting === '') return;
    const text = waiting;
    const count = lines;
    waiting = '';
    lines = 0;
    stream.write(text, (error) => {
      if (error) lost += count;
      else if (lost > told) {
        const news = lost - told;
        told = lost;
        onLost(news);
      }
    });
  };
  return {
    write(line, matters = false) {
      // A file has no queue, and no such number.
      const queued = ((stream as { readonly writableLength?: number }).writableLength ?? 0) + waiting.length;
      if (queued > (matters ? MOST_THAT_MATTER : MOST_WAITING)) {
        lost += 1;
        return;
      }
      lines += 1;
      waiting += line;
      if (isDue) return;
      if (matters || waiting.length > GATHERED) {
        isDue = true;
        setImmediate(flush);
      } else timer ??= setTimeout(flush, GATHER_MS);
    },
    flush,
    lost: () => lost,
  };
}

/** The parts of an exception that are fit for a log line. */
export function errorFields(error: unknown): LogFields {
  if (!(error instanceof Error)) return { error: String(error) };
  const { code } = error as { code?: unknown };
  return {
    error: error.message,
    ...(typeof code === 'string' && { code }),
    ...(error.cause instanceof Error && { cause: error.cause.message }),
    stack: error.stack
      ?.split('\n')
      .slice(1, 6)
      .map((frame) => frame.trim()),
  };
}
