import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { serveSite } from '../../tools/site/serve.ts';
import { runChild } from '../support/child-process.ts';
import { axeViolations, DESKTOP, horizontalOverflow, openChromium, openWindow, PHONE } from '../support/chromium.ts';
import { tempFolder } from '../support/temp-folder.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const BASE = '/handbook/';
/** Pictures of what was built are kept in this folder, to look at. */
const SCREENSHOTS = process.env['SITE_SCREENSHOTS'];

describe('npm run docs:site', () => {
  const folder = tempFolder('docs-site');
  let server: Server | undefined;
  let browser: Browser;
  let url: string;

  beforeAll(async () => {
    const built = await runChild(
      [process.execPath, join(ROOT, 'tools/site/build.ts'), '--out', folder.file('site'), '--base', BASE],
      { seconds: 500 },
    );
    expect(`${built.stdout}${built.stderr}`).toMatch(/\d+ pages in .*; all links are valid\n$/);
    expect(built.code).toBe(0);
    server = await serveSite(folder.file('site'), BASE, 0);
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}${BASE}`;
    browser = await openChromium();
  }, 600_000);
  afterAll(async () => {
    await browser?.close();
    server?.closeAllConnections();
    server?.close();
    folder.remove();
  });

  test('the search finds pages about devices, without another host', async () => {
    const window = await openWindow(browser, DESKTOP);
    const { context, page, consoleErrors } = window;
    const hosts = new Set<string>();
    context.on('request', (request) => hosts.add(new URL(request.url()).host));
    await page.goto(url);
    await page.getByRole('button', { name: 'Search' }).click();
    await page.getByRole('textbox', { name: 'Search' }).fill('device');
    const results = page.locator('.pagefind-ui__result-link');
    // They are shown one after another.
    await results
      .filter({ hasText: /sign-in|token API|browser pages/i })
      .first()
      .waitFor();
    if (SCREENSHOTS !== undefined) await page.screenshot({ path: join(SCREENSHOTS, 'search.png') });
    await results.first().click();
    await page.waitForURL((to) => to.pathname.startsWith(`${BASE}docs/`));
    expect(await page.locator('main').textContent()).toMatch(/device/i);
    expect([...hosts]).toEqual([new URL(url).host]);
    expect(consoleErrors).toEqual([]);
    await window.close();
  });

  const PAGES = ['', 'docs/start/', 'docs/configuration/', 'docs/pages/'];
  /** axe takes minutes for the longest pages. */
  const SHORT = new Set(['', 'docs/start/']);
  test.each(
    [
      { name: 'light', options: { ...DESKTOP, colorScheme: 'light' } as const },
      { name: 'dark', options: { ...DESKTOP, colorScheme: 'dark' } as const },
      { name: 'phone', options: { ...PHONE, colorScheme: 'light' } as const },
    ].flatMap((shape) => PAGES.map((path) => ({ ...shape, path }))),
  )('/$path is legible ($name)', async ({ name, options, path }) => {
    const window = await openWindow(browser, options);
    const { page, consoleErrors } = window;
    await page.goto(url + path);
    expect(await page.locator('html').getAttribute('data-theme')).toBe(name === 'dark' ? 'dark' : 'light');
    const images = await page
      .locator('main img')
      .evaluateAll((found) =>
        (found as unknown as { complete: boolean; naturalWidth: number; loading: string }[]).map(
          (image) => image.loading === 'lazy' || (image.complete && image.naturalWidth > 0),
        ),
      );
    expect(images).not.toContain(false);
    expect(await horizontalOverflow(page)).toBe(0);
    if (SCREENSHOTS !== undefined)
      await page.screenshot({ path: join(SCREENSHOTS, `${path.replaceAll('/', '-')}${name}.png`) });
    // Before axe, which clones elements in a way that their scripts do not expect.
    expect(consoleErrors).toEqual([]);
    const violations = SHORT.has(path) ? await axeViolations(page) : [];
    expect(violations.filter((violation) => /^(?:serious|critical) /.test(violation))).toEqual([]);
    await window.close();
  });
});
