import { printable } from '../client/printable.ts';
import { type AuditEvent, createLogger, type LogFields, type Logger } from '../observability/logger.ts';

/** What happened, in words a first-time reader understands. */
const WORDS: Readonly<Record<AuditEvent, string>> = {
  grant_issued: 'token issued',
  grant_refreshed: 'token refreshed',
  refresh_repeated: 'lost answer given again',
  refresh_reuse: 'spent refresh token shown again',
  refresh_rolled_forward: 'token refreshed after recovery',
  grant_revoked: 'grant revoked',
  grant_denied: 'token refused',
  device_asked: 'device asks for confirmation',
  device_confirmed: 'device confirmed',
  device_denied: 'device refused by a person',
  device_closed: 'device closed after wrong passwords',
  device_code_replayed: 'used device code shown again',
  sign_in: 'signed in',
  sign_in_failed: 'sign-in failed',
  code_guess_failed: 'wrong device code typed',
  certificate_names_differ: 'certificate names differ',
  configuration_changed: 'configuration taken up',
  locked_out: 'tried too often',
  keys_changed: 'keys changed',
  record_refused: 'record failed authentication',
  revocations_restored: 'missing revocations put back',
  admin_act: 'administration',
  service_started: 'serving',
  service_stopped: 'ending',
};

/** The story says it in its own words. */
const UNTOLD: ReadonlySet<AuditEvent> = new Set(['service_started', 'service_stopped']);

const TOLD = ['act', 'identity', 'client', 'scope', 'reason', 'excess', 'detail'] as const;

/** A quiet log for a terminal with a story on it: one short line for each event, and everything that is wrong. */
export function demoLog(write: (line: string) => void, nameOf: (identity: string) => string): Logger {
  const plain = createLogger({ level: 'warn', format: 'text', write });
  return {
    ...plain,
    info: () => {},
    debug: () => {},
    audit: (event, fields = {}) => {
      if (!UNTOLD.has(event)) write(`${clock()}  ${WORDS[event]}${told(fields, nameOf)}\n`);
    },
  };
}

const clock = (): string => new Date().toISOString().slice(11, 19);

function told(fields: LogFields, nameOf: (identity: string) => string): string {
  const parts = TOLD.flatMap((name) => {
    const value = fields[name];
    if (typeof value !== 'string' || value === '') return [];
    const text = printable(value.slice(0, 120));
    return [name === 'identity' ? nameOf(text) : name === 'reason' ? text.replaceAll('_', ' ') : text];
  });
  return parts.length === 0 ? '' : `: ${parts.join(', ')}`;
}
