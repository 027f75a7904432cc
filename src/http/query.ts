import type { HttpRequest } from './request-context.ts';

/** The part of the URL after the first question mark; empty if there is none. */
export function getQuery({ url }: Pick<HttpRequest, 'url'>): string {
  const at = url.indexOf('?');
  return at < 0 ? '' : url.slice(at + 1);
}
