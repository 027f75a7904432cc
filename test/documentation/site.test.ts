import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, test } from 'vitest';
import { findBrokenLinks } from '../../tools/site/links.ts';
import {
  createSidebar,
  listPages,
  renderFrontMatter,
  rewritePage,
  type SidebarGroup,
  type SidebarLink,
  type SitePage,
} from '../../tools/site/pages.ts';
import { tempFolder } from '../support/temp-folder.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const pages = listPages(ROOT);

const listLinks = (items: readonly (SidebarLink | SidebarGroup)[]): string[] =>
  items.flatMap((item) => ('link' in item ? [item.link] : listLinks(item.items)));

describe('the pages of the site', () => {
  test('have the paths of their files', () => {
    const routes = new Map(pages.map(({ file, route }) => [file, route]));
    expect(routes.get('README.md')).toBe('');
    expect(routes.get('docs/README.md')).toBe('docs/');
    expect(routes.get('docs/token-api.md')).toBe('docs/token-api/');
    expect(routes.get('CHANGELOG.md')).toBe('changelog/');
    expect(new Set(routes.values()).size).toBe(pages.length);
  });

  test('are all in the navigation, once', () => {
    const links = listLinks(createSidebar(pages));
    expect(new Set(links).size).toBe(links.length);
    expect(links.toSorted()).toEqual(pages.map(({ route }) => `/${route}`).toSorted());
  });

  test('are in the groups of docs/README.md', () => {
    const groups = createSidebar(pages).filter((item) => 'items' in item);
    expect(groups.map(({ label }) => label)).toEqual([
      'Tutorials',
      'How-to guides',
      'Reference',
      'Explanation',
      'Design decisions',
      'Project',
    ]);
    expect(listLinks(groups.slice(1, 2))).toContain('/docs/kubernetes/');
    expect(listLinks(groups.slice(2, 3))).toContain('/docs/configuration/');
  });

  test('have only references that exist', () => {
    expect(pages.flatMap((page) => rewritePage(page, { root: ROOT, base: '/', pages }).problems)).toEqual([]);
  });

  test('have a title; those for developers are not searched', () => {
    const [page] = pages;
    expect(renderFrontMatter({ ...(page as SitePage), title: 'A "title": b' })).toBe(
      '---\ntitle: "A \\"title\\": b"\n---\n',
    );
    expect(renderFrontMatter({ ...(page as SitePage), file: 'test/README.md' })).toContain('pagefind: false');
  });
});

describe('references of a page', () => {
  const rewrite = (text: string, sourceUrl?: string) =>
    rewritePage(
      { file: 'docs/clients.md', route: 'docs/clients/', title: 'A page', text: `# A page\n${text}` },
      { root: ROOT, base: '/base/', sourceUrl, pages },
    );

  test.each([
    ['[a](start.md)', '[a](/base/docs/start/)'],
    ['[a](start.md#keys)', '[a](/base/docs/start/#keys)'],
    ['[a](../README.md)', '[a](/base/)'],
    ['[a](README.md)', '[a](/base/docs/)'],
    ['[a](../deploy/compose)', '[a](/base/deploy/compose/)'],
    ['[a](#here)', '[a](#here)'],
    ['[a](https://a.example/b.md)', '[a](https://a.example/b.md)'],
    ['[`routes[].a`](start.md "title")', '[`routes[].a`](/base/docs/start/ "title")'],
    ['[![a](images/topologies.svg)](start.md)', '[![a](/base/docs/images/topologies.svg)](/base/docs/start/)'],
    ['`[a](start.md)` [b](start.md)', '`[a](start.md)` [b](/base/docs/start/)'],
    ['``a ` [a](start.md)`` [b](start.md)', '``a ` [a](start.md)`` [b](/base/docs/start/)'],
    ['```sh\n[a](start.md)\n```\n[b](start.md)', '```sh\n[a](start.md)\n```\n[b](/base/docs/start/)'],
    ['- a\n  ```sh\n  [a](start.md)\n  ```\n', '- a\n  ```sh\n  [a](start.md)\n  ```\n'],
    ['<img src="images/topologies.svg" alt="a">', '<img src="/base/docs/images/topologies.svg" alt="a">'],
    ['[a](../src/main.ts)', 'a'],
  ])('%s becomes %s', (from, to) => {
    expect(rewrite(from)).toMatchObject({ markdown: to, problems: [] });
  });

  test('to files are copied, to sources lead to the forge', () => {
    expect(rewrite('[a](openapi.json) ![b](images/topologies.svg)').files).toEqual([
      'docs/openapi.json',
      'docs/images/topologies.svg',
    ]);
    expect(rewrite('[a](../src/main.ts)', 'https://forge.example/blob/v1').markdown).toBe(
      '[a](https://forge.example/blob/v1/src/main.ts)',
    );
  });

  test.each(['[a](missing.md)', '![a](images/missing.svg)', '<img src="images/missing.png">', '[a](../../x)'])(
    'that lead nowhere are reported: %s',
    (text) => {
      expect(rewrite(text).problems).toEqual([expect.stringMatching(/^docs\/clients\.md: .* does not exist$/)]);
    },
  );
});

describe('the link check', () => {
  const folder = tempFolder('site');
  afterAll(folder.remove);
  const check = (html: string): string[] => {
    folder.write('a/index.html', html);
    folder.write('b/index.html', '<h2 id="section">b</h2>');
    folder.write('c.svg', '<svg/>');
    return findBrokenLinks(folder.path, '/base/');
  };

  test.each([
    '<a href="/base/b/">',
    '<a href="/base/b">',
    '<a href="/base/b/#section">',
    '<a href="../b/?x=1#section">',
    '<a href="#own"></a><h2 id="own">',
    '<img src="/base/c.svg">',
    '<a href="https://other.example/missing#x">',
    '<a href="mailto:a@b.example">',
  ])('accepts %s', (html) => {
    expect(check(html)).toEqual([]);
  });

  test.each([
    '<a href="/base/missing/">',
    '<a href="/b/">',
    '<a href="/base/b/#missing">',
    '<a href="#missing">',
    '<img src="missing.svg">',
    '<source srcset="/base/missing.png">',
    '<a class="x" href="../../b/">',
  ])('reports %s', (html) => {
    const [, reference] = /(?:href|src|srcset)="([^"]*)"/.exec(html) ?? [];
    expect(check(html)).toEqual([`a/index.html: ${reference}`]);
  });
});
