import { createServer } from 'node:http';
import type { Browser } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type BrowserWindow, openChromium, openWindow, PHONE } from '../support/chromium.ts';
import { createPkce, withCodeClients } from '../support/code-client.ts';
import { createDeviceClient, type DeviceCodes } from '../support/device-client.ts';
import { createProviderSettings, type OpenIdProvider, startOpenIdProvider } from '../support/openid-provider.ts';
import { clickButton, followLink, getHeading, waitForNavigation } from '../support/page-states.ts';
import { issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { chooseVariants } from '../support/variants.ts';

// A complete gateway over TLS, a real OpenID provider on another site, and a real browser with its cookie rules.
let browser: Browser;
let gateway: TestGateway;
let provider: OpenIdProvider;
let window: BrowserWindow | undefined;
let url = '';

beforeAll(async () => {
  [browser, gateway] = await Promise.all([openChromium(), startGateway()]);
  url = `https://localhost:${gateway.port}`;
  // A different site than localhost, so a SameSite=Strict cookie is not sent on the redirect back.
  provider = await startOpenIdProvider(await issueServer(gateway.ca), [`${url}/authsvc/device/openid/works`], {
    host: '127.0.0.1',
  });
  await gateway.reload((settings) => ({
    ...withCodeClients(settings),
    publicUrl: url,
    signIn: {
      openid: {
        works: createProviderSettings(provider.issuer, { ca: 'ca.pem' }),
      },
    },
  }));
});
afterAll(async () => {
  await browser?.close();
  await gateway?.close();
  await provider?.stop();
});
afterEach(async () => {
  await window?.close();
  window = undefined;
});

const requestCodes = (): Promise<DeviceCodes> => createDeviceClient(gateway).requestCodes();
const exchangeCode = async (codes: DeviceCodes): Promise<Record<string, unknown>> =>
  (await createDeviceClient(gateway).exchange(codes.device_code)).json;

async function enterCode({ page }: BrowserWindow, codes: DeviceCodes): Promise<void> {
  await page.goto(codes.verification_uri_complete);
  await clickButton(page, 'Continue');
}

test.each(chooseVariants([true, false], [false]))(
  'OpenID Connect in a browser (scripts: %s): the user signs in at the provider, and the device gets its token',
  async (scripts) => {
    window = await openWindow(browser, { ...PHONE, javaScriptEnabled: scripts });
    const { page, context } = window;
    const codes = await requestCodes();
    await enterCode(window, codes);
    await page.getByRole('button', { name: 'Sign in with Example Login' }).click();
    // The pages of the provider.
    await page.locator('input[name=login]').fill('alice');
    await page.locator('input[name=password]').fill('any');
    await waitForNavigation(page, () => page.locator('button[type=submit]').first().click());
    await page.locator('input[name=prompt][value=consent]').waitFor({ state: 'attached' });
    await page.locator('button[type=submit]').first().click();
    await page.waitForURL(`${url}/authsvc/device/review`);
    expect(await page.locator('main').textContent()).toContain('Alice Example');
    expect((await context.cookies(url)).map(({ name, sameSite }) => `${name} ${sameSite}`)).toEqual([
      '__Host-gatehouse Strict',
    ]);
    await clickButton(page, 'Approve');
    expect(await getHeading(page)).toBe('Approved');
    expect((await exchangeCode(codes))['access_token']).toBeTypeOf('string');
    expect(gateway.auditEvents('device_confirmed').at(-1)).toMatchObject({ identity: ALICE });
  },
);

test('OpenID Connect during an authorization: the request returns to the review page, with a state of the greatest length', async () => {
  window = await openWindow(browser);
  const { page } = window;
  const seen: string[] = [];
  const { port, close } = await listenTcp(
    createServer((request, response) => {
      seen.push(request.url ?? '');
      response.end('done');
    }),
  );
  const state = 's'.repeat(1_450);
  try {
    const parameters = {
      response_type: 'code',
      client_id: 'app',
      redirect_uri: `http://127.0.0.1:${port}/callback`,
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
      scope: 'files:read',
      state,
    };
    await page.goto(`${url}/authsvc/oauth2/authorize?${new URLSearchParams(parameters).toString()}`);
    await page.getByRole('button', { name: 'Sign in with Example Login' }).click();
    await page.locator('input[name=login]').fill('alice');
    await page.locator('input[name=password]').fill('any');
    await waitForNavigation(page, () => page.locator('button[type=submit]').first().click());
    await page.locator('input[name=prompt][value=consent]').waitFor({ state: 'attached' });
    await page.locator('button[type=submit]').first().click();
    await page.waitForURL(/\/authsvc\/device\/review\?request=/);
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.waitForURL(`http://127.0.0.1:${port}/callback?**`);
    expect(new URL(page.url()).searchParams.get('state')).toBe(state);
    expect(seen[0]).toContain('code=gha_');
  } finally {
    await close();
  }
});

test('a user signs in with a client certificate in the browser, approves, and revokes the listed grant', async () => {
  const { alice } = gateway.users;
  window = await openWindow(browser, {
    ...PHONE,
    clientCertificates: [{ origin: url, cert: Buffer.from(alice.pem), key: Buffer.from(alice.keyPem) }],
  });
  const { page } = window;
  const codes = await requestCodes();
  await enterCode(window, codes);
  await clickButton(page, 'Sign in with a certificate');
  expect(await page.locator('main').textContent()).toContain('Alice Example');
  await clickButton(page, 'Approve');
  expect((await exchangeCode(codes))['access_token']).toBeTypeOf('string');

  await followLink(page, 'Approved apps and devices');
  const revoke = page.getByRole('link', { name: /^Revoke access for/ });
  const before = await revoke.count();
  expect(before).toBeGreaterThan(0);
  await waitForNavigation(page, () => revoke.first().click());
  await clickButton(page, 'Revoke');
  expect(await page.getByRole('status').textContent()).toContain('was revoked');
  expect(await revoke.count()).toBe(before - 1);
  expect(gateway.auditEvents('grant_revoked').at(-1)).toMatchObject({ by: 'owner', identity: ALICE });
});
