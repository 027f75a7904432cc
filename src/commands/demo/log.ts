import { printable } from '../../lib/printable.ts';
import { type AuditEvent, createLogger, type LogFields, type Logger } from '../../observability/logger.ts';

/** Others are shown by name. */
const EVENT_TEXTS: Readonly<Partial<Record<AuditEvent, string>>> = {
  grant_issued: 'token issued',
  grant_refreshed: 'token refreshed',
  grant_denied: 'token denied',
  refresh_retried: 'lost response sent again',
  refresh_reuse: 'used refresh token presented again',
  sign_in: 'signed in',
};

/** Covered by the walkthrough. */
const OMITTED_EVENTS: ReadonlySet<AuditEvent> = new Set(['service_started', 'service_stopped']);

const SHOWN_FIELDS = ['act', 'identity', 'client', 'scope', 'reason', 'excess', 'detail'] as const;

/** A line of the access log. */
interface LoggedRequest {
  readonly method?: string;
  readonly path?: string;
  readonly status?: number;
  readonly rule?: string;
  readonly decision?: string;
  readonly reason?: string;
  readonly identity?: string;
  readonly client?: string;
}

const REQUEST_TEXTS: Readonly<Record<string, string>> = {
  refused: 'request refused',
  would_refuse: 'request would be refused (reportOnly)',
  failed: 'request failed',
};

/**
 * A short log for the terminal of the walkthrough: one line per audit event and per refused request, plus warnings and
 * errors.
 */
export function createDemoLog(write: (line: string) => void, resolveName: (identity: string) => string): Logger {
  const logger = createLogger({ level: 'warn', format: 'text', write });
  const writeLine = (text: string): void => write(`${formatClock()}  ${text}\n`);
  return {
    ...logger,
    info: () => {},
    debug: () => {},
    audit: (event, fields = {}) => {
      const { sections } = fields;
      const detail = Array.isArray(sections) ? `: ${sections.join(', ')}` : formatFields(fields, resolveName);
      if (!OMITTED_EVENTS.has(event)) writeLine(`${EVENT_TEXTS[event] ?? event.replaceAll('_', ' ')}${detail}`);
    },
    output: {
      format: 'json',
      fields: {},
      now: Date.now,
      isEnabled: () => true,
      write: (line) => {
        const text = formatRequest(JSON.parse(line) as LoggedRequest, resolveName);
        if (text !== undefined) writeLine(text);
      },
    },
  };
}

/** Returns undefined for allowed requests, and for requests to the token service, which have audit events. */
function formatRequest(
  { method = '', path = '', status, rule, decision = '', reason = '', identity = '', client = '' }: LoggedRequest,
  resolveName: (identity: string) => string,
): string | undefined {
  const text = REQUEST_TEXTS[decision];
  if (text === undefined || (rule !== undefined && !rule.startsWith('routes['))) return undefined;
  const target = printable(`${method} ${path}`.slice(0, 80));
  const fields = formatFields({ reason, identity, client }, resolveName, ['reason', 'identity', 'client']);
  return `${text}: ${target} (${status})${fields}`;
}

const formatClock = (): string => new Date().toISOString().slice(11, 19);

function formatFields(
  fields: LogFields,
  resolveName: (identity: string) => string,
  names: readonly (typeof SHOWN_FIELDS)[number][] = SHOWN_FIELDS,
): string {
  const parts = names.flatMap((name) => {
    const value = fields[name];
    if (typeof value !== 'string' || value === '') return [];
    const text = printable(value.slice(0, 120));
    if (name === 'identity') return [resolveName(text)];
    return [name === 'reason' || name === 'act' ? text.replaceAll('_', ' ') : text];
  });
  return parts.length === 0 ? '' : `: ${parts.join(', ')}`;
}
