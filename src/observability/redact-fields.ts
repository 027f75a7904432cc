import { redactText } from '../lib/redact.ts';
import type { LogValue } from './logger.ts';

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
