import { createServer } from 'node:https';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openChromium, openWindow } from '../support/chromium.ts';
import { clickButton } from '../support/page-states.ts';
import { issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { PASSWORD, startGateway, type TestGateway } from '../support/test-gateway.ts';

let browser: Browser;
let gateway: TestGateway;
let url = '';
let site = '';
let closeSite = async (): Promise<void> => {};

beforeAll(async () => {
  [browser, gateway] = await Promise.all([openChromium(), startGateway()]);
  url = `https://localhost:${gateway.port}`;
  await gateway.reload((settings) => ({ ...settings, publicUrl: url }));
  const { pem, keyPem } = await issueServer(gateway.ca);
  const listener = await listenTcp(
    createServer({ cert: pem, key: keyPem }, (_request, response) => {
      response
        .writeHead(200, { 'content-type': 'text/html' })
        .end(`<a href="${url}/authsvc/device/grants">List</a> <a href="${url}/authsvc/device">Code</a>`);
    }),
  );
  site = `https://127.0.0.1:${listener.port}/`;
  closeSite = listener.close;
});
afterAll(async () => {
  await browser?.close();
  await gateway?.close();
  await closeSite();
});

test('links of another site to the pages do not sign the user out', async () => {
  const window = await openWindow(browser, { javaScriptEnabled: false });
  const { page } = window;
  try {
    await page.goto(`${url}/authsvc/device/grants`);
    await page.getByLabel('Username').fill('alice');
    await page.getByLabel('Password').fill(PASSWORD);
    await clickButton(page, 'Sign in');
    for (const name of ['List', 'Code', 'List']) {
      await page.goto(site);
      await page.getByRole('link', { name }).click();
      await page.waitForURL(`${url}/authsvc/device${name === 'List' ? '/grants' : ''}`);
      if (name === 'List') await page.getByText('Alice Example').waitFor();
      else await page.getByLabel('Code').waitFor();
    }
    // Each link is one request without the session and one with it.
    const requests = gateway.log.filter(({ rule, method }) => rule === 'pages' && method === 'GET');
    expect(requests.length).toBeLessThan(12);
    expect(window.consoleErrors).toEqual([]);
  } finally {
    await window.close();
  }
});
