import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { openChromium, openWindow, PHONE, type Window } from '../support/chromium.ts';
import { type Codes, deviceSteps } from '../support/device-steps.ts';
import { freePort } from '../support/gateway-process.ts';
import { ALICE, type House, openHouse } from '../support/house.ts';
import { CLIENT, openIdServer, type RunningProvider } from '../support/openid-provider.ts';
import { issueServer, makeCa } from '../support/pki.ts';

// The whole gateway over TLS, a real provider on another site, a real browser with its own rules about cookies.
let browser: Browser;
let house: House;
let provider: RunningProvider;
let window: Window | undefined;
let url = '';

beforeAll(async () => {
  const ca = await makeCa({ name: 'CA of the provider' });
  const port = await freePort();
  url = `https://localhost:${port}`;
  // Another site than localhost: a cookie that is Strict is not sent on the way back from it.
  provider = await openIdServer(await issueServer(ca), [`${url}/authsvc/device/openid/works`], {
    host: '127.0.0.1',
  });
  house = await openHouse(
    (settings) => ({
      ...settings,
      publicUrl: url,
      listen: { ...settings.listen, port },
      signIn: {
        openid: {
          works: {
            title: 'Example Login',
            issuer: provider.issuer,
            clientId: CLIENT.id,
            clientSecret: CLIENT.secret,
            ca: 'provider-ca.pem',
            directory: 'staff',
            claim: 'preferred_username',
            means: 'userName',
          },
        },
      },
    }),
    (folder) => writeFileSync(join(folder, 'provider-ca.pem'), ca.pem),
  );
  browser = await openChromium();
});
afterAll(async () => {
  await browser.close();
  await house.close();
  await provider.stop();
});
afterEach(async () => {
  await window?.close();
  window = undefined;
});

const asking = (): Promise<Codes> => deviceSteps(house).ask();
const exchanged = async (codes: Codes): Promise<Record<string, unknown>> =>
  (await deviceSteps(house).exchange(codes.device_code)).json;

async function enterCode({ page }: Window, codes: Codes): Promise<void> {
  await page.goto(codes.verification_uri_complete);
  await page.getByRole('button', { name: 'Continue' }).click();
}

test.each([true, false])(
  'OpenID in a browser, scripts %s: to the provider and back, and the device gets its token',
  async (scripts) => {
    window = await openWindow(browser, { ...PHONE, javaScriptEnabled: scripts });
    const { page, context } = window;
    const codes = await asking();
    await enterCode(window, codes);
    await page.getByRole('button', { name: 'Sign in with Example Login' }).click();
    // The provider’s own pages.
    await page.waitForURL(`${provider.issuer}/**`);
    await page.locator('input[name=login]').fill('alice');
    await page.locator('input[name=password]').fill('any');
    await page.locator('button[type=submit]').first().click();
    await page.locator('input[name=prompt][value=consent]').waitFor({ state: 'attached' });
    await page.locator('button[type=submit]').first().click();
    await page.waitForURL(`${url}/authsvc/device/review`);
    expect(await page.locator('main').textContent()).toContain('Alice Example');
    expect((await context.cookies(url)).map(({ name, sameSite }) => `${name} ${sameSite}`)).toEqual([
      '__Host-gatehouse Strict',
    ]);
    await page.getByRole('button', { name: 'Approve' }).click();
    expect(await page.getByRole('heading', { level: 1 }).textContent()).toBe('Approved');
    expect((await exchanged(codes))['access_token']).toBeTypeOf('string');
    expect(house.audits('device_confirmed').at(-1)).toMatchObject({ identity: ALICE });
  },
);

test('a certificate in the browser: signed in by it, and approved', async () => {
  const { alice } = house.people;
  window = await openWindow(browser, {
    ...PHONE,
    clientCertificates: [{ origin: url, cert: Buffer.from(alice.pem), key: Buffer.from(alice.keyPem) }],
  });
  const { page } = window;
  const codes = await asking();
  await enterCode(window, codes);
  await page.getByRole('button', { name: 'Use my certificate' }).click();
  expect(await page.locator('main').textContent()).toContain('Alice Example');
  await page.getByRole('button', { name: 'Approve' }).click();
  expect((await exchanged(codes))['access_token']).toBeTypeOf('string');

  // What was approved is in the list, and ends there.
  await page.getByRole('link', { name: 'What have I approved?' }).click();
  const before = await page.getByRole('link', { name: /^Revoke what/ }).count();
  expect(before).toBeGreaterThan(0);
  await page
    .getByRole('link', { name: /^Revoke what/ })
    .first()
    .click();
  await page.getByRole('button', { name: 'Revoke' }).click();
  expect(await page.getByRole('status').textContent()).toContain('can no longer act on your behalf');
  expect(await page.getByRole('link', { name: /^Revoke what/ }).count()).toBe(before - 1);
  expect(house.audits('grant_revoked').at(-1)).toMatchObject({ by: 'its owner', identity: ALICE });
});
