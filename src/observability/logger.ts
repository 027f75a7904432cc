import { redactValue } from './redact.ts';

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
}

export const AUDIT_EVENTS = [
  'grant_issued',
  'grant_refreshed',
  'refresh_repeated',
  'refresh_reuse',
  'refresh_rolled_forward',
  'grant_revoked',
  'grant_denied',
  'device_asked',
  'device_confirmed',
  'device_denied',
  'device_closed',
  'device_code_replayed',
  'sign_in',
  'sign_in_failed',
  'code_guess_failed',
  'certificate_names_differ',
  'configuration_changed',
] as const;
export type AuditEvent = (typeof AUDIT_EVENTS)[number];

const RANK = { debug: 0, info: 1, warn: 2, error: 3 } as const satisfies Record<LogLevel, number>;

export interface LoggerOptions {
  readonly level: LogLevel;
  readonly format: 'json' | 'text';
  /** Takes whole lines, newline included. */
  readonly write: (line: string) => void;
  readonly now?: () => Date;
  /** Stand in every line, such as which of several worker processes wrote it. */
  readonly fields?: LogFields;
}

export function createLogger({
  level,
  format,
  write,
  now = () => new Date(),
  fields: everywhere = {},
}: LoggerOptions): Logger {
  const constant = Object.entries(everywhere);
  const line = format === 'json' ? jsonLine : textLine;
  const emit = (at: LogLevel, event: string, fields: LogFields, audit: boolean): void => {
    if (!audit && RANK[at] < RANK[level]) return;
    const entry: Record<string, LogValue> = { time: now().toISOString(), level: at };
    if (audit) entry['audit'] = true;
    entry['event'] = event;
    for (const [name, value] of constant) entry[name] = value;
    for (const name of Object.keys(fields)) entry[name] = redactValue(name, fields[name]);
    write(line(entry));
  };
  return {
    debug: (event, fields = {}) => emit('debug', event, fields, false),
    info: (event, fields = {}) => emit('info', event, fields, false),
    warn: (event, fields = {}) => emit('warn', event, fields, false),
    error: (event, fields = {}) => emit('error', event, fields, false),
    audit: (event, fields = {}) => emit('info', event, fields, true),
  };
}

/**
 * JSON without what a terminal or a reader of lines would act on. JSON itself leaves DEL, the C1 controls (one
 * of them begins terminal commands) and two more line ends as they are.
 */
function quote(value: unknown): string {
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

/**
 * Gathers the lines of one turn of the event loop into one write to standard output. What could not be written is
 * lost; `onLost` hears of it with the first write that gets through again.
 */
export function stdoutSink(
  stream: NodeJS.WritableStream = process.stdout,
  onLost: (writes: number) => void = () => {},
): {
  readonly write: (line: string) => void;
  readonly flush: () => void;
} {
  let waiting = '';
  let lost = 0;
  const written = (error?: Error | null): void => {
    if (error) lost += 1;
    else if (lost > 0) {
      const writes = lost;
      lost = 0;
      onLost(writes);
    }
  };
  const flush = (): void => {
    if (waiting === '') return;
    const lines = waiting;
    waiting = '';
    stream.write(lines, written);
  };
  return {
    write(line) {
      if (waiting === '') setImmediate(flush);
      waiting += line;
    },
    flush,
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
