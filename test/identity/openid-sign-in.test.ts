import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Agent } from 'undici';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { deriveSubjectId } from '../../src/identity/local-directories.ts';
import { APP, CALLBACK, createPkce } from '../support/code-client.ts';
import { createAgent, FormBrowser, type Page } from '../support/form-browser.ts';
import {
  CLIENT,
  createProviderSettings,
  type OpenIdProvider,
  startOpenIdProvider,
  submitProviderPage,
} from '../support/openid-provider.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

let gateway: TestGateway;
let agent: Agent;
let base = '';
/** Three providers: `corp` for most tests, another issuer, and one without claims in the ID token. */
let corp: OpenIdProvider;
let other: OpenIdProvider;
let quiet: OpenIdProvider;

type Provider = ReturnType<typeof createProviderSettings>;

beforeAll(async () => {
  gateway = await startGateway();
  const server = await issueServer(gateway.ca);
  const origin = `https://localhost:${gateway.port}`;
  base = `${origin}/authsvc/device`;
  const back = (name: string): string => `${base}/openid/${name}`;
  corp = await startOpenIdProvider(
    server,
    ['corp', 'by-email', 'by-id', 'derived', 'with-groups', 'untrusted', 'wrong-secret'].map(back),
  );
  other = await startOpenIdProvider(server, [back('other')]);
  quiet = await startOpenIdProvider(server, [back('quiet')], { claimsInToken: false });
  agent = createAgent({ ca: gateway.ca.pem });
  const provider = ({ issuer = corp.issuer, ...changes }: Partial<Provider> = {}): Provider =>
    createProviderSettings(issuer, { ca: 'ca.pem', ...changes });
  const untrusted = await createCa({ name: 'CN=Another CA' });
  writeFileSync(join(gateway.folder, 'another-ca.pem'), untrusted.pem);
  await gateway.reload((settings) => ({
    ...settings,
    publicUrl: origin,
    directories: { ...settings.directories, elsewhere: { label: 'ext', derive: true } },
    integrations: [
      ...(settings.integrations ?? []).map((integration) => ({
        ...integration,
        access: [...(integration.access ?? []), { directory: 'elsewhere' }],
      })),
      APP,
      { clientId: 'partner-app', scope: 'files:read', access: [{ groups: ['partners'] }] },
    ],
    signIn: {
      openid: {
        corp: provider({ prompt: 'login' }),
        other: provider({ issuer: other.issuer }),
        quiet: provider({ issuer: quiet.issuer }),
        'by-email': provider({ claim: 'email', means: 'email' }),
        'by-id': provider({ claim: 'oid', means: 'id' }),
        derived: provider({ directory: 'elsewhere', claim: 'sub', means: 'subject' }),
        'with-groups': provider({
          directory: 'elsewhere',
          claim: 'sub',
          means: 'subject',
          groups: 'groups',
        }),
        untrusted: provider({ ca: 'another-ca.pem' }),
        'wrong-secret': provider({ clientSecret: 'not the secret' }),
      },
    },
  }));
});
afterAll(async () => {
  await agent.destroy();
  await gateway.close();
  for (const provider of [corp, other, quiet]) await provider.stop();
});

beforeEach(() => {
  corp.isUnavailable = false;
  // The sign-in limit of the address recovers.
  gateway.clock.advance(60);
});

const newBrowser = (): FormBrowser => new FormBrowser({ agent, base });

/** Goes from the list of grants to the provider’s sign-in page. */
async function goToProvider(browser: FormBrowser, provider: string): Promise<Page> {
  await browser.open(`${base}/grants`);
  return browser.post('/openid', { provider });
}

/** Signs in at the provider, and returns the URL it sends the browser back to. */
async function signInAtProvider(browser: FormBrowser, leaving: Page, account: string): Promise<string> {
  const isBack = (url: string): boolean => url.startsWith(base);
  let page = await browser.follow(leaving, isBack);
  for (let steps = 0; steps < 5 && !isBack(page.redirectTo ?? ''); steps += 1) {
    const submitted = await submitProviderPage(browser, page, account);
    page = await browser.follow(submitted.page, isBack);
  }
  if (page.redirectTo === undefined) throw new Error(`no redirect back from the provider:\n${page.text}`);
  return page.redirectTo;
}

async function signIn(provider: string, account: string): Promise<{ browser: FormBrowser; arrived: Page }> {
  const browser = newBrowser();
  const back = await signInAtProvider(browser, await goToProvider(browser, provider), account);
  return { browser, arrived: await browser.get(back) };
}

const getHost = (): string => new URL(base).host;
const failures = () => gateway.auditEvents('sign_in_failed').slice(-1);

test('a sign-in at the provider is matched with the directory by user name', async () => {
  const { browser, arrived } = await signIn('corp', 'alice');
  expect(arrived.status).toBe(200);
  expect(arrived.redirectTo).toBe(`${base}/grants`);
  expect((await browser.follow(arrived)).text).toContain('Alice Example');
  expect(gateway.auditEvents('sign_in').at(-1)).toMatchObject({ identity: ALICE, by: 'openid' });
  // The cookie of the sign-in is deleted.
  expect([...(browser.jar.get(getHost())?.keys() ?? [])]).toEqual(['__Host-gatehouse']);
});

test('a sign-in is matched by a verified e-mail address, or by an id with or without braces', async () => {
  for (const provider of ['by-email', 'by-id']) {
    const { browser, arrived } = await signIn(provider, 'alice');
    expect((await browser.follow(arrived)).text, provider).toContain('Alice Example');
  }
});

test('an e-mail address that the provider has not verified is rejected', async () => {
  const { arrived } = await signIn('by-email', 'mallory');
  expect(arrived.status).toBe(403);
  expect(arrived.text).toContain('Sign-in failed');
  expect(failures()).toMatchObject([{ by: 'openid', reason: 'openid_refused' }]);
});

test('a user who is not in the directory is rejected and can sign in in another way', async () => {
  const { arrived } = await signIn('corp', 'stranger');
  expect(arrived.status).toBe(403);
  expect(arrived.text).toContain('Your account doesn’t have access here');
  expect(arrived.text).toContain('name="password"');
});

test('a derived directory: the identity is a digest of issuer and subject, the name comes from the provider', async () => {
  const { browser, arrived } = await signIn('derived', 'stranger');
  const list = await browser.follow(arrived);
  expect(list.text).toContain('Stranger');
  const identity = `ext:${deriveSubjectId(corp.issuer, 'stranger')}`;
  expect(gateway.auditEvents('sign_in').at(-1)).toMatchObject({ identity });
});

test('claims missing in the ID token are read from the userinfo endpoint', async () => {
  const { browser, arrived } = await signIn('quiet', 'alice');
  expect((await browser.follow(arrived)).text).toContain('Alice Example');
});

test('a device is approved after a sign-in at the provider', async () => {
  const body = (await gateway.post('/Authorize/Device', { client_id: 'report-runner', scope: 'files:read' })).json;
  const browser = newBrowser();
  await browser.open(String(body['verification_uri_complete']));
  await browser.submit('/device', { user_code: String(body['user_code']) });
  const leaving = await browser.post('/openid', { provider: 'corp' });
  const review = await browser.open(await signInAtProvider(browser, leaving, 'alice'));
  expect(review.text).toContain('Approve this request?');
  expect((await browser.submit('/approve')).text).toContain('<h1>Approved</h1>');
});

describe('groups of the provider', () => {
  async function requestApproval(provider: string, account: string) {
    const body = (await gateway.post('/Authorize/Device', { client_id: 'partner-app', scope: 'files:read' })).json;
    const browser = newBrowser();
    await browser.open(String(body['verification_uri_complete']));
    await browser.submit('/device', { user_code: String(body['user_code']) });
    const leaving = await browser.post('/openid', { provider });
    const review = await browser.open(await signInAtProvider(browser, leaving, account));
    const poll = () =>
      gateway.post('/Authorize/Token', {
        client_id: 'partner-app',
        grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
        device_code: String(body['device_code']),
      });
    return { browser, review, poll };
  }

  test('they give access, reach the upstream, and count at a refresh while the provider may assert groups', async () => {
    const { browser, review, poll } = await requestApproval('with-groups', 'stranger');
    expect(review.text).toContain('/approve"');
    expect((await browser.submit('/approve')).text).toContain('<h1>Approved</h1>');
    const grant = (await poll()).json;
    expect((await gateway.api('/files/1', String(grant['access_token']))).status).toBe(200);
    expect(gateway.upstream.requests.at(-1)?.headers).toMatchObject({
      'x-forwarded-preferred-username': 'stranger',
    });
    const refresh = (token: unknown) =>
      gateway.post('/Authorize/Token', { client_id: 'partner-app', refresh_token: String(token) });
    const refreshed = await refresh(grant['refresh_token']);
    expect(refreshed.status).toBe(200);

    const changeClaim = (groups: string | undefined) =>
      gateway.reload((settings) => {
        const { 'with-groups': { groups: _groups, ...provider } = {}, ...others } = settings.signIn?.openid ?? {};
        const changed = { ...provider, ...(groups !== undefined && { groups }) } as Provider;
        return { ...settings, signIn: { openid: { ...others, 'with-groups': changed } } };
      });
    await changeClaim(undefined);
    expect((await refresh(refreshed.json['refresh_token'])).json['Error']).toBe('unauthorized_client');
    await changeClaim('groups');
    expect((await refresh(refreshed.json['refresh_token'])).status).toBe(200);
  });

  test('without the setting, and for users without the group, they give no access', async () => {
    for (const [provider, account] of [
      ['derived', 'stranger'],
      ['with-groups', 'mallory'],
    ] as const) {
      const { browser, review, poll } = await requestApproval(provider, account);
      expect(review.text, provider).not.toContain('/approve"');
      const forced = await browser.send('POST', `${base}/approve`, '');
      expect(forced.status).not.toBe(200);
      expect((await poll()).json['access_token']).toBeUndefined();
    }
  });

  test('they end with the session: the next user of the browser does not inherit them', async () => {
    const { browser } = await requestApproval('with-groups', 'stranger');
    await browser.submit('/sign-out');
    const leaving = await browser.post('/openid', { provider: 'derived' });
    const review = await browser.open(await signInAtProvider(browser, leaving, 'mallory'));
    expect(review.text).not.toContain('/approve"');
  });
});

describe('attacks', () => {
  test('the authorization request has PKCE, state, nonce and prompt, and no client secret', async () => {
    const leaving = await goToProvider(newBrowser(), 'corp');
    const query = new URL(leaving.redirectTo ?? '').searchParams;
    expect(query.get('code_challenge_method')).toBe('S256');
    for (const name of ['code_challenge', 'state', 'nonce']) expect(query.get(name)?.length).toBeGreaterThanOrEqual(43);
    expect(query.get('prompt')).toBe('login');
    expect(query.get('redirect_uri')).toBe(`${base}/openid/corp`);
    expect(leaving.text).not.toContain(CLIENT.secret);
    const cookie = [leaving.headers['set-cookie'] ?? []]
      .flat()
      .find((line) => line.startsWith('__Host-gatehouse-openid='));
    expect(cookie).toMatch(/; Path=\/; Max-Age=600; HttpOnly; SameSite=Lax; Secure$/);
    expect(leaving.headers['content-security-policy']).toContain("form-action 'self'");
  });

  test('the response to another browser’s request is rejected (login CSRF)', async () => {
    const attacker = newBrowser();
    const back = await signInAtProvider(attacker, await goToProvider(attacker, 'corp'), 'mallory');
    const before = corp.tokenRequests();
    const victim = newBrowser();
    expect((await victim.get(back)).status).toBe(403);
    await goToProvider(victim, 'corp');
    const response = await victim.get(back);
    expect(response.status).toBe(403);
    // Rejected before the OpenID library processes it.
    expect(response.text).toContain('<h1>Request not accepted</h1>');
    expect([response.headers['set-cookie'] ?? []].flat().some((line) => line.startsWith('__Host-gatehouse='))).toBe(
      false,
    );
    expect(corp.tokenRequests()).toBe(before);
  });

  test('a response works once, even with every cookie restored', async () => {
    const browser = newBrowser();
    const leaving = await goToProvider(browser, 'corp');
    const back = await signInAtProvider(browser, leaving, 'alice');
    const jar = new Map(browser.jar.get(getHost()));
    expect((await browser.get(back)).redirectTo).toBe(`${base}/grants`);
    expect((await browser.get(back)).status).toBe(403);
    browser.jar.set(getHost(), jar);
    const again = await browser.get(back);
    expect(again.status).toBe(403);
    expect(again.redirectTo).toBeUndefined();
  });

  test('mix-up: a provider’s response is rejected at the redirect URI, and under the issuer, of another', async () => {
    const browser = newBrowser();
    const back = await signInAtProvider(browser, await goToProvider(browser, 'corp'), 'alice');
    const before = other.tokenRequests();
    const elsewhere = await browser.get(back.replace('/openid/corp', '/openid/other'));
    expect(elsewhere.status).toBe(403);
    expect(elsewhere.text).toContain('<h1>Request not accepted</h1>');
    expect(other.tokenRequests()).toBe(before);
    const two = newBrowser();
    const mixed = new URL(await signInAtProvider(two, await goToProvider(two, 'corp'), 'alice'));
    mixed.searchParams.set('iss', other.issuer);
    const response = await two.get(mixed.href);
    expect(response.status).toBe(403);
    expect(response.text).toContain('Sign-in failed');
  });

  test('a wrong, repeated or missing code or state is rejected', async () => {
    for (const change of [
      (url: URL) => url.searchParams.set('code', 'another'),
      (url: URL) => url.searchParams.set('state', 'another'),
      (url: URL) => url.searchParams.append('state', url.searchParams.get('state') ?? ''),
      (url: URL) => url.searchParams.append('code', 'another'),
      (url: URL) => url.searchParams.delete('state'),
      (url: URL) => url.searchParams.delete('code'),
    ]) {
      const browser = newBrowser();
      const back = new URL(await signInAtProvider(browser, await goToProvider(browser, 'corp'), 'alice'));
      change(back);
      const response = await browser.get(back.href);
      expect(response.status, change.toString()).toBe(403);
      expect(response.redirectTo).toBeUndefined();
    }
  });

  test('only a form of gatehouse starts a sign-in at a provider', async () => {
    const browser = newBrowser();
    await browser.open(`${base}/grants`);
    expect((await browser.send('POST', `${base}/openid`, 'provider=corp')).status).toBe(403);
    expect((await browser.get(`${base}/openid`)).status).toBe(405);
    expect((await goToProvider(browser, 'no-such-provider')).status).toBe(403);
    expect((await goToProvider(browser, '__proto__')).status).toBe(403);
    expect((await browser.send('POST', `${base}/openid/corp`, '')).status).toBe(405);
  });

  test('cancelling at the provider leads back to the sign-in page', async () => {
    const browser = newBrowser();
    const leaving = await goToProvider(browser, 'corp');
    const state = new URL(leaving.redirectTo ?? '').searchParams.get('state') ?? '';
    const iss = encodeURIComponent(corp.issuer);
    const response = await browser.get(`${base}/openid/corp?error=access_denied&state=${state}&iss=${iss}`);
    expect(response.status).toBe(403);
    expect(response.text).toContain('was not completed');
    expect(response.text).toContain('Sign in with Example Login');
  });

  test('codes, tokens and secrets are never logged', async () => {
    const browser = newBrowser();
    const back = new URL(await signInAtProvider(browser, await goToProvider(browser, 'corp'), 'alice'));
    await browser.get(back.href);
    const text = gateway.logLines.join('');
    for (const name of ['code', 'state']) expect(text).not.toContain(back.searchParams.get(name) ?? 'missing');
    expect(text).not.toContain(CLIENT.secret);
  });
});

describe('an unreachable provider', () => {
  test('before the redirect: 503 with Retry-After, and it works once the provider is back', async () => {
    await gateway.reload((settings) => settings);
    corp.isUnavailable = true;
    const page = await goToProvider(newBrowser(), 'corp');
    expect(page.status).toBe(503);
    expect(page.headers['retry-after']).toBeDefined();
    expect(page.text).toContain('Sign-in temporarily unavailable');
    corp.isUnavailable = false;
    // A failed discovery is cached briefly.
    await until('discovery is retried', async () => (await goToProvider(newBrowser(), 'corp')).status === 200);
  });

  test('after the redirect: 503', async () => {
    const browser = newBrowser();
    const back = await signInAtProvider(browser, await goToProvider(browser, 'corp'), 'alice');
    corp.isUnavailable = true;
    expect((await browser.get(back)).status).toBe(503);
  });

  test('after the redirect, in the sign-in for an app: the page leads back to the request of the app', async () => {
    const browser = newBrowser();
    const parameters = {
      response_type: 'code',
      client_id: 'app',
      redirect_uri: CALLBACK,
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
    };
    const { host } = new URL(base);
    await browser.open(`https://${host}/authsvc/oauth2/authorize?${new URLSearchParams(parameters).toString()}`);
    const leaving = await browser.post('/openid', { provider: 'corp' });
    const back = await signInAtProvider(browser, leaving, 'alice');
    corp.isUnavailable = true;
    const page = await browser.get(back);
    expect(page.status).toBe(503);
    expect(page.text).toContain('The app’s request remains valid for a few minutes.');
    const [, path = ''] = /href="([^"]*\/sign-in\?request=[^"]*)">Try again/.exec(page.text) ?? [];
    corp.isUnavailable = false;
    const again = await browser.open(`https://${host}${path.replaceAll('&amp;', '&')}`);
    expect([again.status, again.text.includes('Sign in with Example Login')]).toEqual([200, true]);
  });

  test('an untrusted provider certificate and a wrong client secret are reported as internal failures', async () => {
    expect((await goToProvider(newBrowser(), 'untrusted')).status).toBe(503);
    expect(gateway.log.findLast(({ event }) => event === 'page_failed')).toMatchObject({
      level: 'error',
      request_id: expect.stringMatching(/^[\w-]{8,}$/),
      error: expect.stringMatching(/^OpenID: /),
      cause: expect.stringMatching(/certificate/),
    });
    const { arrived } = await signIn('wrong-secret', 'alice');
    expect(arrived.status).toBe(503);
  });
});
