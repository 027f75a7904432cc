import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { axeViolations, type BrowserWindow, DESKTOP, openChromium, openWindow } from '../support/chromium.ts';
import { type ConsoleHarness, startConsole } from '../support/console-harness.ts';
import { signInWithBrowser } from '../support/console-states.ts';

let browser: Browser;
let harness: ConsoleHarness;
let window: BrowserWindow;
let page: Page;
beforeAll(async () => {
  [browser, harness] = await Promise.all([openChromium(), startConsole()]);
  window = await openWindow(browser, DESKTOP);
  ({ page } = window);
});
afterAll(async () => {
  await browser?.close();
  await harness?.close();
});

test('figures refresh by themselves until they are paused', async () => {
  await signInWithBrowser(harness, page);
  const state = page.locator('#refresh-state');
  expect(await state.textContent()).toBe('Refreshed every 5 seconds');
  const response = page.waitForResponse(/\/console\/figures/);
  await response;
  await page.getByRole('button', { name: 'Pause' }).click();
  expect(await state.textContent()).toBe('Paused');
  expect(await page.getByRole('heading', { name: 'Upstreams' }).count()).toBe(1);
  expect(await axeViolations(page)).toEqual([]);
  expect(window.consoleErrors).toEqual([]);
});

test('an operator whose token was replaced is asked to sign in again', async () => {
  await signInWithBrowser(harness, page);
  await window.context.clearCookies();
  await page.getByLabel('Admin token').waitFor();
  expect(window.consoleErrors).toEqual([]);
});
