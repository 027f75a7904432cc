import { createServer } from 'node:http';
import type { Agent } from 'undici';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  APP,
  CALLBACK,
  type CodeFlow,
  createCodeFlow,
  type Fields,
  ISSUER,
  readResponse,
} from '../support/code-client.ts';
import { createForeignKey, type ForeignKey, formatKeySet, signForeign } from '../support/foreign-issuer.ts';
import { createAgent, FormBrowser, type Page } from '../support/form-browser.ts';
import {
  CLIENT,
  createDiscovery,
  createProviderSettings,
  type OpenIdProvider,
  startOpenIdProvider,
  submitProviderPage,
} from '../support/openid-provider.ts';
import { issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** An app demands a new authentication with `prompt=login` or `max_age`, and the user signs in at an OpenID provider that knows them. */
describe('with a provider that follows OpenID Connect', () => {
  let gateway: TestGateway;
  let provider: OpenIdProvider;
  let agent: Agent;
  let browser: FormBrowser;
  let origin = '';

  beforeAll(async () => {
    gateway = await startGateway();
    origin = `https://localhost:${gateway.port}`;
    const server = await issueServer(gateway.ca);
    provider = await startOpenIdProvider(server, [`${origin}/authsvc/device/openid/corp`]);
    agent = createAgent({ ca: gateway.ca.pem });
    await gateway.reload((settings) => ({
      ...settings,
      publicUrl: origin,
      integrations: [APP],
      routes: [{ path: '/files/**', requires: 'files:read' }],
      signIn: { openid: { corp: createProviderSettings(provider.issuer, { ca: 'ca.pem' }) } },
    }));
    browser = new FormBrowser({ agent, base: origin });
  });
  afterAll(async () => {
    await agent?.destroy();
    await gateway?.close();
    await provider?.stop();
  });

  /** Until the approval, the app, or a sign-in page. Returns whether the provider asked for a password. */
  async function authorize(changes: Fields): Promise<{ readonly page: Page; readonly isAsked: boolean }> {
    const query = new URLSearchParams({
      response_type: 'code',
      client_id: 'app',
      redirect_uri: CALLBACK,
      scope: 'files:read',
      code_challenge: 'x'.repeat(43),
      code_challenge_method: 'S256',
      ...changes,
    });
    const isApp = (url: string): boolean => url.startsWith(CALLBACK);
    let isAsked = false;
    let page = await browser.follow(await browser.get(`/authsvc/oauth2/authorize?${query.toString()}`), isApp);
    for (let steps = 0; steps < 8 && page.redirectTo === undefined; steps += 1) {
      if (page.url.includes('/authsvc/device/review')) break;
      if (page.url.includes('/authsvc/device/sign-in')) page = await browser.post('/openid', { provider: 'corp' });
      else {
        const submitted = await submitProviderPage(browser, page, 'alice');
        isAsked ||= submitted.isSignIn;
        ({ page } = submitted);
      }
      page = await browser.follow(page, isApp);
    }
    return { page, isAsked };
  }

  test('it is asked to authenticate the user again, and only then is the user asked to approve', async () => {
    expect((await authorize({})).isAsked, 'the first time').toBe(true);
    expect((await authorize({})).isAsked, 'signed in').toBe(false);
    const again = await authorize({ prompt: 'login' });
    expect([again.isAsked, again.page.url]).toEqual([true, expect.stringContaining('/review')]);

    // The session here ends, that at the provider does not.
    await browser.get((await authorize({})).page.url);
    await browser.submit('/authsvc/device/sign-out');
    expect((await authorize({})).isAsked, 'the provider knows the user').toBe(false);
    const old = await authorize({ max_age: '0' });
    expect([old.isAsked, old.page.url]).toEqual([true, expect.stringContaining('/review')]);
  });
});

describe('with a provider that ignores it', () => {
  let gateway: TestGateway;
  let flow: CodeFlow;
  let key: ForeignKey;
  let closeProvider = async (): Promise<void> => {};
  let isDown = false;
  /** Seconds since the user authenticated at the provider; undefined: it does not say. */
  let age: number | undefined;
  let nonce = '';
  let demanded: Fields = {};

  beforeAll(async () => {
    key = await createForeignKey();
    let issuer = '';
    const respond = async (path: string): Promise<unknown> => {
      if (path === '/keys') return JSON.parse(formatKeySet(key));
      if (path !== '/token') return createDiscovery(issuer);
      const now = Math.floor(Date.now() / 1_000);
      const claims = {
        iss: issuer,
        sub: 'alice',
        preferred_username: 'alice',
        aud: CLIENT.id,
        iat: now,
        exp: now + 300,
        nonce,
        ...(age !== undefined && { auth_time: now - age }),
      };
      return { access_token: 'token', token_type: 'Bearer', id_token: await signForeign(key, claims) };
    };
    const listener = await listenTcp(
      createServer((request, response) => {
        if (isDown) return void response.writeHead(503).end();
        void respond(request.url ?? '').then((body) =>
          response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body)),
        );
      }),
    );
    issuer = `http://127.0.0.1:${listener.port}`;
    closeProvider = listener.close;
    gateway = await startGateway((settings) => ({
      ...settings,
      integrations: [APP],
      routes: [{ path: '/files/**', requires: 'files:read' }],
      signIn: { openid: { corp: createProviderSettings(issuer) } },
    }));
  });
  afterAll(async () => {
    await gateway?.close();
    await closeProvider();
  });
  beforeEach(() => {
    flow = createCodeFlow(gateway);
    gateway.clearLog();
  });
  afterEach(() => flow[Symbol.asyncDispose]());

  /** The response to the redirect of the provider. */
  async function signInAtProvider(changes: Fields): Promise<Page> {
    const page = await flow.browser.follow(await flow.authorize(changes));
    expect(page.text).toContain('Example Login');
    const leaving = await flow.browser.post('/openid', { provider: 'corp' });
    demanded = Object.fromEntries(new URL(leaving.redirectTo ?? '').searchParams);
    nonce = demanded['nonce'] ?? '';
    return flow.browser.get(`${demanded['redirect_uri']}?code=1&state=${demanded['state']}`);
  }

  test.each<[string, Fields, number | undefined, boolean]>([
    ['no demand, and it does not say when', {}, undefined, true],
    ['no demand, a day ago', {}, 86_400, true],
    ['prompt=login, just now', { prompt: 'login' }, 0, true],
    ['prompt=login, and it does not say when', { prompt: 'login' }, undefined, false],
    ['prompt=login, a minute ago', { prompt: 'login' }, 60, false],
    ['prompt=login with a large max_age, a minute ago', { prompt: 'login', max_age: '3600' }, 60, false],
    ['max_age=30, a minute ago', { max_age: '30' }, 60, false],
    ['max_age=30, and it does not say when', { max_age: '30' }, undefined, false],
    ['max_age=3600, a minute ago', { max_age: '3600' }, 60, true],
    ['prompt=select_account, a day ago', { prompt: 'select_account' }, 86_400, true],
  ])('%s', async (_, changes, authenticationAge, isAccepted) => {
    age = authenticationAge;
    const page = await signInAtProvider(changes);
    if (isAccepted) {
      const review = await flow.browser.follow(page);
      expect(review.text).toContain('Approve');
      expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
      return;
    }
    const { href, searchParams } = readResponse(page);
    expect(href.startsWith(`${CALLBACK}?`)).toBe(true);
    expect(Object.fromEntries(searchParams)).toMatchObject({
      error: 'login_required',
      state: 'af0ifjsldkj',
      iss: ISSUER,
    });
    expect(gateway.auditEvents('sign_in')).toEqual([]);
    expect(gateway.auditEvents('sign_in_failed')).toMatchObject([{ reason: 'openid_not_reauthenticated' }]);
    // No user is signed in.
    const next = await flow.browser.follow(await flow.authorize({}));
    expect(next.text).toContain('Example Login');
  });

  test('nothing is sent to a redirect URI that was removed meanwhile', async () => {
    age = undefined;
    await flow.browser.follow(await flow.authorize({ prompt: 'login' }));
    const leaving = await flow.browser.post('/openid', { provider: 'corp' });
    const query = Object.fromEntries(new URL(leaving.redirectTo ?? '').searchParams);
    nonce = query['nonce'] ?? '';
    const setRedirectUris = (redirectUris: string[]) =>
      gateway.reload((settings) => ({ ...settings, integrations: [{ ...APP, redirectUris }] }));
    await setRedirectUris(['https://elsewhere.example.test/callback']);
    const page = await flow.browser.get(`${query['redirect_uri']}?code=1&state=${query['state']}`);
    await setRedirectUris([...(APP.redirectUris ?? [])]);
    expect([page.status, page.redirectTo]).toEqual([403, undefined]);
    expect(gateway.auditEvents('sign_in')).toEqual([]);
  });

  test('while it is down, the page says so, and the user can continue with the same request', async () => {
    const page = await flow.browser.follow(await flow.authorize({}));
    expect(page.text).toContain('Example Login');
    const leaving = await flow.browser.post('/openid', { provider: 'corp' });
    const { redirect_uri, state } = Object.fromEntries(new URL(leaving.redirectTo ?? '').searchParams);
    isDown = true;
    const failed = await flow.browser.get(`${redirect_uri}?code=1&state=${state}`);
    isDown = false;
    expect(failed.status).toBe(503);
    const [, link = ''] = / href="([^"]*\/sign-in\?request=[^"&]*)"/.exec(failed.text) ?? [];
    const again = await flow.browser.open(link);
    expect(again.text).toContain('Example Login');
    expect((await flow.signIn()).text).toContain('/approve');
  });

  test('the demands are sent to it', async () => {
    age = 0;
    await signInAtProvider({});
    expect([demanded['prompt'], demanded['max_age']]).toEqual([undefined, undefined]);
    // A sign-in of the same second is new.
    gateway.clock.advance(5);
    await signInAtProvider({ prompt: 'login' });
    expect([demanded['prompt'], Number(demanded['max_age'])]).toEqual(['login', expect.any(Number)]);
    expect(Number(demanded['max_age'])).toBeLessThan(60);
    gateway.clock.advance(5);
    await signInAtProvider({ prompt: 'select_account consent' });
    expect([demanded['prompt'], demanded['max_age']]).toEqual(['select_account', undefined]);
  });

  test('an authentication that was long ago at the provider does not count as one at the sign-in here', async () => {
    age = 3_600;
    await flow.browser.follow(await signInAtProvider({}));
    expect((await flow.browser.follow(await flow.authorize({}))).text).toContain('/approve');
    const page = await flow.browser.follow(await flow.authorize({ max_age: '1800' }));
    expect(page.text).toContain('Example Login');
    expect((await flow.browser.follow(await flow.authorize({ max_age: '7200' }))).text).toContain('/approve');
  });
});
