import { decodeFormFields } from '../http/form-encoding.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import type { HeaderFields } from '../http/request-head.ts';
import type { BodyReadResult } from '../http/service-request.ts';
import { isSameOriginForm } from './fetch-metadata.ts';

export type FormFields = ReadonlyMap<string, string>;
type FormResult =
  | { readonly kind: 'form'; readonly fields: FormFields }
  /** Not submitted by a page of this origin. */
  | { readonly kind: 'rejected' }
  | { readonly kind: 'unreadable'; readonly status: 400 | 408 | 413 };

const MAX_FORM_BYTES = 16 * 1_024;
const MAX_FIELDS = 16;

const BODY_ERROR_STATUS = { too_large: 413, timeout: 408, aborted: 400 } as const;

const isFormContentType = (type: string | undefined): boolean =>
  /^application\/x-www-form-urlencoded *(?:; *charset="?utf-8"?)?$/i.test(type ?? '');

export async function readForm(
  { headers, rawHeaders }: { readonly headers: HeaderFields; readonly rawHeaders: readonly string[] },
  readBody: (maxBytes: number, seconds: number) => Promise<BodyReadResult>,
  origin: string,
  timeoutSeconds: number,
): Promise<FormResult> {
  const { 'content-encoding': contentEncoding } = headers;
  const type = getSingleHeader(rawHeaders, 'content-type');
  if (!isSameOriginForm(headers, origin) || !isFormContentType(type)) return { kind: 'rejected' };
  if (contentEncoding !== undefined && contentEncoding !== 'identity') return { kind: 'unreadable', status: 400 };
  const body = await readBody(MAX_FORM_BYTES, timeoutSeconds);
  if (body.kind !== 'complete') return { kind: 'unreadable', status: BODY_ERROR_STATUS[body.kind] };
  const fields = parseForm(body.bytes.toString('latin1'));
  return fields === undefined ? { kind: 'unreadable', status: 400 } : { kind: 'form', fields };
}

/** Undefined for repeated fields, invalid UTF-8 and invalid percent-encoding. */
export function parseForm(text: string): FormFields | undefined {
  const fields = new Map<string, string>();
  if (/[^\x21-\x7e]/.test(text)) return undefined;
  for (const field of decodeFormFields(text)) {
    if (field === undefined || fields.has(field[0]) || fields.size >= MAX_FIELDS) return undefined;
    fields.set(...field);
  }
  return fields;
}
