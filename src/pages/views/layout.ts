import { LANGUAGE_NAMES, LANGUAGES, localize } from '../../domain/language.ts';
import { DOCUMENT_HEADERS } from '../../http/document-headers.ts';
import type { Reply } from '../../http/reply.ts';
import { html, type Markup, sanitizeText } from './html.ts';
import type { Messages } from './messages/languages.ts';
import type { Theme } from './theme.ts';

export interface Page {
  readonly status: number;
  readonly title: string;
  readonly body: Markup;
  readonly retryAfter?: number;
  readonly allow?: string;
  /** Kept by the links to other languages. */
  readonly languageQuery?: string;
  /** Target of an automatic redirect by the browser. */
  readonly redirectTo?: string;
  /** Where forms of this page may lead besides this origin: a CSP source. */
  readonly formAction?: string;
}

const createContentPolicy = ({ style, logo }: Theme, formAction = ''): string =>
  [
    "default-src 'none'",
    `style-src ${style.source}`,
    ...(logo === undefined ? [] : ['img-src data:']),
    `form-action 'self'${formAction === '' ? '' : ` ${formAction}`}`,
    "frame-ancestors 'none'",
    "base-uri 'none'",
  ].join('; ');

export const createPageHeaders = (theme: Theme): Readonly<Record<string, string>> => ({
  'content-security-policy': createContentPolicy(theme),
  ...DOCUMENT_HEADERS,
});

interface LayoutOptions {
  readonly messages: Messages;
  /** `language` is appended to its query. */
  readonly currentUrl: string;
}

// The meta element relaxes the `Referrer-Policy` header to same-origin: with `no-referrer`, browsers send `Origin: null`
// with the forms of this page.
export const renderDocument = (language: string, title: string, head: Markup, body: Markup): string =>
  html`<!doctype html>
<html lang="${language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="same-origin">
<title>${title}</title>
${head}
</head>
<body>
${body}
</body>
</html>
`.markup;

export const renderLayout = (
  { messages, currentUrl }: LayoutOptions,
  theme: Theme,
  { title, body, redirectTo, languageQuery }: Page,
): string =>
  renderDocument(
    messages.language,
    `${title} – ${sanitizeText(theme.name, 40)}`,
    html`${redirectTo !== undefined && html`<meta http-equiv="refresh" content="0; url=${redirectTo}">\n`}<style>${{ markup: theme.style.text }}</style>`,
    html`<header class="brand">${theme.logo === undefined ? DEFAULT_LOGO : html`<img src="${theme.logo}" alt="">`}<span>${sanitizeText(theme.name, 40)}</span></header>
<main>
${body}
</main>
${renderFooter(messages, languageQuery === undefined ? currentUrl : `${currentUrl}?${languageQuery}`, theme)}`,
  );

const renderFooter = (messages: Messages, currentUrl: string, { links }: Theme): Markup => html`<footer>
${links.map(({ text, url }) => html`<a href="${url}" rel="noreferrer">${sanitizeText(localize(text, messages.language), 60)}</a>\n`)}<nav class="languages" aria-label="${messages.languageLabel}">${LANGUAGES.map(
  (language) =>
    language === messages.language
      ? html`<b lang="${language}" aria-current="true">${LANGUAGE_NAMES[language]}</b>`
      : html`<a href="${currentUrl}${currentUrl.includes('?') ? '&' : '?'}language=${language}" lang="${language}" hreflang="${language}">${LANGUAGE_NAMES[language]}</a>`,
)}</nav>
</footer>`;

export const DEFAULT_LOGO = html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M4 21V10a8 8 0 0 1 16 0v11M2 21h20M9 21v-9.5M15 21v-9.5M9 15h6"/></svg>`;

/** Responses with the headers of the pages. */
export function createPageReplies(theme: Theme) {
  const pageHeaders = createPageHeaders(theme);
  const cookieHeaders = (cookies: readonly string[]): Reply['headers'] =>
    cookies.length === 0 ? {} : { 'set-cookie': cookies };
  return {
    page(page: Page, layout: LayoutOptions, cookies: readonly string[] = []): Reply {
      const { status, retryAfter, allow, formAction } = page;
      const headers = {
        ...pageHeaders,
        'content-type': 'text/html; charset=utf-8',
        ...cookieHeaders(cookies),
        ...(formAction !== undefined && {
          'content-security-policy': createContentPolicy(theme, formAction),
        }),
        ...(retryAfter !== undefined && { 'retry-after': String(Math.max(1, Math.ceil(retryAfter))) }),
        ...(allow !== undefined && { allow }),
      };
      return { status, headers, body: renderLayout(layout, theme, page) };
    },
    /** 303: a reload of the next page does not submit the form again. */
    redirect: (location: string, cookies: readonly string[] = []): Reply => ({
      status: 303,
      headers: { ...pageHeaders, location, ...cookieHeaders(cookies) },
    }),
  };
}
