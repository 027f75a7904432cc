import type { HeaderFields } from '../http/request-head.ts';

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
