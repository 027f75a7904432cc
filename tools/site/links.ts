import { existsSync, globSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

const ATTRIBUTES = /<[a-z][^>]*?\s(?:href|src|srcset)="([^"]*)"/g;
const IDS = /\s(?:id|name)="([^"]*)"/g;

const decode = (text: string): string =>
  text.replaceAll('&#38;', '&').replaceAll('&amp;', '&').replaceAll('&quot;', '"');

/**
 * The references in the HTML files of a site that lead nowhere: to a missing page, file or section. Other hosts are not checked.
 * `base` is the path of the site on its host.
 */
export function findBrokenLinks(folder: string, base: string): string[] {
  const files = globSync('**/*.html', { cwd: folder });
  const pages = new Map(
    files.map((file) => {
      const html = readFileSync(join(folder, file), 'utf8');
      return [file, { html, ids: new Set([...html.matchAll(IDS)].map(([, id = '']) => decode(id))) }] as const;
    }),
  );

  const findFile = (path: string): string | undefined =>
    [path, join(path, 'index.html'), `${path}.html`].find((file) => {
      const full = join(folder, file);
      return existsSync(full) && statSync(full).isFile();
    });

  return [...pages].flatMap(([file, { html }]) => {
    const from = new URL(file, `http://site${base}`);
    const broken = [...html.matchAll(ATTRIBUTES)]
      .map(([, value = '']) => decode(value))
      .filter((value) => {
        if (!URL.canParse(value, from)) return true;
        const url = new URL(value, from);
        if (url.host !== from.host || url.protocol !== from.protocol) return false;
        if (!url.pathname.startsWith(base)) return true;
        const target = findFile(decodeURIComponent(url.pathname.slice(base.length)));
        if (target === undefined) return true;
        const anchor = decodeURIComponent(url.hash.slice(1));
        return anchor !== '' && target.endsWith('.html') && pages.get(target)?.ids.has(anchor) !== true;
      });
    return [...new Set(broken)].map((value) => `${file}: ${value}`);
  });
}
