import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  axeViolationsInBothSchemes,
  type BrowserWindow,
  DESKTOP,
  horizontalOverflow,
  openChromium,
  openWindow,
  PHONE,
} from '../support/chromium.ts';
import { getHeading, STATES, startStatePages } from '../support/page-states.ts';
import type { PagesHarness } from '../support/pages-harness.ts';

let browser: Browser;
let pages: PagesHarness;
beforeAll(async () => {
  [browser, pages] = await Promise.all([openChromium(), startStatePages()]);
});
afterAll(async () => {
  await browser?.close();
  await pages?.close();
});
beforeEach(() => pages.reset());

const WINDOWS = [
  ['phone', { ...PHONE }],
  ['desktop', { ...DESKTOP }],
] as const;

describe.each(WINDOWS)('every page and state: %s', (_, options) => {
  let window: BrowserWindow;
  beforeAll(async () => {
    window = await openWindow(browser, options);
  });
  afterAll(() => window.close());

  test.each(Object.entries(STATES))('%s', async (_name, state) => {
    const { page, context, consoleErrors } = window;
    await context.clearCookies();
    await state.reach({ pages, page });
    expect(await getHeading(page)).toBe(state.heading);
    // Pages that end an app's request lead nowhere: the app has to start again.
    if (!state.isFinal) expect(await page.locator('main').locator('a[href], button').count()).toBeGreaterThan(0);
    expect(consoleErrors).toEqual([]);
    expect(await page.locator('script').count()).toBe(0);
    expect(await axeViolationsInBothSchemes(page)).toEqual([]);
    expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
  });
});
