import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { openChromium, openWindow, PHONE, type Window } from '../support/chromium.ts';
import { type Codes, deviceSteps } from '../support/device-steps.ts';
import { ALICE, type House, openHouse } from '../support/house.ts';
import { CLIENT, openIdServer, type RunningProvider } from '../support/openid-provider.ts';
import { followLink, headingOf, leading, press } from '../support/page-states.ts';
import { issueServer } from '../support/pki.ts';

// The whole gateway over TLS, a real provider on another site, a real browser with its own rules about cookies.
let browser: Browser;
let house: House;
let provider: RunningProvider;
let window: Window | undefined;
let url = '';

beforeAll(async () => {
  [browser, house] = await Promise.all([openChromium(), openHouse()]);
  url = `https://localhost:${house.port}`;
  // Another site than localhost: a Strict cookie is not sent on the way back from it.
  provider = await openIdServer(await issueServer(house.ca), [`${url}/authsvc/device/openid/works`], {
    host: '127.0.0.1',
  });
  await house.reload((settings) => ({
    ...settings,
    publicUrl: url,
    signIn: {
      openid: {
        works: {
          title: 'Example Login',
          issuer: provider.issuer,
          clientId: CLIENT.id,
          clientSecret: CLIENT.secret,
          ca: 'ca.pem',
          directory: 'staff',
          claim: 'preferred_username',
          means: 'userName',
        },
      },
    },
  }));
});
afterAll(async () => {
  await browser?.close();
  await house?.close();
  await provider?.stop();
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
  await press(page, 'Continue');
}

test.each([true, false])(
  'OpenID Connect in a browser, scripts %s: to the provider and back, and the device gets its token',
  async (scripts) => {
    window = await openWindow(browser, { ...PHONE, javaScriptEnabled: scripts });
    const { page, context } = window;
    const codes = await asking();
    await enterCode(window, codes);
    await page.getByRole('button', { name: 'Sign in with Example Login' }).click();
    // The provider’s own pages.
    await page.locator('input[name=login]').fill('alice');
    await page.locator('input[name=password]').fill('any');
    await leading(page, () => page.locator('button[type=submit]').first().click());
    await page.locator('input[name=prompt][value=consent]').waitFor({ state: 'attached' });
    await page.locator('button[type=submit]').first().click();
    await page.waitForURL(`${url}/authsvc/device/review`);
    expect(await page.locator('main').textContent()).toContain('Alice Example');
    expect((await context.cookies(url)).map(({ name, sameSite }) => `${name} ${sameSite}`)).toEqual([
      '__Host-gatehouse Strict',
    ]);
    await press(page, 'Approve');
    expect(await headingOf(page)).toBe('Approved');
    expect((await exchanged(codes))['access_token']).toBeTypeOf('string');
    expect(house.audits('device_confirmed').at(-1)).toMatchObject({ identity: ALICE });
  },
);

test('a client certificate in the browser signs in and approves, and the grant is listed and revoked', async () => {
  const { alice } = house.people;
  window = await openWindow(browser, {
    ...PHONE,
    clientCertificates: [{ origin: url, cert: Buffer.from(alice.pem), key: Buffer.from(alice.keyPem) }],
  });
  const { page } = window;
  const codes = await asking();
  await enterCode(window, codes);
  await press(page, 'Use my certificate');
  expect(await page.locator('main').textContent()).toContain('Alice Example');
  await press(page, 'Approve');
  expect((await exchanged(codes))['access_token']).toBeTypeOf('string');

  await followLink(page, 'What have I approved?');
  const revoke = page.getByRole('link', { name: /^Revoke what/ });
  const before = await revoke.count();
  expect(before).toBeGreaterThan(0);
  await leading(page, () => revoke.first().click());
  await press(page, 'Revoke');
  expect(await page.getByRole('status').textContent()).toContain('can no longer act on your behalf');
  expect(await revoke.count()).toBe(before - 1);
  expect(house.audits('grant_revoked').at(-1)).toMatchObject({ by: 'its owner', identity: ALICE });
});
