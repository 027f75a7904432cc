import { readFileSync } from 'node:fs';
import { createServer as createHttpServer, type IncomingMessage } from 'node:http';
import { createServer, type Server } from 'node:https';
import { createRequire } from 'node:module';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { axeViolations, type BrowserWindow, openChromium, openWindow } from '../support/chromium.ts';
import { APP, createPkce } from '../support/code-client.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { clickButton, getHeading } from '../support/page-states.ts';
import { issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { PASSWORD, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/**
 * A gateway, an app on another site, and a real browser with its rules for cookies, forms, frames and referrers. The app redirects
 * from its callback to another origin, as many do.
 */
let browser: Browser;
let gateway: TestGateway;
let window: BrowserWindow;
let url = '';
let app: Awaited<ReturnType<typeof startSite>>;
let home: Awaited<ReturnType<typeof startSite>>;
let callback = '';

interface Received {
  readonly url: URL;
  readonly referer: string | undefined;
}

async function startSite(server: (listener: (request: IncomingMessage) => string | undefined) => Server) {
  const received: Received[] = [];
  const pages = new Map<string, string>();
  const site = {
    received,
    /** By path. A page that begins with `https:` is a redirect. */
    pages,
    origin: '',
    close: async (): Promise<void> => {},
  };
  const { port, close } = await listenTcp(
    server((request) => {
      const requested = new URL(request.url ?? '/', site.origin);
      received.push({ url: requested, referer: request.headers.referer });
      return pages.get(requested.pathname);
    }),
  );
  site.origin = `https://127.0.0.1:${port}`;
  site.close = close;
  return site;
}

beforeAll(async () => {
  [browser, gateway] = await Promise.all([openChromium(), startGateway()]);
  url = `https://localhost:${gateway.port}`;
  const { pem, keyPem } = await issueServer(gateway.ca);
  const serve = (listener: (request: IncomingMessage) => string | undefined): Server =>
    createServer({ cert: pem, key: keyPem }, (request, response) => {
      const page = listener(request);
      if (page?.startsWith('https:') === true) response.writeHead(302, { location: page }).end();
      else
        response
          .writeHead(page === undefined ? 404 : 200, {
            'content-type': request.url?.endsWith('.js') === true ? 'text/javascript' : 'text/html',
          })
          .end(page);
    });
  [app, home] = await Promise.all([startSite(serve), startSite(serve)]);
  callback = `${app.origin}/callback`;
  home.pages.set('/home', '<h1>Welcome</h1>');
  await gateway.reload((settings) => ({
    ...settings,
    publicUrl: url,
    integrations: [
      {
        ...APP,
        redirectUris: [callback, `${app.origin}/spa`, 'http://127.0.0.1/callback', 'com.example.app:/callback'],
      },
    ],
    routes: [
      {
        path: '/files/**',
        requires: 'files:read',
        cors: { origins: [app.origin], headers: ['authorization'] },
      },
    ],
  }));
});
afterAll(async () => {
  await browser?.close();
  await gateway?.close();
  await app?.close();
  await home?.close();
});
afterEach(async () => {
  await window?.close();
  app.received.length = 0;
  app.pages.clear();
});

const pkce = createPkce();
const authorizeUrl = (changes: Readonly<Record<string, string>> = {}): string =>
  `${url}/authsvc/oauth2/authorize?${new URLSearchParams({
    response_type: 'code',
    client_id: 'app',
    redirect_uri: callback,
    scope: 'files:read',
    state: 'one',
    code_challenge: pkce.challenge,
    code_challenge_method: 'S256',
    ...changes,
  }).toString()}`;
const exchange = (code: string | null, redirectUri = callback) =>
  createOAuthClient(gateway).post('token', {
    grant_type: 'authorization_code',
    client_id: 'app',
    redirect_uri: redirectUri,
    code: code ?? '',
    code_verifier: pkce.verifier,
  });

/** Follows a link of the app to the authorization endpoint. */
async function startFrom(page: Page, target = authorizeUrl()): Promise<void> {
  app.pages.set('/', `<a href="${target.replaceAll('&', '&amp;')}">Sign in</a>`);
  await page.goto(`${app.origin}/`);
  await page.getByRole('link', { name: 'Sign in' }).click();
  await page.waitForURL(/\/authsvc\/device\/(sign-in|review)\?request=/);
}

async function signIn(page: Page): Promise<void> {
  await page.getByLabel('Username').fill('alice');
  await page.getByLabel('Password').fill(PASSWORD);
  await clickButton(page, 'Sign in');
  await page.waitForURL(/\/authsvc\/device\/review\?request=/);
}

const received = (path: string): Received | undefined => app.received.find((one) => one.url.pathname === path);

test('a web app on another site: sign-in, approval, and a callback that redirects to another origin', async () => {
  app.pages.set('/callback', `${home.origin}/home`);
  window = await openWindow(browser, { javaScriptEnabled: false });
  const { page } = window;
  await startFrom(page);
  expect(page.url()).toContain('/sign-in?request=');
  await signIn(page);
  expect(await page.locator('main').textContent()).toContain(new URL(app.origin).host);
  await page.getByRole('button', { name: 'Approve' }).click();
  await page.waitForURL(`${home.origin}/home`);
  const response = received('/callback');
  expect(response?.url.searchParams.get('iss')).toBe(url);
  expect(response?.url.searchParams.get('state')).toBe('one');
  expect(response?.referer, 'no referrer').toBeUndefined();
  expect((await exchange(response?.url.searchParams.get('code') ?? '')).status).toBe(200);
  expect(window.consoleErrors, 'no CSP violation').toEqual([]);

  // The user is signed in: the Strict cookie is sent, although another site began the request.
  await startFrom(page, authorizeUrl({ state: 'two' }));
  await page.waitForURL(/\/review\?request=/);
  await page.getByRole('button', { name: 'Deny' }).click();
  await page.waitForURL(`${home.origin}/home`);
  expect(app.received.at(-1)?.url.searchParams.get('error')).toBe('access_denied');
  expect(window.consoleErrors).toEqual([]);
});

test('a native app with a loopback redirect, and one with a private-use scheme', async () => {
  window = await openWindow(browser);
  const { page } = window;
  const seen: string[] = [];
  const { port, close } = await listenTcp(
    createHttpServer((request, response) => {
      seen.push(request.url ?? '');
      response.end('You can close this window.');
    }),
  );
  const redirect_uri = `http://127.0.0.1:${port}/callback`;
  try {
    await page.goto(authorizeUrl({ redirect_uri }));
    await signIn(page);
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.waitForURL(`${redirect_uri}?**`);
    const code = new URL(page.url()).searchParams.get('code');
    expect((await exchange(code, redirect_uri)).status).toBe(200);
    expect(seen[0]).toContain(`code=${code}`);
  } finally {
    await close();
  }
  await page.goto(authorizeUrl({ redirect_uri: 'com.example.app:/callback' }));
  await page.waitForURL(/\/review\?request=/);
  const approved = page.waitForResponse((response) => response.url().includes('/approve?'));
  await page.getByRole('button', { name: 'Approve' }).click();
  expect(await (await approved).headerValue('location')).toMatch(/^com\.example\.app:\/callback\?code=gha_/);
  expect(window.consoleErrors.filter((text) => text.includes('form-action'))).toEqual([]);
});

test('two tabs at once: each app gets its own response, and signing in twice is not necessary', async () => {
  app.pages.set('/callback', 'done');
  window = await openWindow(browser);
  const { page, context } = window;
  const other = await context.newPage();
  await startFrom(page, authorizeUrl({ state: 'first' }));
  await startFrom(other, authorizeUrl({ state: 'second' }));
  await signIn(page);
  expect(await axeViolations(page)).toEqual([]);
  // Its form is of the session before the sign-in.
  await other.getByLabel('Username').fill('alice');
  await other.getByLabel('Password').fill(PASSWORD);
  await other.getByRole('button', { name: 'Sign in' }).click();
  await other.waitForURL(/\/review\?request=/);
  for (const [tab, state] of [
    [other, 'second'],
    [page, 'first'],
  ] as const) {
    await tab.getByRole('button', { name: 'Approve' }).click();
    await tab.waitForURL(`${callback}?**`);
    const { searchParams } = new URL(tab.url());
    expect(searchParams.get('state')).toBe(state);
    expect((await exchange(searchParams.get('code'))).status).toBe(200);
  }
});

test('the back button shows that the request was answered, and approves nothing', async () => {
  app.pages.set('/callback', 'done');
  window = await openWindow(browser);
  const { page } = window;
  await startFrom(page);
  await signIn(page);
  await page.getByRole('button', { name: 'Approve' }).click();
  await page.waitForURL(`${callback}?**`);
  const approvals = gateway.auditEvents('authorization_approved').length;
  await page.goBack();
  await page.waitForURL(/\/review\?request=/);
  expect(await getHeading(page)).toBe('Already answered');
  expect(await axeViolations(page)).toEqual([]);
  expect(gateway.auditEvents('authorization_approved')).toHaveLength(approvals);
});

test('the authorization endpoint and the pages cannot be framed, prefetched or read by scripts', async () => {
  window = await openWindow(browser);
  const { page, context } = window;
  // Each has a URL of its own: a browser may answer one request with the response to another.
  const target = (state: string) => authorizeUrl({ state }).replaceAll('&', '&amp;');
  app.pages.set(
    '/attack',
    `<link rel="prefetch" href="${target('prefetched')}"><iframe src="${target('framed')}"></iframe><img src="${target('shown')}">
<script>fetch('${authorizeUrl()}', { credentials: 'include' }).then(() => 'read', () => 'refused').then((result) => { document.title = result })</script>`,
  );
  gateway.clearLog();
  const requests = () => gateway.log.filter(({ rule }) => rule === 'oauth2:authorize');
  await page.goto(`${app.origin}/attack`);
  await until('the script is done', async () => (await page.title()) === 'refused');
  // A browser need not prefetch.
  await until('the others were received', () => requests().length >= 3);
  expect(new Set(requests().map(({ status, reason }) => `${String(status)} ${String(reason)}`))).toEqual(
    new Set(['403 not_a_navigation']),
  );
  expect(await context.cookies(url)).toEqual([]);
});

test('a single-page app with oauth4webapi: discovery, redirect, exchange, a call and a refresh, all in the browser', async () => {
  const library = createRequire(import.meta.url).resolve('oauth4webapi');
  app.pages.set('/oauth4webapi.js', readFileSync(library, 'utf8'));
  app.pages.set(
    '/spa',
    `<!doctype html><title>waiting</title><script type="module">
import * as oauth from './oauth4webapi.js';
try {
const issuer = new URL('${url}');
const as = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, { algorithm: 'oauth2' }));
const client = { client_id: 'app' };
const redirectUri = location.origin + '/spa';
if (!location.search) {
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  sessionStorage.setItem('flow', JSON.stringify({ verifier, state }));
  const url = new URL(as.authorization_endpoint);
  url.search = new URLSearchParams({ client_id: 'app', redirect_uri: redirectUri, response_type: 'code', scope: 'files:read', state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier), code_challenge_method: 'S256' });
  location.assign(url);
} else {
  const { verifier, state } = JSON.parse(sessionStorage.getItem('flow'));
  const parameters = oauth.validateAuthResponse(as, client, new URL(location.href), state);
  const tokens = await oauth.processAuthorizationCodeResponse(as, client,
    await oauth.authorizationCodeGrantRequest(as, client, oauth.None(), parameters, redirectUri, verifier));
  const call = await oauth.protectedResourceRequest(tokens.access_token, 'GET', new URL('${url}/files/a'));
  const next = await oauth.processRefreshTokenResponse(as, client,
    await oauth.refreshTokenGrantRequest(as, client, oauth.None(), tokens.refresh_token));
  await oauth.processRevocationResponse(await oauth.revocationRequest(as, client, oauth.None(), next.refresh_token));
  document.title = 'status ' + call.status + ' ' + next.token_type;
}
} catch (error) { document.title = 'failed: ' + error + ' ' + JSON.stringify(error.cause ?? ''); }
</script>`,
  );
  window = await openWindow(browser);
  const { page } = window;
  await page.goto(`${app.origin}/spa`);
  await page.waitForURL(/\/sign-in\?request=/);
  await signIn(page);
  await page.getByRole('button', { name: 'Approve' }).click();
  await page.waitForURL(`${app.origin}/spa?**`);
  await until('the app is done', async () => (await page.title()) !== 'waiting');
  expect(await page.title()).toBe('status 200 bearer');
  expect(window.consoleErrors).toEqual([]);
});
