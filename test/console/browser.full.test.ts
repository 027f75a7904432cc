import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { axeViolations, type BrowserWindow, DESKTOP, openChromium, openWindow } from '../support/chromium.ts';
import { type ConsoleHarness, readGrantId, startConsole } from '../support/console-harness.ts';
import { signInWithBrowser } from '../support/console-states.ts';
import { waitForNavigation } from '../support/page-states.ts';
import { until } from '../support/until.ts';

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

test('an operator signs in, searches and revokes a grant, with the keyboard only', async () => {
  const { gateway } = harness;
  const { access_token: token } = await gateway.grant();
  const id = readGrantId(token);
  await page.goto(`${harness.url}/console/grants?by=identity`);
  await page.getByLabel('Admin token').focus();
  await page.keyboard.type(harness.token);
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Grants' }).waitFor();
  expect(await axeViolations(page)).toEqual([]);
  await page.getByRole('link', { name: 'alice' }).first().focus();
  await page.keyboard.press('Enter');
  await page.getByRole('link', { name: 'Revoke…' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Revoke' }).focus();
  await page.keyboard.press('Enter');
  await page.getByText('revoked', { exact: true }).waitFor();
  expect(page.url()).toBe(`${harness.url}/console/grant?id=${id}`);
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect(window.consoleErrors).toEqual([]);
});

test('the first Tab reaches a link that skips the navigation', async () => {
  await signInWithBrowser(harness, page);
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await until('the content has the focus', async () => (await page.locator('#content:focus').count()) === 1);
});

test('a script that got into a page does not run', async () => {
  const { gateway } = harness;
  await gateway.request({
    path: encodeURI(`/files/"><img src=x onerror=alert(1)><script>alert(2)</script>`),
  });
  await signInWithBrowser(harness, page);
  await page.goto(`${harness.url}/console/refusals?q=script`);
  expect(await page.locator('.rows > li').count()).toBe(1);
  expect(await page.locator('main script, main img').count()).toBe(0);
  // Even markup that is injected into the document is stopped by the policy.
  await page.evaluate(() => {
    const { document } = globalThis as unknown as {
      document: {
        createElement(name: string): { textContent: string };
        body: { append(element: object): void };
      };
    };
    const script = document.createElement('script');
    script.textContent = 'document.title = "injected"';
    document.body.append(script);
  });
  await until('the violation of the policy is reported', () => window.consoleErrors.length > 0);
  expect(await page.title()).toBe('Refusals – gatehouse console');
  expect(window.consoleErrors.splice(0).join(' ')).toContain('Content Security Policy');
});

test('the overview shows the latest figures when it is opened again', async () => {
  await signInWithBrowser(harness, page);
  await waitForNavigation(page, () => page.getByRole('link', { name: 'Refresh' }).click());
  expect(await page.getByRole('heading', { name: 'Upstreams' }).count()).toBe(1);
  expect(await axeViolations(page)).toEqual([]);
  expect(window.consoleErrors).toEqual([]);
});

test('an operator whose token was replaced is asked to sign in again', async () => {
  await signInWithBrowser(harness, page);
  await window.context.clearCookies();
  await page.getByRole('link', { name: 'Refresh' }).click();
  await page.getByLabel('Admin token').waitFor();
  expect(window.consoleErrors).toEqual([]);
});

test('on a phone, a table that continues has a shadow at the edge where it does', async () => {
  const phone = await openWindow(browser, { viewport: { width: 375, height: 667 }, colorScheme: 'light' });
  try {
    await signInWithBrowser(harness, phone.page);
    const table = phone.page.locator('#upstreams-table');
    await table.scrollIntoViewIfNeeded();
    const box = await table.boundingBox();
    if (box === null) throw new Error('the table is not displayed');
    /** A column of pixels between the last row and the edge, where there is no text. */
    const readEdge = async (x: number): Promise<string> =>
      (await phone.page.screenshot({ clip: { x, y: box.y + box.height - 8, width: 1, height: 2 } })).toString('base64');
    const [left, right] = [box.x + 3, box.x + box.width - 4];
    const plain = await readEdge(box.x + box.width / 2);
    expect([await readEdge(left), await readEdge(right)].map((edge) => edge === plain)).toEqual([true, false]);
    await table.evaluate((element) => {
      (element as unknown as { scrollLeft: number }).scrollLeft = 10_000;
    });
    expect([await readEdge(left), await readEdge(right)].map((edge) => edge === plain)).toEqual([false, true]);
  } finally {
    await phone.close();
  }
});
