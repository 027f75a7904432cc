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

const SHOWN_FIELDS = ['act', 'reason', 'identity', 'client', 'scope', 'excess', 'detail'] as const;

const REQUEST_TEXTS: Readonly<Record<string, string>> = {
  refused: 'request refused',
  would_refuse: 'request would be refused (reportOnly)',
  failed: 'request failed',
};

/**
 * A short log for the terminal of the walkthrough: one line per audit event and per refused request, plus warnings and
 * errors. Allowed requests are omitted, and so are requests to the token service, which have audit events.
 */
export function createDemoLog(write: (line: string) => void, resolveName: (identity: string) => string): Logger {
  const logger = createLogger({ level: 'warn', format: 'text', write });
  const writeLine = (text: string, fields: LogFields): void => {
    const { sections } = fields;
    const values = Array.isArray(sections) ? sections : listValues(fields, resolveName);
    const clock = new Date().toISOString().slice(11, 19);
    write(`${clock}  ${[text, values.join(', ')].filter((part) => part !== '').join(': ')}\n`);
  };
  return {
    ...logger,
    info: () => {},
    debug: () => {},
    audit: (event, fields = {}) => {
      if (!OMITTED_EVENTS.has(event)) writeLine(EVENT_TEXTS[event] ?? event.replaceAll('_', ' '), fields);
    },
    output: {
      format: 'json',
      fields: {},
      now: Date.now,
      isEnabled: () => true,
      write: (line) => {
        const request = JSON.parse(line) as Readonly<Record<string, string | undefined>>;
        const { method, path, status, rule, decision = '', reason, identity, client } = request;
        const text = REQUEST_TEXTS[decision];
        if (text === undefined || rule?.startsWith('routes[') === false) return;
        const target = printable(`${method} ${path}`.slice(0, 80));
        writeLine(`${text}: ${target} (${status})`, { reason, identity, client });
      },
    },
  };
}

const listValues = (fields: LogFields, resolveName: (identity: string) => string): readonly string[] =>
  SHOWN_FIELDS.flatMap((name) => {
    const value = fields[name];
    if (typeof value !== 'string' || value === '') return [];
    const text = printable(value.slice(0, 120));
    if (name === 'identity') return [resolveName(text)];
    return [name === 'reason' || name === 'act' ? text.replaceAll('_', ' ') : text];
  });
