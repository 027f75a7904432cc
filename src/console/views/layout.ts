import { DOCUMENT_HEADERS } from '../../http/document-headers.ts';
import type { Reply } from '../../http/reply.ts';
import { html, type Markup, sanitizeText } from '../../pages/views/html.ts';
import { DEFAULT_LOGO, renderDocument } from '../../pages/views/layout.ts';
import { type ConsolePage, type ConsolePath, type ConsoleRequest, urlFor } from '../context.ts';
import { renderText } from './format.ts';

const NAVIGATION: readonly (readonly [path: ConsolePath, text: string, below: readonly ConsolePath[]])[] = [
  ['', 'Overview', []],
  ['/grants', 'Grants', ['/grant', '/revoke']],
  ['/refusals', 'Refusals', ['/refusal']],
  ['/explain', 'Explain', []],
  ['/configuration', 'Configuration', []],
  ['/audit', 'Audit', []],
];

interface SignedIn {
  readonly request: ConsoleRequest;
  readonly path: ConsolePath;
}

/** A whole page. Without `signedIn`, it has no navigation. */
function renderPage({ title, body }: ConsolePage, signedIn?: SignedIn): string {
  return renderDocument(
    'en',
    `${title} – gatehouse console`,
    html`<link rel="stylesheet" href="/console/console.css">
<script src="/console/console.js" defer></script>`,
    html`<a class="skip" href="#content">Skip to content</a>
<header>
<div class="bar">
<span class="brand">${DEFAULT_LOGO}<span>gatehouse console</span></span>
${signedIn !== undefined && renderNavigation(signedIn.path)}
${signedIn !== undefined && renderAccount(signedIn.request)}
</div>
</header>
<main id="content" tabindex="-1">
${body}
</main>
${signedIn !== undefined && html`<footer>gatehouse ${signedIn.request.deps.version}</footer>`}`,
  );
}

const renderNavigation = (current: ConsolePath): Markup => html`<nav aria-label="Console">
${NAVIGATION.map(([path, text, below]) => {
  const state = path === current ? 'page' : below.includes(current) ? 'true' : undefined;
  return html`<a href="${urlFor(path)}"${state !== undefined && html` aria-current="${state}"`}>${text}</a>\n`;
})}</nav>`;

const renderAccount = ({
  identity,
  renderFormToken,
}: ConsoleRequest): Markup => html`<form class="account" method="post" action="${urlFor('/sign-out')}">
${renderFormToken('/sign-out')}<span>${sanitizeText(identity.name, 60)}${identity.role === 'viewer' && html` <span class="badge">read-only</span>`}</span>
<button class="link" type="submit">Sign out</button>
</form>`;

/** A page with one message. */
export const noticePage = (title: string, text: string, status: number): ConsolePage => ({
  title,
  status,
  body: html`<div class="card narrow">
<h1>${title}</h1>
<p>${renderText(text)}</p>
<p><a href="${urlFor('')}">Open the console</a></p>
</div>`,
});

const SECURITY_HEADERS = {
  'content-security-policy': [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
  ].join('; '),
  ...DOCUMENT_HEADERS,
} as const;

export const createReply = (status: number, headers: Reply['headers'] = {}, body = ''): Reply => ({
  status,
  headers: { ...SECURITY_HEADERS, ...headers },
  body,
});

export const createPageReply = (page: ConsolePage, headers?: Reply['headers'], signedIn?: SignedIn): Reply =>
  createReply(
    page.status ?? 200,
    { 'content-type': 'text/html; charset=utf-8', ...headers },
    renderPage(page, signedIn),
  );

export const createRetryHeaders = (seconds: number): Reply['headers'] => ({
  'retry-after': String(Math.max(1, Math.ceil(seconds))),
});

/** The script of the console, served as a file. Every page works without it: it shows local times. */
export const SCRIPT = `'use strict';
for (const element of document.querySelectorAll('time[datetime]')) {
  const date = new Date(element.dateTime);
  if (!Number.isNaN(date.getTime())) element.title = date.toLocaleString() + ' local time';
}
// A page from the back/forward cache may belong to a session that has ended.
addEventListener('pageshow', (event) => {
  if (event.persisted) location.reload();
});
`;
