import { chmodSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { READ_ONLY_TOKEN_FILE, signIn } from '../support/console-harness.ts';
import { formToken } from '../support/form-browser.ts';
import { sendRequest } from '../support/https-client.ts';
import { rawRequest } from '../support/raw-client.ts';
import { encode, SAME_ORIGIN, useAttackedConsole } from './attacked-console.ts';

const harness = useAttackedConsole();

test('names that do not belong to the admin listener are refused (DNS rebinding)', async () => {
  const get = (host: string, path: string) =>
    rawRequest(
      harness.gateway.adminPort,
      [`GET ${path} HTTP/1.1`, `Host: ${host}`, `Cookie: ${harness.operator.cookie}`, 'Connection: close', '', ''].join(
        '\r\n',
      ),
    );
  for (const path of ['/console', '/console/sign-in', '/console/console.js']) {
    expect([path, (await get('evil.example', path)).status]).toEqual([path, 421]);
    expect([path, (await get('127.0.0.1.evil.example:9443', path)).status]).toEqual([path, 421]);
  }
  expect((await get(`127.0.0.1:${harness.gateway.adminPort}`, '/console')).status).toBe(200);
  expect((await get('127.0.0.1:99999', '/console')).status).toBe(403);
});

test('a page of another site cannot read the console, nor can a script of the console', async () => {
  for (const [path, headers] of [
    ['/console', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'same-origin' }],
    ['/console', { 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'iframe', 'sec-fetch-site': 'cross-site' }],
    ['/console', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'cross-site' }],
    ['/console', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'same-site' }],
    [
      '/console/console.js',
      { 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'script', 'sec-fetch-site': 'cross-site' },
    ],
  ] as const)
    expect([path, (await harness.operator.get(path, headers)).status]).toEqual([path, 403]);
});

test('responses cannot be framed, cached or sniffed, and allow no inline script', async () => {
  for (const path of [
    '/console',
    '/console/sign-in',
    '/console/console.js',
    '/console/console.css',
    '/console/nowhere',
  ]) {
    const { headers } = await harness.operator.get(path, path.includes('.') ? { 'sec-fetch-site': 'same-origin' } : {});
    expect(headers).toMatchObject({
      'cache-control': 'no-store',
      'x-frame-options': 'DENY',
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cross-origin-resource-policy': 'same-origin',
    });
    const policy = headers['content-security-policy'] ?? '';
    expect(policy).toContain("default-src 'none'");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy).not.toMatch(/unsafe|\*|data:|sha256/);
  }
  const { text } = await harness.operator.get('/console');
  expect(text).not.toMatch(/<script>|<style|\sstyle=|\son[a-z]+=/i);
});

test('the cookie is HttpOnly and Strict, is replaced at sign-in, and a chosen one is not accepted (session fixation)', async () => {
  const browser = harness.browser();
  const { headers } = await browser.get('/console/sign-in');
  expect(String(headers['set-cookie'])).toMatch(
    new RegExp(
      `^gatehouse-console-${harness.gateway.adminPort}=[\\w-]{43}; Path=/console; Max-Age=\\d+; HttpOnly; SameSite=Strict$`,
    ),
  );
  const before = browser.cookie;
  expect((await browser.get('/console')).status).toBe(303);
  await browser.open('/console/sign-in');
  await browser.submit('/console/sign-in', { token: harness.token });
  expect(browser.cookie).not.toBe(before);
  // The attacker knows the value from before the sign-in.
  const attacker = harness.browser();
  attacker.cookie = before;
  expect((await attacker.get('/console')).status).toBe(303);
  // Two cookies of one name: one was set by another service of this host.
  attacker.cookie = browser.cookie;
  expect((await attacker.get('/console', { cookie: `${browser.cookie}; ${before}` })).status).toBe(303);
});

test('signing in again ends the previous session of the browser', async () => {
  const old = harness.operator.cookie;
  await harness.operator.open('/console/sign-in');
  await harness.operator.submit('/console/sign-in', { token: harness.token });
  const copy = harness.browser();
  copy.cookie = old;
  expect((await copy.get('/console')).status).toBe(303);
});

test('a session ends at once when its token is replaced, removed or exposed, and a reload does not end it', async () => {
  const { gateway } = harness;
  const file = join(gateway.folder, 'data/admin-token');
  const { token } = harness;
  await gateway.reload((settings) => ({ ...settings, log: { ...settings.log, level: 'info' } }));
  expect((await harness.operator.get('/console')).status).toBe(200);
  writeFileSync(file, 'another-token-of-an-operator', { mode: 0o600 });
  expect((await harness.operator.get('/console')).status).toBe(303);
  writeFileSync(file, token, { mode: 0o600 });
  chmodSync(file, 0o644);
  expect((await harness.operator.get('/console')).status).toBe(303);
  chmodSync(file, 0o600);
  // A token that was moved to the file of viewers has their role.
  const viewerFile = join(gateway.folder, READ_ONLY_TOKEN_FILE);
  const viewerToken = harness.readOnlyToken;
  const operator = await harness.signedIn();
  const { id, isLive } = await harness.liveGrant();
  await operator.get(`/console/revoke?by=grant&q=${id}`);
  writeFileSync(viewerFile, token);
  // The form of the operator is valid in this session: only the role prevents it.
  expect((await operator.post('/console/revoke')).status).toBe(403);
  expect(await isLive()).toBe(true);
  expect((await operator.get(`/console/revoke?by=grant&q=${id}`)).status).toBe(403);
  writeFileSync(viewerFile, viewerToken);
});

test('wrong tokens cannot fill the audit log, nor keep an operator with the right one out', async () => {
  const browser = harness.browser();
  await browser.open('/console/sign-in');
  const recorded = harness.gateway.auditEvents('admin_sign_in_failed').length;
  const statuses: number[] = [];
  for (let count = 0; count < 12; count += 1)
    statuses.push((await browser.submit('/console/sign-in', { token: `wrong-token-number-${count}` })).status);
  expect(statuses).toEqual([...Array<number>(10).fill(401), 429, 429]);
  expect(harness.gateway.auditEvents('admin_sign_in_failed').length - recorded).toBe(10);
  expect(harness.gateway.logLines.join('')).not.toContain('wrong-token-number');
  expect((await harness.operator.get('/console')).status).toBe(200);
  // All users of a tunnel have one address.
  const right = await browser.submit('/console/sign-in', { token: harness.token });
  expect([right.status, right.text.includes('Sign out')]).toEqual([200, true]);
  const other = harness.browser();
  await other.open('/console/sign-in');
  const wrong = await other.submit('/console/sign-in', { token: 'another-wrong-token' });
  expect([wrong.status, Number(wrong.headers['retry-after']) > 0]).toEqual([429, true]);
});

test('sign-in needs a form of this browser (login CSRF)', async () => {
  const browser = harness.browser();
  const body = encode({
    token: harness.token,
    form_token: formToken((await harness.operator.get('/console')).text, '/console/sign-out'),
  });
  expect((await browser.send('POST', '/console/sign-in', body, SAME_ORIGIN(harness.url))).status).toBe(403);
  await browser.get('/console/sign-in');
  expect((await browser.send('POST', '/console/sign-in', body, SAME_ORIGIN(harness.url))).status).toBe(403);
});

test('after signing in, no other site is opened', async () => {
  for (const next of [
    'https://evil.example/',
    '//evil.example',
    '/\\evil.example',
    '/consolex',
    '/console/..//evil',
    '/console\r\nx: y',
  ]) {
    const browser = harness.browser();
    await browser.get(`/console/sign-in?${encode({ next })}`);
    const { redirectTo = '' } = await browser.post('/console/sign-in', { token: harness.token, next });
    expect([next, new URL(redirectTo).origin, new URL(redirectTo).pathname.startsWith('/admin')]).toEqual([
      next,
      harness.url,
      false,
    ]);
  }
});

test('without TLS, the console is served to this machine only', async () => {
  const address = Object.values(networkInterfaces())
    .flat()
    .find((one) => one?.family === 'IPv4' && !one.internal)?.address;
  if (address === undefined) return;
  const reply = await sendRequest({
    port: harness.gateway.adminPort,
    host: address,
    path: '/console/sign-in',
    plain: true,
  });
  expect([reply.status, reply.text.includes('Connection not encrypted')]).toEqual([403, true]);
});

test('more sessions than the limit end the least recently used one', async () => {
  const first = await harness.signedIn();
  for (let count = 0; count < 64; count += 1) {
    const browser = harness.browser();
    await signIn(browser, harness.token);
    if (count === 30) expect((await harness.operator.get('/console')).status).toBe(200);
  }
  expect((await first.get('/console')).status).toBe(303);
  expect((await harness.operator.get('/console')).status).toBe(200);
});

test('a viewer who signs in many times does not end the sessions of operators', async () => {
  for (let count = 0; count < 70; count += 1) await signIn(harness.browser(), harness.readOnlyToken);
  expect((await harness.operator.get('/console')).status).toBe(200);
  const later = await harness.signedIn();
  for (let count = 0; count < 70; count += 1) await signIn(harness.browser(), harness.readOnlyToken);
  expect((await later.get('/console')).status).toBe(200);
  expect((await harness.operator.get('/console')).status).toBe(200);
});
