import { inLanguage, LANGUAGES } from '../domain/language.ts';
import type { Call } from '../http/call.ts';
import { html, type Markup, plain } from './html.ts';
import { OWN_NAMES } from './languages.ts';
import type { Look } from './look.ts';
import type { Words } from './words.ts';

/** One page, ready for its frame. */
export interface Page {
  readonly status: number;
  readonly title: string;
  readonly body: Markup;
  readonly retryAfter?: number;
  readonly allow?: string;
  /** The browser goes on there by itself. */
  readonly leadsTo?: string;
}

/** Nothing is loaded, nothing runs, nobody frames it, nobody keeps it, nobody learns its address. */
const headersFor = ({ style, logo }: Look): Readonly<Record<string, string>> => ({
  'content-security-policy': [
    "default-src 'none'",
    `style-src ${style.source}`,
    // The operator's picture is written into the page; from elsewhere none is loaded either way.
    ...(logo === undefined ? [] : ['img-src data:']),
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
  ].join('; '),
  'x-frame-options': 'DENY',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
  pragma: 'no-cache',
  'x-content-type-options': 'nosniff',
  'x-robots-tag': 'noindex, nofollow',
  // With COEP the opener policy is another one than that of a page that sends COOP alone (HTML, "matching cross-origin
  // opener policies"): such a page of the API on the same origin cannot script this one either.
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-embedder-policy': 'require-corp',
  'cross-origin-resource-policy': 'same-origin',
  'origin-agent-cluster': '?1',
  'permissions-policy': 'camera=(), geolocation=(), microphone=(), payment=(), usb=()',
});

/** Where a page stands: its language, and the address at which it can be had in another. */
export interface Frame {
  readonly words: Words;
  /** Takes a query. */
  readonly here: string;
}

// The meta element "referrer": with no referrer at all a browser sends `Origin: null` with our own forms. To our own
// origin it may tell where a form comes from; everyone else still learns nothing.
const frame = (
  { words, here }: Frame,
  look: Look,
  { title, body, leadsTo }: Page,
): Markup => html`<!doctype html>
<html lang="${words.language}" dir="${words.direction}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="same-origin">
${leadsTo !== undefined && html`<meta http-equiv="refresh" content="0; url=${leadsTo}">`}
<title>${title} – ${plain(look.name, 40)}</title>
<style>${{ markup: look.style.text }}</style>
</head>
<body>
<header class="brand">${look.logo === undefined ? GATE : html`<img src="${look.logo}" alt="">`}<span>${plain(look.name, 40)}</span></header>
<main>
${body}
</main>
${foot(words, here, look)}
</body>
</html>
`;

const foot = (words: Words, here: string, { links }: Look): Markup => html`<footer>
${links.map(({ text, url }) => html`<a href="${url}" rel="noreferrer">${plain(inLanguage(text, words.language), 60)}</a>\n`)}<nav class="languages" aria-label="${words.languageLabel}">${LANGUAGES.map(
  (language) =>
    language === words.language
      ? html`<b lang="${language}" aria-current="true">${OWN_NAMES[language]}</b>`
      : html`<a href="${here}?language=${language}" lang="${language}" hreflang="${language}">${OWN_NAMES[language]}</a>`,
)}</nav>
</footer>`;

const GATE = html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M4 21V10a8 8 0 0 1 16 0v11M2 21h20M9 21v-9.5M15 21v-9.5M9 15h6"/></svg>`;

export interface Sender {
  page(call: Call, page: Page, frame: Frame, cookies?: readonly string[]): void;
  /** After a form: the next page is fetched by GET, so that reloading it sends nothing again. */
  go(call: Call, path: string, cookies?: readonly string[]): void;
}

type Headers = Record<string, string | string[]>;

export function createSender(look: Look): Sender {
  const always = headersFor(look);
  const send = (call: Call, status: number, headers: Headers, text: string): void => {
    const { request, response } = call;
    if (response.headersSent || response.destroyed) return;
    // A body that was not read to its end must not be taken for the next request.
    if (request.method === 'POST' && !request.complete && request.httpVersionMajor === 1)
      headers['connection'] = 'close';
    response.writeHead(status, { ...always, 'content-length': String(Buffer.byteLength(text)), ...headers });
    response.end(request.method === 'HEAD' ? undefined : text);
  };
  const setting = (cookies: readonly string[] = []): Headers =>
    cookies.length === 0 ? {} : { 'set-cookie': [...cookies] };
  return {
    page(call, page, where, cookies) {
      const { status, retryAfter, allow } = page;
      const headers: Headers = { 'content-type': 'text/html; charset=utf-8', ...setting(cookies) };
      if (retryAfter !== undefined) headers['retry-after'] = String(Math.max(1, Math.ceil(retryAfter)));
      if (allow !== undefined) headers['allow'] = allow;
      send(call, status, headers, frame(where, look, page).markup);
    },
    go: (call, path, cookies) => send(call, 303, { location: path, ...setting(cookies) }, ''),
  };
}
