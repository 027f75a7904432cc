import { existsSync, globSync, readFileSync, statSync } from 'node:fs';
import { basename, dirname, extname, join, posix, relative, resolve } from 'node:path';

/** The pages of the site, as patterns of files in the repository. */
const PAGES = ['*.md', 'docs/**/*.md', '{bench,deploy,helm,test}/**/README.md'];
/** For developers: reachable by links, but not found by the search. */
const NOT_SEARCHED = /^(?:bench|test)\//;
/** Files that are copied into the site if a page links to them. Others are part of the sources. */
const COPIED = new Set(['.1', '.json', '.lua', '.png', '.svg', '.yaml']);

export interface SitePage {
  /** Relative to the root of the repository. */
  readonly file: string;
  /** The path of its URL, with a slash at the end; empty for the first page. */
  readonly route: string;
  readonly title: string;
  readonly text: string;
}

export interface SidebarLink {
  readonly label: string;
  readonly link: string;
}
export interface SidebarGroup {
  readonly label: string;
  readonly collapsed?: boolean;
  readonly items: readonly (SidebarLink | SidebarGroup)[];
}

const toRoute = (file: string): string => {
  const path = file.toLowerCase().replace(/\.md$/, '');
  const folder = basename(path) === 'readme' ? dirname(path) : path;
  return folder === '.' ? '' : `${folder}/`;
};

export const listPages = (root: string): SitePage[] =>
  globSync(PAGES, { cwd: root })
    .filter((file) => !file.includes('node_modules'))
    .toSorted()
    .map((file) => {
      const text = readFileSync(join(root, file), 'utf8');
      const [, title] = /^# (.+)$/m.exec(text) ?? [];
      if (title === undefined) throw new Error(`${file} has no title (# …)`);
      return { file, route: toRoute(file), title: title.replaceAll('`', ''), text };
    });

/** Where a reference leads: to a page, to a file to copy, or to sources that are not part of the site. */
type Target =
  | { readonly kind: 'page'; readonly route: string }
  | { readonly kind: 'file' | 'source'; readonly path: string }
  | { readonly kind: 'missing' };

export interface RewriteOptions {
  readonly root: string;
  /** The path of the site on its host, with slashes at both ends. */
  readonly base: string;
  /** The folder of the sources in a forge; without it, references to sources are text. */
  readonly sourceUrl?: string | undefined;
  readonly pages: readonly SitePage[];
}

export interface RewrittenPage {
  readonly markdown: string;
  /** Files that the page needs, relative to the root of the repository. */
  readonly files: readonly string[];
  readonly problems: readonly string[];
}

function resolveTarget(from: string, reference: string, { root, pages }: RewriteOptions): Target {
  const path = relative(root, resolve(root, dirname(from), reference)).replaceAll('\\', '/');
  if (path.startsWith('..') || !existsSync(join(root, path))) return { kind: 'missing' };
  const isFolder = statSync(join(root, path)).isDirectory();
  const page = pages.find(({ file }) => file === (isFolder ? posix.join(path, 'README.md') : path));
  if (page !== undefined) return { kind: 'page', route: page.route };
  return { kind: !isFolder && COPIED.has(extname(path)) ? 'file' : 'source', path };
}

const FENCE = /^( *)(```+).*\n[\s\S]*?^\1\2$/gm;
/** Code, which stays unchanged; a link or an image; an HTML tag. */
const REFERENCES =
  /(?<code>(?<ticks>`+)[^`][\s\S]*?\k<ticks>(?!`))|(?<link>!?\[(?<label>(?:[^[\]]|\[[^\]]*\])*)\]\((?<reference>[^)\s]+)(?<title>[^)]*)\))|(?<tag><[a-z]+\s[^>]*>)/g;
const isExternal = (reference: string): boolean => /^(?:[a-z]+:|#)/i.test(reference);

/** Changes the references of a page from paths in the repository to URLs of the site. */
export function rewritePage(page: SitePage, options: RewriteOptions): RewrittenPage {
  const files: string[] = [];
  const problems: string[] = [];

  /** Undefined: there is no URL. */
  const toUrl = (reference: string): string | undefined => {
    const [path = '', anchor] = reference.split('#');
    const suffix = anchor === undefined ? '' : `#${anchor}`;
    const target = resolveTarget(page.file, path, options);
    switch (target.kind) {
      case 'page':
        return `${options.base}${target.route}${suffix}`;
      case 'file':
        files.push(target.path);
        return `${options.base}${target.path}${suffix}`;
      case 'source':
        return options.sourceUrl === undefined ? undefined : `${options.sourceUrl}/${target.path}${suffix}`;
      case 'missing':
        problems.push(`${page.file}: ${reference} does not exist`);
        return undefined;
    }
  };

  const rewriteProse = (prose: string): string =>
    prose.replaceAll(REFERENCES, (whole, ...rest) => {
      const { code, link, label, reference, title, tag } = rest.at(-1) as Record<string, string | undefined>;
      if (code !== undefined) return whole;
      if (tag !== undefined)
        return tag.replaceAll(/(\s(?:src|srcset|href)=")([^"]*)"/g, (attribute, name: string, value: string) =>
          isExternal(value) ? attribute : `${name}${toUrl(value) ?? '#'}"`,
        );
      if (link === undefined || reference === undefined || isExternal(reference)) return whole;
      const url = toUrl(reference);
      if (url === undefined) return label ?? '';
      return `${link.startsWith('!') ? '!' : ''}[${rewriteProse(label ?? '')}](${url}${title ?? ''})`;
    });

  // The title is part of the front matter.
  const text = page.text.replace(/^# .+\n/m, '');
  let markdown = '';
  let end = 0;
  for (const fence of text.matchAll(FENCE)) {
    markdown += rewriteProse(text.slice(end, fence.index)) + fence[0];
    end = fence.index + fence[0].length;
  }
  markdown += rewriteProse(text.slice(end));
  return { markdown, files, problems };
}

export const renderFrontMatter = ({ file, title }: SitePage): string =>
  ['---', `title: ${JSON.stringify(title)}`, ...(NOT_SEARCHED.test(file) ? ['pagefind: false'] : []), '---', ''].join(
    '\n',
  );

const INDEX = 'docs/README.md';
const DECISIONS = 'docs/decisions/README.md';
const GROUPS = ['Tutorials', 'How-to guides', 'Reference', 'Explanation'];

/** The first link of a table row or list item, and the page it leads to; undefined for links to sections. */
function readEntry(
  line: string,
  from: string,
  pages: readonly SitePage[],
): { readonly label: string; readonly page: SitePage } | undefined {
  const [, label, reference] = /^(?:\||[-*] )[^|[]*\[([^\]]+)\]\(([^)\s]+)\)/.exec(line) ?? [];
  if (label === undefined || reference === undefined) return undefined;
  const file = posix.join(dirname(from), reference);
  const page = pages.find((candidate) => candidate.file === file);
  return page && { label: label.replaceAll('`', ''), page };
}

const toLink = (label: string, { route }: SitePage): SidebarLink => ({ label, link: `/${route}` });

/** The navigation, in the order of docs/README.md. Pages that it does not list come last. */
export function createSidebar(pages: readonly SitePage[]): (SidebarLink | SidebarGroup)[] {
  const used = new Set<SitePage>();
  const read = (file: string): SitePage => {
    const page = pages.find((candidate) => candidate.file === file);
    if (page === undefined) throw new Error(`${file} is missing`);
    used.add(page);
    return page;
  };
  const home = read('README.md');
  const index = read(INDEX);
  const decisions = read(DECISIONS);

  const groups = GROUPS.flatMap((label): SidebarGroup[] => {
    const [, section = ''] = index.text.split(new RegExp(`^## ${label}\\n`, 'm'));
    const items: (SidebarLink | SidebarGroup)[] = [];
    let current = items;
    for (const line of (section.split(/^## /m)[0] ?? '').split('\n')) {
      const [, heading] = /^\| *\*\*([^*]+)\*\* *\|/.exec(line) ?? /^### (.+)$/.exec(line) ?? [];
      const entry = readEntry(line, INDEX, pages);
      if (heading !== undefined) {
        current = [];
        items.push({ label: heading, items: current });
      } else if (entry !== undefined && !used.has(entry.page)) {
        used.add(entry.page);
        current.push(toLink(entry.label, entry.page));
      }
    }
    return items.length === 0 ? [] : [{ label, items }];
  });

  const decided = decisions.text.split('\n').flatMap((line) => {
    const [, number] = /^\| *(\d+) *(?=\|)/.exec(line) ?? [];
    const entry = readEntry(line.replace(/^\| *\d+ *(?=\|)/, ''), DECISIONS, pages);
    if (entry === undefined) return [];
    used.add(entry.page);
    return [toLink(`${number}. ${entry.label}`, entry.page)];
  });

  const others = pages.filter((page) => !used.has(page) && !page.file.startsWith('docs/decisions/'));
  return [
    toLink('What is gatehouse?', home),
    toLink('All pages', index),
    ...groups,
    { label: 'Design decisions', collapsed: true, items: [toLink('Overview', decisions), ...decided] },
    { label: 'Project', collapsed: true, items: others.map((page) => toLink(page.title, page)) },
  ];
}
