import type { IncomingMessage } from 'node:http';
import { readBody } from '../http/body.ts';
import { isSameOriginForm } from './fetch-metadata.ts';

export type Fields = ReadonlyMap<string, string>;
export type ReadForm =
  | { readonly kind: 'form'; readonly fields: Fields }
  /** It did not come from one of our pages. */
  | { readonly kind: 'foreign' }
  | { readonly kind: 'unreadable'; readonly status: 400 | 408 | 413 };

const MAX_BYTES = 16 * 1_024;
const MAX_FIELDS = 16;

const isFormType = (type: string | undefined): boolean =>
  /^application\/x-www-form-urlencoded *(?:; *charset="?utf-8"?)?$/i.test(type ?? '');

export async function readForm(request: IncomingMessage, origin: string, seconds: number): Promise<ReadForm> {
  const { 'content-type': type, 'content-encoding': coding } = request.headers;
  if (!isSameOriginForm(request.headers, origin) || !isFormType(type)) return { kind: 'foreign' };
  if (coding !== undefined && coding !== 'identity') return { kind: 'unreadable', status: 400 };
  const body = await readBody(request, MAX_BYTES, seconds);
  switch (body.kind) {
    case 'too_large':
      return { kind: 'unreadable', status: 413 };
    case 'too_slow':
      return { kind: 'unreadable', status: 408 };
    case 'broken':
      return { kind: 'unreadable', status: 400 };
    case 'whole':
      break;
  }
  const fields = parseForm(body.bytes.toString('latin1'));
  return fields === undefined ? { kind: 'unreadable', status: 400 } : { kind: 'form', fields };
}

/** Strict: no field twice, nothing but UTF-8, no stray percent sign. Undefined when it is not so. */
export function parseForm(text: string): Fields | undefined {
  const fields = new Map<string, string>();
  if (/[^\x21-\x7e]/.test(text)) return undefined;
  for (const pair of text === '' ? [] : text.split('&')) {
    const at = pair.indexOf('=');
    const name = decoded(at < 0 ? pair : pair.slice(0, at));
    const value = decoded(at < 0 ? '' : pair.slice(at + 1));
    if (name === undefined || value === undefined || fields.has(name) || fields.size >= MAX_FIELDS)
      return undefined;
    fields.set(name, value);
  }
  return fields;
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return undefined;
  }
}
