import { decodeFormFields } from '../http/form-encoding.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import type { HeaderFields } from '../http/request-head.ts';
import type { BodyReadResult } from '../http/service-request.ts';

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

/** The last two are of older browsers. */
const PREFETCH_FIELDS = ['sec-purpose', 'purpose', 'x-moz'] as const;

/**
 * Whether a request can be a top-level navigation, by its Fetch Metadata headers (W3C Fetch Metadata §2). Scripts can
 * neither set nor remove `Sec-` headers. Requests without them (browsers before 2023, plain HTTP, other clients) pass;
 * the other checks still apply.
 */
export function isNavigation(headers: HeaderFields): boolean {
  // A prefetch or prerender: the user has not opened the page. Browsers load it again when they do.
  if (PREFETCH_FIELDS.some((name) => /prefetch|prerender|preview/i.test(headers[name] ?? ''))) return false;
  // A service worker, which is a script, receives the response to a navigation preload.
  if (headers['service-worker-navigation-preload'] !== undefined || headers['service-worker'] !== undefined)
    return false;
  const { 'sec-fetch-mode': mode, 'sec-fetch-dest': dest, 'sec-fetch-site': site } = headers;
  if (mode === undefined && dest === undefined && site === undefined) return true;
  return mode === 'navigate' && dest === 'document';
}

/**
 * Whether a page of this origin submitted the form. Browsers that send no referrer send `Origin: null` with forms
 * (Fetch, "append a request Origin header"); then `Sec-Fetch-Site` decides.
 */
export function isSameOriginForm(headers: HeaderFields, origin: string): boolean {
  const { origin: originHeader, 'sec-fetch-site': site } = headers;
  // `none`: the user reloaded or restored the page.
  if (site !== undefined && site !== 'same-origin' && site !== 'none') return false;
  if (originHeader === 'null') return site === 'same-origin';
  return originHeader === undefined || originHeader === origin;
}
