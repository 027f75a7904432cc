import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import {
  axeViolationsInBothSchemes,
  type BrowserWindow,
  DESKTOP,
  horizontalOverflow,
  openChromium,
  openWindow,
  PHONE,
} from '../support/chromium.ts';
import { getHeading, listOverflowing, STATES, startStatePages } from '../support/page-states.ts';
import type { PagesHarness } from '../support/pages-harness.ts';

export interface PagesInBrowser {
  readonly browser: Browser;
  readonly pages: PagesHarness;
  /** A window shared by tests without special requirements. */
  readonly desktop: BrowserWindow;
}

/** A browser and a gateway for the tests of one file, reset before each test. */
export function pagesInBrowser(): () => PagesInBrowser {
  let current: PagesInBrowser;
  let browser: Browser | undefined;
  let pages: PagesHarness | undefined;
  beforeAll(async () => {
    [browser, pages] = await Promise.all([openChromium(), startStatePages()]);
    current = { browser, pages, desktop: await openWindow(browser, DESKTOP) };
  });
  afterAll(async () => {
    await browser?.close();
    await pages?.close();
  });
  beforeEach(async () => {
    await current.pages.reset();
    await current.desktop.context.clearCookies();
    current.desktop.consoleErrors.length = 0;
  });
  return () => current;
}

/** Checks page states on a phone. */
export function checkStates(names = Object.keys(STATES)): void {
  const setting = pagesInBrowser();
  let phone: BrowserWindow;
  beforeAll(async () => {
    phone = await openWindow(setting().browser, PHONE);
  });
  afterAll(() => phone?.close());

  test.each(names)('%s: axe reports no violation in light or dark mode, and nothing overflows', async (name) => {
    const state = STATES[name];
    if (state === undefined) throw new Error(`unknown state ${name}`);
    const { page, context, consoleErrors } = phone;
    await context.clearCookies();
    await state.reach({ pages: setting().pages, page });
    expect(await getHeading(page)).toBe(state.heading);
    expect(await axeViolationsInBothSchemes(page)).toEqual([]);
    expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
    expect(await listOverflowing(page)).toEqual([]);
    expect(consoleErrors).toEqual([]);
    expect(await page.locator('script').count()).toBe(0);
    // Every other state offers a next step.
    const steps = await page.locator('main').locator('a[href], button').count();
    expect(steps > 0).toBe(state.isFinal !== true);
  });
}
