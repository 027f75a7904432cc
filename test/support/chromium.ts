import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { type Browser, type BrowserContext, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { needs } from '../set-up/programs.ts';

needs('chromium');

/** Debian's Chromium, headless. */
export const openChromium = (...args: readonly string[]): Promise<Browser> =>
  chromium.launch({
    executablePath: '/usr/bin/chromium',
    // The sandbox does not work as root. Only test pages are opened.
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', ...args],
  });

export const PHONE = {
  viewport: { width: 360, height: 740 },
  isMobile: true,
  hasTouch: true,
  deviceScaleFactor: 2,
};
export const DESKTOP = { viewport: { width: 1_200, height: 800 } };

export interface BrowserWindow {
  readonly context: BrowserContext;
  readonly page: Page;
  /** Script errors, CSP violations and failed loads. */
  readonly consoleErrors: string[];
  close(): Promise<void>;
}

export async function openWindow(browser: Browser, options: BrowserContextOptions = {}): Promise<BrowserWindow> {
  const context = await browser.newContext({
    locale: 'en-GB',
    ignoreHTTPSErrors: true,
    // axe would measure the contrast in the middle of a colour transition.
    reducedMotion: 'reduce',
    ...options,
  });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  const consoleErrors: string[] = [];
  page.on('console', (message) => {
    // The browser logs every error response; the tests expect those.
    if (message.type() === 'error' && !/Failed to load resource: the server responded/.test(message.text()))
      consoleErrors.push(message.text());
  });
  page.on('pageerror', (error) => consoleErrors.push(String(error)));
  page.on('dialog', (dialog) => {
    consoleErrors.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return { context, page, consoleErrors, close: () => context.close() };
}

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

interface AxeViolation {
  readonly id: string;
  readonly impact: string | null;
  readonly nodes: readonly { readonly html: string; readonly failureSummary?: string }[];
}

/** All violations that axe reports, including `best-practice` rules, or only those of `rules`. */
export async function axeViolations(page: Page, rules?: readonly string[]): Promise<readonly string[]> {
  await stylesheetsLoaded(page);
  if (!(await page.evaluate(() => 'axe' in globalThis))) await page.evaluate(AXE);
  const violations = await page.evaluate(
    async (options) => {
      const { axe, document } = globalThis as unknown as {
        axe: { run(options: object): Promise<{ violations: readonly AxeViolation[] }> };
        document: { getAnimations(): readonly { readonly finished: Promise<unknown> }[] };
      };
      await Promise.all(document.getAnimations().map(({ finished }) => finished));
      return (await axe.run(options)).violations;
    },
    { resultTypes: ['violations'], ...(rules && { runOnly: [...rules] }) },
  );
  return violations.flatMap(({ id, impact, nodes }) =>
    nodes.map((node) => `${impact ?? ''} ${id}: ${node.html.slice(0, 160)} ${node.failureSummary ?? ''}`),
  );
}

/** With light colours every rule, with dark ones the only rule that depends on colours. */
export async function axeViolationsInBothSchemes(page: Page): Promise<readonly string[]> {
  await page.emulateMedia({ colorScheme: 'light' });
  const light = await axeViolations(page);
  await page.emulateMedia({ colorScheme: 'dark' });
  return [...light, ...(await axeViolations(page, ['color-contrast']))];
}

/** Pixels by which the page is wider than the window; 0 if it needs no horizontal scrolling. */
export async function horizontalOverflow(page: Page): Promise<number> {
  await stylesheetsLoaded(page);
  return page.evaluate(() => {
    const { documentElement: root } = (
      globalThis as unknown as { document: { documentElement: { scrollWidth: number; clientWidth: number } } }
    ).document;
    return root.scrollWidth - root.clientWidth;
  });
}

/** A click returns as soon as the next page has begun to load. Without its styles, colours and widths differ. */
const stylesheetsLoaded = (page: Page): Promise<void> => page.waitForLoadState('load');
