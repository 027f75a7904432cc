import type { IncomingHttpHeaders } from 'node:http';

/**
 * Whether a request can be a person who opens a page or sends one of its forms, by the Fetch Metadata headers
 * (W3C Fetch Metadata §2). A script can neither remove nor set them: names that begin with `Sec-` are forbidden to it.
 * Without them (browsers before 2023, plain HTTP, programs) nothing is known, and other checks decide.
 */
export function isNavigation(headers: IncomingHttpHeaders): boolean {
  // The response of a navigation preload goes to a service worker, which is a script.
  if (headers['service-worker-navigation-preload'] !== undefined || headers['service-worker'] !== undefined)
    return false;
  const { 'sec-fetch-mode': mode, 'sec-fetch-dest': dest, 'sec-fetch-site': site } = headers;
  if (mode === undefined && dest === undefined && site === undefined) return true;
  return mode === 'navigate' && dest === 'document';
}

/**
 * Whether a form was sent by a page of this origin. A browser that sends no referrer sends `Origin: null` with forms
 * (Fetch, "append a request Origin header"); then only `Sec-Fetch-Site` decides.
 */
export function isSameOriginForm(headers: IncomingHttpHeaders, origin: string): boolean {
  const { origin: from, 'sec-fetch-site': site } = headers;
  // `none`: the person sent it again, by reloading or restoring the page.
  if (site !== undefined && site !== 'same-origin' && site !== 'none') return false;
  if (from === 'null') return site === 'same-origin';
  return from === undefined || from === origin;
}
