import { type Outcome, ok, refuseMalformed } from '../domain/refusal.ts';
import { isJsonObject, type JsonObject, parseStrictJson } from '../lib/strict-json.ts';
import { decodeFormFields } from './form-encoding.ts';
import { getSingleHeader } from './raw-headers.ts';
import type { RequestContext } from './request-context.ts';

export type Encoding = 'json' | 'form';

/** Request parameters. Unknown names are ignored; known ones must be strings and must not be repeated. */
export interface Parameters {
  readonly encoding: Encoding;
  /** Undefined if missing or empty. */
  get(name: string): string | undefined;
}

export const NO_PARAMETERS: Parameters = { encoding: 'form', get: () => undefined };

/** These have statuses of their own. */
type UnreadableBody = { readonly status: 408 | 413; readonly detail: string };

const MAX_BODY = 16 * 1_024;
const MEDIA_TYPES: Readonly<Record<Encoding, string>> = {
  json: 'application/json',
  form: 'application/x-www-form-urlencoded',
};

export async function readParameters(
  context: RequestContext,
  known: readonly string[],
  accepted: readonly Encoding[],
  seconds: number,
): Promise<Outcome<Parameters> | UnreadableBody> {
  const { headers, rawHeaders } = context.request;
  // Parsers may use the first or the last of repeated fields.
  const [media = '', ...mediaParameters] = (getSingleHeader(rawHeaders, 'content-type') ?? '').split(';');
  const encoding = accepted.find((name) => MEDIA_TYPES[name] === media.trim().toLowerCase());
  const body = await context.readBody(MAX_BODY, seconds);
  switch (body.kind) {
    case 'too_large':
      return { status: 413, detail: 'The request body is larger than 16 KiB.' };
    case 'timeout':
      return { status: 408, detail: 'The request body did not arrive in time.' };
    case 'aborted':
      return refuseMalformed('The request body is incomplete.');
    case 'complete':
      break;
  }

  if (encoding === undefined)
    return refuseMalformed(`Content-Type must be ${accepted.map((name) => MEDIA_TYPES[name]).join(' or ')}.`);
  for (const option of mediaParameters) {
    const [name = '', value = ''] = option.split('=').map((part) => part.trim().toLowerCase());
    if (name === 'charset' && value.replaceAll('"', '') !== 'utf-8')
      return refuseMalformed('The charset must be UTF-8.');
  }
  if ((headers['content-encoding'] ?? 'identity').trim().toLowerCase() !== 'identity')
    return refuseMalformed('The request body must not be compressed.');

  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body.bytes);
  } catch {
    return refuseMalformed('The request body is not UTF-8.');
  }
  return encoding === 'json' ? parseJsonBody(text, known) : parseFormBody(text, known);
}

function parseJsonBody(text: string, known: readonly string[]): Outcome<Parameters> {
  let body: JsonObject;
  try {
    const parsed = parseStrictJson(text);
    if (!isJsonObject(parsed)) return refuseMalformed('The request body must be a JSON object.');
    body = parsed;
  } catch {
    return refuseMalformed('The request body is not valid JSON, or has a duplicate name.');
  }
  const values = new Map<string, string>();
  for (const name of known) {
    const value = body[name];
    if (value === undefined) continue;
    if (typeof value !== 'string') return refuseMalformed(`${name} must be a string.`);
    values.set(name, value);
  }
  return ok(createParameters('json', values));
}

function parseFormBody(text: string, known: readonly string[]): Outcome<Parameters> {
  const values = new Map<string, string>();
  const seen = new Set<string>();
  for (const field of decodeFormFields(text)) {
    if (field === undefined) return refuseMalformed('The request body is not form-encoded.');
    const [name, value] = field;
    if (seen.has(name)) return refuseMalformed('A field occurs twice in the request body.');
    seen.add(name);
    if (known.includes(name)) values.set(name, value);
  }
  return ok(createParameters('form', values));
}

const createParameters = (encoding: Encoding, values: ReadonlyMap<string, string>): Parameters => ({
  encoding,
  get: (name) => values.get(name) || undefined,
});
