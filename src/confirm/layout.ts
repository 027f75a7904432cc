import type { Call } from '../http/call.ts';
import { html, type Markup, plain } from './html.ts';
import { STYLE, STYLE_SOURCE } from './style.ts';
import type { Words } from './words.ts';

/** One page, ready for its frame. */
export interface Page {
  readonly status: number;
  readonly title: string;
  readonly body: Markup;
  readonly retryAfter?: number;
  readonly allow?: string;
}

/** Nothing is loaded, nothing runs, nobody frames it, nobody keeps it, nobody learns its address. */
const HEADERS = {
  'content-security-policy': `default-src 'none'; style-src ${STYLE_SOURCE}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'`,
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
  pragma: 'no-cache',
  'x-content-type-options': 'nosniff',
  'x-robots-tag': 'noindex, nofollow',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=(), payment=(), usb=()',
} as const;

// The meta element below: with no referrer at all a browser sends `Origin: null` with our own forms. To our own
// origin it may tell where a form comes from; everyone else still learns nothing.
const frame = (words: Words, brand: string, title: string, body: Markup): Markup => html`<!doctype html>
<html lang="${words.language}" dir="${words.direction}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="same-origin">
<title>${title} – ${plain(brand, 40)}</title>
<style>${{ markup: STYLE }}</style>
</head>
<body>
<header class="brand">${GATE}<span>${plain(brand, 40)}</span></header>
<main>
${body}
</main>
</body>
</html>
`;

const GATE = html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M4 21V10a8 8 0 0 1 16 0v11M2 21h20M9 21v-9.5M15 21v-9.5M9 15h6"/></svg>`;

export interface Sender {
  page(call: Call, page: Page, cookie?: string): void;
  /** After a form: the next page is fetched by GET, so that reloading it sends nothing again. */
  go(call: Call, path: string, cookie?: string): void;
}

export function createSender(words: Words, brand: string): Sender {
  const send = (call: Call, status: number, headers: Record<string, string>, text: string): void => {
    const { request, response } = call;
    if (response.headersSent || response.destroyed) return;
    // A body that was not read to its end must not be taken for the next request.
    if (request.method === 'POST' && !request.complete && request.httpVersionMajor === 1)
      headers['connection'] = 'close';
    response.writeHead(status, { ...HEADERS, 'content-length': String(Buffer.byteLength(text)), ...headers });
    response.end(request.method === 'HEAD' ? undefined : text);
  };
  return {
    page(call, { status, title, body, retryAfter, allow }, cookie) {
      const headers: Record<string, string> = { 'content-type': 'text/html; charset=utf-8' };
      if (retryAfter !== undefined) headers['retry-after'] = String(Math.max(1, Math.ceil(retryAfter)));
      if (allow !== undefined) headers['allow'] = allow;
      if (cookie !== undefined) headers['set-cookie'] = cookie;
      send(call, status, headers, frame(words, brand, title, body).markup);
    },
    go: (call, path, cookie) =>
      send(call, 303, { location: path, ...(cookie !== undefined && { 'set-cookie': cookie }) }, ''),
  };
}
