import type { Settings } from '../config/schema.ts';
import { hostName } from '../domain/rule-matcher.ts';

/** The origin of the confirmation pages (docs/decisions/0026-pages-have-a-host-of-their-own.md). */
export interface PagesOrigin {
  readonly url: string;
  /** Set where the pages have a host of their own: then they are served there alone, and nothing else is. */
  readonly host: string | undefined;
}

export function pagesOriginOf({
  publicUrl,
  pages,
}: Pick<Settings, 'publicUrl'> & { readonly pages: Pick<Settings['pages'], 'url'> }): PagesOrigin {
  const url = pages.url === undefined || pages.url === 'shared' ? publicUrl : pages.url;
  const { origin, host } = new URL(url);
  return { url, host: origin === new URL(publicUrl).origin ? undefined : hostName(host) };
}
