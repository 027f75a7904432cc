import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { readBody } from './body.ts';
import type { Call } from './call.ts';
import { isJsonObject, type JsonObject, parseStrictJson } from './strict-json.ts';

export type Encoding = 'json' | 'form';

/** What was sent: names to strings. Unknown names are ignored; a name we know must be a string and stand once. */
export interface Parameters {
  readonly encoding: Encoding;
  /** undefined when missing or empty. */
  get(name: string): string | undefined;
}

/** Of a request whose body is not read. */
export const NO_PARAMETERS: Parameters = { encoding: 'form', get: () => undefined };

/** Read by the answerer before anything else: these have statuses of their own. */
export type Unreadable = { readonly status: 408 | 413; readonly detail: string };

const MAX_BODY = 16 * 1_024;
const ENCODINGS: Readonly<Record<string, Encoding>> = {
  'application/json': 'json',
  'application/x-www-form-urlencoded': 'form',
};

const malformed = (detail: string): Outcome<never> => refused({ reason: 'request_malformed', detail });

export async function readParameters(
  call: Call,
  known: readonly string[],
  accepted: readonly Encoding[],
  seconds: number,
): Promise<Outcome<Parameters> | Unreadable> {
  const { headers } = call.request;
  const [media = '', ...options] = (headers['content-type'] ?? '').split(';');
  const encoding = ENCODINGS[media.trim().toLowerCase()];
  const body = await readBody(call.request, MAX_BODY, seconds);
  switch (body.kind) {
    case 'too_large':
      return { status: 413, detail: 'The request body is larger than 16 KiB.' };
    case 'too_slow':
      return { status: 408, detail: 'The request body did not arrive in time.' };
    case 'broken':
      return malformed('The request body is incomplete.');
    case 'whole':
      break;
  }

  if (encoding === undefined || !accepted.includes(encoding))
    return malformed(`Content-Type must be ${accepted.map((name) => mediaType(name)).join(' or ')}.`);
  for (const option of options) {
    const [name = '', value = ''] = option.split('=').map((part) => part.trim().toLowerCase());
    if (name === 'charset' && value.replaceAll('"', '') !== 'utf-8')
      return malformed('The charset must be UTF-8.');
  }
  if ((headers['content-encoding'] ?? 'identity').trim().toLowerCase() !== 'identity')
    return malformed('The request body must not be compressed.');

  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body.bytes);
  } catch {
    return malformed('The request body is not UTF-8.');
  }
  return encoding === 'json' ? fromJson(text, known) : fromForm(text, known);
}

const mediaType = (encoding: Encoding): string =>
  Object.entries(ENCODINGS).find(([, name]) => name === encoding)?.[0] ?? encoding;

function fromJson(text: string, known: readonly string[]): Outcome<Parameters> {
  let body: JsonObject;
  try {
    const parsed = parseStrictJson(text);
    if (!isJsonObject(parsed)) return malformed('The request body must be a JSON object.');
    body = parsed;
  } catch {
    return malformed('The request body is not JSON, or has a name twice.');
  }
  const values = new Map<string, string>();
  for (const name of known) {
    const value = body[name];
    if (value === undefined) continue;
    if (typeof value !== 'string') return malformed(`${name} must be a string.`);
    values.set(name, value);
  }
  return granted(parameters('json', values));
}

function fromForm(text: string, known: readonly string[]): Outcome<Parameters> {
  const values = new Map<string, string>();
  const seen = new Set<string>();
  for (const pair of text === '' ? [] : text.split('&')) {
    const equals = pair.indexOf('=');
    const name = decodeForm(equals < 0 ? pair : pair.slice(0, equals));
    const value = decodeForm(equals < 0 ? '' : pair.slice(equals + 1));
    if (name === undefined || value === undefined) return malformed('The request body is not form-encoded.');
    if (seen.has(name)) return malformed('A field stands twice in the request body.');
    seen.add(name);
    if (known.includes(name)) values.set(name, value);
  }
  return granted(parameters('form', values));
}

/** Percent-decoding that refuses what is not percent-encoded UTF-8. */
function decodeForm(text: string): string | undefined {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return undefined;
  }
}

const parameters = (encoding: Encoding, values: ReadonlyMap<string, string>): Parameters => ({
  encoding,
  get: (name) => values.get(name) || undefined,
});
