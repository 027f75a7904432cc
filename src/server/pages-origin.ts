import type { Settings } from '../config/schema.ts';
import { normalizeHost } from '../domain/rule-matcher.ts';

/** The origin of the confirmation pages (docs/decisions/0026-separate-host-for-pages.md). */
export interface PagesOrigin {
  readonly url: string;
  /** Set where the pages have a separate host: only the pages are served there, and only there. */
  readonly host: string | undefined;
}

export function getPagesOrigin({
  publicUrl,
  pages,
}: Pick<Settings, 'publicUrl'> & { readonly pages: Pick<Settings['pages'], 'url'> }): PagesOrigin {
  const url = pages.url === undefined || pages.url === 'shared' ? publicUrl : pages.url;
  const { origin, host } = new URL(url);
  return { url, host: origin === new URL(publicUrl).origin ? undefined : normalizeHost(host) };
}
