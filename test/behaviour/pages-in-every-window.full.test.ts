import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  axeFindings,
  DESKTOP,
  openChromium,
  openWindow,
  overflow,
  PHONE,
  type Window,
} from '../support/chromium.ts';
import type { ConfirmPages } from '../support/confirm-pages.ts';
import { headingOf, openStatePages, STATES } from '../support/page-states.ts';

let browser: Browser;
let pages: ConfirmPages;
beforeAll(async () => {
  [browser, pages] = await Promise.all([openChromium(), openStatePages()]);
});
afterAll(async () => {
  await browser?.close();
  await pages?.close();
});
beforeEach(() => pages.reset());

const WINDOWS = [
  ['phone, light', { ...PHONE, colorScheme: 'light' }],
  ['phone, dark', { ...PHONE, colorScheme: 'dark' }],
  ['desktop, light', { ...DESKTOP, colorScheme: 'light' }],
  ['desktop, dark', { ...DESKTOP, colorScheme: 'dark' }],
  ['desktop without scripts', { ...DESKTOP, javaScriptEnabled: false }],
  ['phone without scripts', { ...PHONE, javaScriptEnabled: false }],
] as const;

describe.each(WINDOWS)('every page and state: %s', (_, options) => {
  let window: Window;
  beforeAll(async () => {
    window = await openWindow(browser, options);
  });
  afterAll(() => window.close());

  test.each(Object.entries(STATES))('%s', async (_name, state) => {
    const { page, context, complaints } = window;
    await context.clearCookies();
    await state.reach({ pages, page });
    expect(await headingOf(page)).toBe(state.heading);
    expect(await page.locator('main').locator('a[href], button').count()).toBeGreaterThan(0);
    expect(complaints).toEqual([]);
    if ('javaScriptEnabled' in options) return;
    expect(await axeFindings(page)).toEqual([]);
    expect(await overflow(page)).toBeLessThanOrEqual(0);
  });
});
