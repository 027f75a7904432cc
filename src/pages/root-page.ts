import type { Language } from '../domain/language.ts';
import { getQuery } from '../http/query.ts';
import { html } from './views/html.ts';
import { createPageHeaders, renderLayout } from './views/layout.ts';
import { MESSAGES, negotiateLanguage, readLanguage } from './views/messages/languages.ts';
import type { Theme } from './views/theme.ts';

interface RootPageOptions {
  readonly theme: Theme;
  /** URL of the page for entering a code; omitted: the device flow is disabled. */
  readonly deviceUrl?: string | undefined;
  /** URL of the list of grants; omitted: it is disabled. */
  readonly grantsUrl?: string | undefined;
}

/**
 * The page at `/` for browsers that the API has nothing for. Any client can request it, and it depends only on the language, so
 * it is rendered once for each.
 */
export function createRootPage({ theme, deviceUrl, grantsUrl }: RootPageOptions) {
  // The proxy sends the fields that all refusals have.
  const { 'cache-control': _cacheControl, ...pageHeaders } = createPageHeaders(theme);
  const headers: Readonly<Record<string, string>> = {
    ...pageHeaders,
    'content-type': 'text/html; charset=utf-8',
    vary: 'Accept, Accept-Language',
  };
  const rendered = new Map<string, { readonly text: string; readonly headers: typeof headers }>();

  const render = (host: 'api' | 'pages', language: Language, isChosen: boolean): string => {
    const messages = MESSAGES[language];
    const { title, lead } = messages.root[host];
    const query = isChosen ? `?language=${language}` : '';
    const links = [
      ...(deviceUrl === undefined ? [] : [{ url: deviceUrl, text: messages.code.title }]),
      ...(grantsUrl === undefined ? [] : [{ url: grantsUrl, text: messages.grants.title }]),
    ];
    const body = html`<h1>${title}</h1>
<p>${lead}</p>
${
  links.length > 0 &&
  html`<p class="label">${messages.root.links}</p>
${links.map(({ url, text }) => html`<a class="button second" href="${url}${query}">${text}</a>\n`)}`
}`;
    return renderLayout({ messages, currentUrl: '/' }, theme, { status: 200, title, body });
  };

  return (
    host: 'api' | 'pages',
    { url, acceptLanguage }: { readonly url: string; readonly acceptLanguage: string | undefined },
  ) => {
    const chosen = readLanguage(getQuery({ url }));
    const language = chosen ?? negotiateLanguage(acceptLanguage) ?? theme.language;
    const key = `${host} ${language} ${chosen === undefined}`;
    const known = rendered.get(key) ?? { text: render(host, language, chosen !== undefined), headers };
    rendered.set(key, known);
    return known;
  };
}
