import type { RequestTarget } from '../../domain/request-target.ts';
import { getSingleHeader } from '../../http/raw-headers.ts';
import type { HttpRequest } from '../../http/request-context.ts';
import type { ProxyRefusal } from './refusals.ts';

/** What a browser gets at `/` in place of the JSON of a refusal. */
export interface RootPage {
  readonly text: string;
  /** With the media type. */
  readonly headers: Readonly<Record<string, string>>;
}

/** `host`: does the requested host serve the API, or only the pages? `url`: the request target. */
export type RenderRootPage = (
  host: 'api' | 'pages',
  request: { readonly url: string; readonly acceptLanguage: string | undefined },
) => RootPage;

/**
 * The page for a refused request, if it is a browser's for `/`. A route for `/` that requires a token gets the same one: the
 * response does not reveal whether there is a route.
 */
export function selectRootPage(
  render: RenderRootPage | undefined,
  { reason }: ProxyRefusal,
  target: RequestTarget | undefined,
  { method, url, rawHeaders }: Pick<HttpRequest, 'method' | 'url' | 'rawHeaders'>,
): RootPage | undefined {
  if (reason !== 'token_missing' && reason !== 'misdirected') return undefined;
  if (render === undefined || target?.path !== '/' || method !== 'GET') return undefined;
  if (!prefersHtml(getSingleHeader(rawHeaders, 'accept'))) return undefined;
  const acceptLanguage = getSingleHeader(rawHeaders, 'accept-language');
  return render(reason === 'misdirected' ? 'pages' : 'api', { url, acceptLanguage });
}

const MAX_ACCEPT_LENGTH = 512;

/** Browsers list `text/html` in `Accept` when they navigate (Fetch standard §5.2); clients of APIs don't. */
export function prefersHtml(accept: string | undefined): boolean {
  if (accept === undefined || accept.length > MAX_ACCEPT_LENGTH) return false;
  const weights = new Map(
    accept.split(',').map((part) => {
      const [type = '', ...parameters] = part.split(';').map((text) => text.trim().toLowerCase());
      const q = parameters.find((parameter) => parameter.startsWith('q='));
      return [type, q === undefined ? 1 : Number(q.slice(2))] as const;
    }),
  );
  const html = weights.get('text/html') ?? 0;
  return html > 0 && html > (weights.get('application/json') ?? 0);
}
