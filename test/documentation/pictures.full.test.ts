import { existsSync, globSync, readFileSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { reduceColours } from '../../tools/png-palette.ts';
import { DESKTOP, openChromium, openWindow } from '../support/chromium.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { PAGES, readPage } from './pages.ts';
import { findPictureFaults } from './picture-faults.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const IMAGES = 'docs/images';
const DRAWINGS = globSync(`${IMAGES}/**/*.svg`, { cwd: ROOT });
const SCREENSHOTS = globSync(`${IMAGES}/**/*.png`, { cwd: ROOT });

const countBytes = (file: string): number => statSync(join(ROOT, file)).size;

describe('drawings', () => {
  let browser: Browser;
  let page: Page;
  beforeAll(async () => {
    browser = await openChromium();
    ({ page } = await openWindow(browser, DESKTOP));
  });
  const folder = tempFolder('pictures');
  afterAll(async () => {
    await browser?.close();
    folder.remove();
  });

  test.each(DRAWINGS)('%s is legible in light and dark mode', async (file) => {
    expect(await findPictureFaults(page, join(ROOT, file))).toEqual([]);
    expect(countBytes(file)).toBeLessThan(10_000);
  });

  const GOOD = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 100" aria-labelledby="title desc" font-size="14">
  <title id="title">A title</title><desc id="desc">A description</desc>
  <style>.page { fill: #fff } text { fill: #000 } @media (prefers-color-scheme: dark) { .page { fill: #000 } text { fill: #fff } }</style>
  <rect class="page" width="300" height="100"/>
  <rect fill="none" x="10" y="10" width="120" height="40"/>
  <rect class="page" x="10" y="10" width="120" height="40"/>
  <text x="20" y="35">inside</text><text x="20" y="80">below</text></svg>`;
  const BROKEN: readonly (readonly [fault: string, from: string, to: string])[] = [
    ['it is not well-formed', '</text></svg>', '</svg>'],
    ['it has no title', 'A title', ''],
    ['it has no desc', '<desc id="desc">A description</desc>', '<g id="desc"/>'],
    ['aria-labelledby names "desc", which does not exist', 'id="desc"', 'id="other"'],
    ['"a text that is too long" exceeds its box', '>inside', '>a text that is too long'],
    ['"inside" exceeds its box', 'x="20" y="35"', 'x="100" y="35"'],
    ['"inside" exceeds its box', 'x="20" y="35"', 'x="20" y="55"'],
    ['"below" exceeds the viewBox', 'x="20" y="80"', 'x="290" y="80"'],
    ['"below" exceeds the viewBox', 'x="20" y="80"', 'x="20" y="104"'],
    ['"inside" overlaps "below"', 'x="20" y="80"', 'x="40" y="35"'],
    ['"below" is covered by a box', '</svg>', '<rect x="10" y="60" width="120" height="35"/></svg>'],
    ['"below" has a contrast of 1.0 in dark mode', 'text { fill: #fff }', 'text { fill: #000 }'],
    ['"below" has a contrast of 3.9 in light mode', 'text { fill: #000 }', 'text { fill: #808080 }'],
    ['"below" has no opaque background in light mode', '.page { fill: #fff }', '.page { fill: #fff8 }'],
    ['it loads', '</style>', '</style><image href="logo.png" width="9" height="9"/>'],
    ['it has no viewBox', 'viewBox="0 0 300 100"', ''],
  ];
  const checkText = (svg: string): Promise<readonly string[]> =>
    findPictureFaults(page, folder.write('picture.svg', svg));

  test('a good drawing has no faults', async () => {
    expect(await checkText(GOOD)).toEqual([]);
  });

  test.each(BROKEN)('a broken drawing is reported: %s (%s → %s)', async (fault, from, to) => {
    expect(GOOD).toContain(from);
    expect(await checkText(GOOD.replace(from, to))).toContainEqual(expect.stringContaining(fault));
  });
});

describe('screenshots', () => {
  test('a reduced PNG of few colours has the same pixels', async () => {
    await using browser = await openChromium();
    const { page } = await openWindow(browser, { viewport: { width: 60, height: 40 } });
    const stripes = ['#0f766e', '#ffffff', '#b45309'].map(
      (colour) => `<div style="background:${colour};height:7px;width:${colour.length * 5}px"></div>`,
    );
    await page.setContent(`<body style="margin:0">${stripes.join('')}`);
    const original = await page.screenshot();
    const reduced = reduceColours(original);
    expect(reduced.equals(original)).toBe(false);
    await page.setContent(
      `<body style="margin:0"><img style="display:block" src="data:image/png;base64,${reduced.toString('base64')}">`,
    );
    expect((await page.screenshot()).equals(original)).toBe(true);
  });

  test.each(SCREENSHOTS)('%s is a small PNG', (file) => {
    expect(readFileSync(join(ROOT, file)).subarray(1, 4).toString('latin1')).toBe('PNG');
    expect(countBytes(file)).toBeLessThan(60_000);
  });
});

interface ImageReference {
  readonly path: string;
  readonly alternative: string;
}

/** Markdown images, and `img` and `source` elements; those of other hosts are omitted. */
function listImages(markdown: string): ImageReference[] {
  const prose = markdown.replace(/^```[\s\S]*?^```/gm, '');
  const attribute = (tag: string, name: string): string => new RegExp(`\\s${name}="([^"]*)"`).exec(tag)?.[1] ?? '';
  return [
    ...[...prose.matchAll(/!\[([^\]]*)\]\(([^)\s]+)[^)]*\)/g)].map(([, alternative = '', path = '']) => ({
      path,
      alternative,
    })),
    ...[...prose.matchAll(/<img\s[^>]*>/g)].map(([tag]) => ({
      path: attribute(tag, 'src'),
      alternative: attribute(tag, 'alt'),
    })),
    // A `source` has the alternative text of its `img`.
    ...[...prose.matchAll(/<source\s[^>]*>/g)].map(([tag]) => ({
      path: attribute(tag, 'srcset'),
      alternative: 'of img',
    })),
  ].filter(({ path }) => !/^https?:/.test(path));
}

describe('images in pages', () => {
  test('are found in every notation', () => {
    const markdown =
      '![one](a.svg) <picture><source media="x" srcset="b.png"><img alt="two" src="c.png"></picture> ![](d.svg "title")';
    expect(listImages(markdown)).toEqual([
      { path: 'a.svg', alternative: 'one' },
      { path: 'd.svg', alternative: '' },
      { path: 'c.png', alternative: 'two' },
      { path: 'b.png', alternative: 'of img' },
    ]);
  });

  test('every picture is used by a page', () => {
    const used = new Set(
      PAGES.flatMap((name) => listImages(readPage(name)).map(({ path }) => join(dirname(name), path))),
    );
    expect([...DRAWINGS, ...SCREENSHOTS].filter((file) => !used.has(file))).toEqual([]);
  });

  test.each(PAGES.filter((name) => listImages(readPage(name)).length > 0))(
    '%s: images exist and have alternative text',
    (name) => {
      const images = listImages(readPage(name));
      expect(images.filter(({ path }) => !existsSync(join(ROOT, dirname(name), path)))).toEqual([]);
      expect(images.filter(({ alternative }) => alternative.trim() === '')).toEqual([]);
    },
  );
});
