import { once } from 'node:events';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { type BrowserWindow, horizontalOverflow } from '../support/chromium.ts';
import { clickButton, getHeading, openReview, waitForNavigation } from '../support/page-states.ts';
import { BASE, type PagesHarness, type PendingRequest } from '../support/pages-harness.ts';
import { issueServer } from '../support/pki.ts';
import { withIntegration } from '../support/reconfigure.ts';
import { until } from '../support/until.ts';
import { pagesInBrowser } from './browser-states.ts';

const setting = pagesInBrowser();

let evil: Server;
let served = '';
beforeAll(async () => {
  const { pem, keyPem } = await issueServer(setting().pages.gateway.ca);
  evil = createServer({ cert: pem, key: keyPem }, (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/html' }).end(served);
  });
  await once(evil.listen(0), 'listening');
});
afterAll(() => {
  evil?.close();
  evil?.closeAllConnections();
});
const attackerUrl = (host: string): string => `https://${host}:${(evil.address() as AddressInfo).port}/`;

let pages: PagesHarness;
let desktop: BrowserWindow;
let page: Page;
let tab: Page | undefined;
beforeEach(() => {
  ({ pages, desktop } = setting());
  page = desktop.page;
});
afterEach(async () => {
  await tab?.close();
  tab = undefined;
});

async function openCheckedReview(): Promise<PendingRequest> {
  const pending = await openReview({ pages, page });
  expect(await getHeading(page)).toBe('Approve this request?');
  return pending;
}

test.each([
  ['another site', '127.0.0.1'],
  ['another port of the same site, with its cookies,', 'localhost'],
])('D12 a form that %s submits approves nothing, even with the right token', async (_, host) => {
  const pending = await openCheckedReview();
  const token = await page.locator(`form[action="${BASE}/approve"] input[name=form_token]`).getAttribute('value');
  served = `<form method="post" action="${pages.url}${BASE}/approve"><input name="form_token" value="${token}"></form><script>document.forms[0].submit()</script>`;
  tab = await desktop.context.newPage();
  const attempt = tab.waitForResponse(`${pages.url}${BASE}/approve`);
  await tab.goto(attackerUrl(host));
  expect((await attempt).status()).toBe(403);
  expect(await getHeading(tab)).toMatch(/not accepted|expired/);
  expect(await pages.readState(pending)).toBe('pending');
});

test('D13 no page is shown in a frame', async () => {
  const pending = await openCheckedReview();
  served = `<iframe src="${pages.url}${BASE}/review" width="600" height="900"></iframe>`;
  tab = await desktop.context.newPage();
  await tab.goto(attackerUrl('localhost'));
  const frame = await until('the frame has been blocked', () =>
    tab?.frames().find((candidate) => candidate.url().startsWith('chrome-error:')),
  );
  expect(await frame.locator('body').textContent()).not.toContain('Approve');
  expect(await pages.readState(pending)).toBe('pending');
});

test('D11 D16 opening, reloading, prefetching and going back decide nothing', async () => {
  const pending = await openCheckedReview();
  await page.reload();
  await page.goBack();
  await page.goForward();
  const url = (path: string, by = 'link'): string =>
    `${pages.url}${BASE}${path}?user_code=${pending.user_code}&by=${by}`;
  for (const path of ['', '/review', '/approve', '/deny', '/done']) await page.goto(url(path));
  const paths = ['', '/review', '/approve', '/deny'];
  // Each has a URL of its own: a browser may answer one request with the response to another.
  served = paths
    .map((path) => `<img src="${url(path, 'img')}"><link rel="prefetch" href="${url(path, 'prefetch')}">`)
    .join('');
  pages.gateway.clearLog();
  await page.goto(attackerUrl('localhost'));
  // The browser hides blocked requests, so the gateway's log is used.
  const countRequests = (): number => pages.gateway.log.filter(({ event }) => event === 'request').length;
  await vi.waitFor(() => expect(countRequests()).toBeGreaterThanOrEqual(paths.length * 2), {
    timeout: 30_000,
  });
  expect(await pages.readState(pending)).toBe('pending');
});

test('D15 two clicks on Approve are one approval; going back and denying does not undo it', async () => {
  const pending = await openCheckedReview();
  tab = await desktop.context.newPage();
  await tab.goto(page.url());
  // The first request is held until the second has arrived. `click` is not used, because it waits for the navigation.
  const held = Promise.withResolvers<void>();
  let arrived = 0;
  pages.beforeStore = () => {
    arrived += 1;
    return held.promise;
  };
  const approve = page.getByRole('button', { name: 'Approve' });
  await approve.scrollIntoViewIfNeeded();
  const { x = 0, y = 0 } = (await approve.boundingBox()) ?? {};
  await waitForNavigation(page, async () => {
    for (const clicks of [1, 2]) {
      await page.mouse.click(x + 5, y + 5);
      await vi.waitFor(() => expect(arrived).toBe(clicks), { timeout: 30_000 });
    }
    held.resolve();
  });
  expect(await getHeading(page)).toBe('Approved');
  expect(pages.gateway.auditEvents('device_confirmed')).toHaveLength(1);
  await page.goBack();
  expect(await getHeading(page)).toBe('Approved');
  await clickButton(tab, 'Deny');
  expect(await getHeading(tab)).toBe('Already approved');
  expect(await pages.readState(pending)).toBe('confirmed');
});

test('D14 a hostile integration name is shown as text and reorders nothing', async () => {
  const name = `<img src=x onerror=alert(1)>\u202eevil<script>alert(2)</script>${'x'.repeat(180)}`;
  await pages.reconfigure(withIntegration('report-runner', { name }));
  await openCheckedReview();
  expect(desktop.consoleErrors).toEqual([]);
  expect(await page.locator('main img, script').count()).toBe(0);
  expect(await page.locator('main').textContent()).not.toContain('\u202e');
  expect(await horizontalOverflow(page)).toBeLessThanOrEqual(0);
});

test('after signing out, the browser cannot go back to the pages of the previous user', async () => {
  const pending = await openCheckedReview();
  await clickButton(page, /Sign out/);
  expect(await getHeading(page)).toBe('Sign in');
  await page.goBack();
  expect(await page.locator('body').textContent()).not.toContain('Alice Example');
  expect(await pages.readState(pending)).toBe('pending');
});
