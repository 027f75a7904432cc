import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import {
  axeViolationsInBothSchemes,
  type BrowserWindow,
  DESKTOP,
  horizontalOverflow,
  openChromium,
  openWindow,
  PHONE,
} from '../support/chromium.ts';
import type { ConsoleHarness } from '../support/console-harness.ts';
import { CONSOLE_STATES, leaveConsole, startBusyConsole } from '../support/console-states.ts';

let browser: Browser;
let harness: ConsoleHarness;
beforeAll(async () => {
  [browser, harness] = await Promise.all([openChromium(), startBusyConsole()]);
});
afterAll(async () => {
  await browser?.close();
  await harness?.close();
});
// Refills the limit of wrong tokens.
beforeEach(() => harness.gateway.clock.advance(60));

describe.each([
  ['phone', { ...PHONE }],
  ['desktop', { ...DESKTOP }],
  ['desktop without scripts', { ...DESKTOP, javaScriptEnabled: false }],
] as const)('every page of the console: %s', (_, options) => {
  let window: BrowserWindow;
  beforeAll(async () => {
    window = await openWindow(browser, options);
  });
  afterAll(() => window.close());

  test.each(Object.entries(CONSOLE_STATES))('%s', async (_name, state) => {
    const { heading } = state;
    const { page, consoleErrors } = window;
    await leaveConsole(page);
    onTestFinished(() => state.leave?.(harness));
    await state.reach(harness, page);
    const text = (await page.locator('h1').textContent()) ?? '';
    if (typeof heading === 'string') expect(text).toBe(heading);
    else expect(text).toMatch(heading);
    expect(consoleErrors).toEqual([]);
    if ('javaScriptEnabled' in options) return;
    expect(await axeViolationsInBothSchemes(page)).toEqual([]);
    expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
  });
});
