import { chmodSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { Fault } from '../../src/ports/fault.ts';
import {
  type ConsoleHarness,
  READ_ONLY_TOKEN_FILE,
  readGrantId,
  signIn,
  startConsole,
} from '../support/console-harness.ts';
import { type FormBrowser, formToken } from '../support/form-browser.ts';
import { sendRequest } from '../support/https-client.ts';
import { rawRequest } from '../support/raw-client.ts';
import { testGrant } from '../support/store-fixtures.ts';
import { ALICE } from '../support/test-gateway.ts';

let harness: ConsoleHarness;
let operator: FormBrowser;
beforeAll(async () => {
  harness = await startConsole((settings) => ({
    ...settings,
    admin: { ...settings.admin, host: '0.0.0.0' },
  }));
});
afterAll(() => harness?.close());
beforeEach(async () => {
  // Refills the limits of wrong tokens.
  harness.gateway.clock.advance(3_600);
  operator = await harness.signedIn();
});

const liveGrant = async (): Promise<{ readonly id: string; readonly isLive: () => Promise<boolean> }> => {
  const { access_token: token } = await harness.gateway.grant();
  return {
    id: readGrantId(token),
    isLive: async () => (await harness.gateway.api('/files/a', token)).status === 200,
  };
};

const encode = (fields: Record<string, string>): string => new URLSearchParams(fields).toString();
const SAME_ORIGIN = (url: string) => ({ origin: url, 'sec-fetch-site': 'same-origin' });

test('a revocation needs a form of this session, for this grant, from this origin', async () => {
  const { id, isLive } = await liveGrant();
  const other = await liveGrant();
  const { text } = await operator.get(`/console/revoke?by=grant&q=${id}`);
  const token = formToken(text, '/console/revoke');
  const fields = { by: 'grant', q: id };
  const second = await harness.signedIn();
  const attempts: [what: string, browser: FormBrowser, body: string, headers: Record<string, string>][] = [
    ['no form token', operator, encode(fields), SAME_ORIGIN(harness.url)],
    ['an empty form token', operator, encode({ ...fields, form_token: '' }), SAME_ORIGIN(harness.url)],
    [
      'the token of another form',
      operator,
      encode({ ...fields, form_token: formToken(text, '/console/sign-out') }),
      SAME_ORIGIN(harness.url),
    ],
    ['another session', second, encode({ ...fields, form_token: token }), SAME_ORIGIN(harness.url)],
    [
      'another grant',
      operator,
      encode({ by: 'grant', q: other.id, form_token: token }),
      SAME_ORIGIN(harness.url),
    ],
    [
      'everything of a client',
      operator,
      encode({ by: 'client', q: 'report-runner', form_token: token }),
      SAME_ORIGIN(harness.url),
    ],
    [
      'another site',
      operator,
      encode({ ...fields, form_token: token }),
      { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' },
    ],
    [
      'another port',
      operator,
      encode({ ...fields, form_token: token }),
      { origin: 'http://127.0.0.1:1', 'sec-fetch-site': 'same-site' },
    ],
    [
      'no origin, cross-site',
      operator,
      encode({ ...fields, form_token: token }),
      { 'sec-fetch-site': 'cross-site' },
    ],
    ['an opaque origin', operator, encode({ ...fields, form_token: token }), { origin: 'null' }],
    [
      'a script',
      operator,
      encode({ ...fields, form_token: token }),
      { ...SAME_ORIGIN(harness.url), 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' },
    ],
    [
      'a repeated field',
      operator,
      `${encode({ ...fields, form_token: token })}&q=${other.id}`,
      SAME_ORIGIN(harness.url),
    ],
  ];
  for (const [what, browser, body, headers] of attempts) {
    const { status } = await browser.send('POST', '/console/revoke', body, headers);
    expect([what, [400, 403].includes(status)]).toEqual([what, true]);
    expect([what, await isLive(), await other.isLive()]).toEqual([what, true, true]);
  }
  const accepted = await operator.send(
    'POST',
    '/console/revoke',
    encode({ ...fields, form_token: token }),
    SAME_ORIGIN(harness.url),
  );
  expect([accepted.status, await isLive()]).toEqual([303, false]);
});

test('GET never revokes, and other methods are refused', async () => {
  const { id, isLive } = await liveGrant();
  await operator.get(`/console/revoke?by=grant&q=${id}`);
  for (const method of ['PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD'])
    expect([method, (await operator.send(method, `/console/revoke?by=grant&q=${id}`)).status]).toEqual([
      method,
      method === 'HEAD' ? 200 : 405,
    ]);
  expect((await operator.get('/console/sign-out')).status).toBe(405);
  expect(await isLive()).toBe(true);
});

test('a viewer sees everything and revokes nothing, neither in the console nor through the admin API', async () => {
  const { id, isLive } = await liveGrant();
  const viewer = await harness.signedIn(harness.readOnlyToken);
  const { text } = await viewer.get(`/console/grant?id=${id}`);
  expect(text).toContain('read-only');
  expect(text).not.toContain('Revoke');
  expect((await viewer.get(`/console/revoke?by=grant&q=${id}`)).status).toBe(403);
  const operatorPage = await operator.get(`/console/revoke?by=grant&q=${id}`);
  const stolen = formToken(operatorPage.text, '/console/revoke');
  const body = encode({ by: 'grant', q: id, form_token: stolen });
  expect((await viewer.send('POST', '/console/revoke', body, SAME_ORIGIN(harness.url))).status).toBe(403);
  const api = (method: string, path: string, token: string) =>
    sendRequest({
      port: harness.gateway.adminPort,
      method,
      path: `/admin/v1${path}`,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      ...(method === 'POST' && { body: '{"client":"report-runner"}' }),
      plain: true,
    });
  expect((await api('GET', '/grants', harness.readOnlyToken)).status).toBe(200);
  for (const path of [`/grants/${id}/revoke`, '/revoke'])
    expect((await api('POST', path, harness.readOnlyToken)).status).toBe(403);
  expect(await isLive()).toBe(true);
});

test('a viewer whose cookie is used by an operator does not become one, and the reverse', async () => {
  // The role belongs to the credential of the session, not to the browser.
  const viewer = await harness.signedIn(harness.readOnlyToken);
  await operator.open('/console/sign-in');
  await operator.submit('/console/sign-in', { token: harness.readOnlyToken });
  const { id } = await liveGrant();
  expect((await operator.get(`/console/revoke?by=grant&q=${id}`)).status).toBe(403);
  expect((await viewer.get('/console')).text).toContain('read-only');
});

test('names that do not belong to the admin listener are refused (DNS rebinding)', async () => {
  const get = (host: string, path: string) =>
    rawRequest(
      harness.gateway.adminPort,
      [
        `GET ${path} HTTP/1.1`,
        `Host: ${host}`,
        `Cookie: ${operator.cookie}`,
        'Connection: close',
        '',
        '',
      ].join('\r\n'),
    );
  for (const path of ['/console', '/console/sign-in', '/console/console.js', '/console/figures']) {
    expect([path, (await get('evil.example', path)).status]).toEqual([path, 421]);
    expect([path, (await get('127.0.0.1.evil.example:9443', path)).status]).toEqual([path, 421]);
  }
  expect((await get(`127.0.0.1:${harness.gateway.adminPort}`, '/console')).status).toBe(200);
  expect((await get('127.0.0.1:99999', '/console')).status).toBe(403);
});

test('a page of another site can neither read the console nor its figures', async () => {
  for (const [path, headers] of [
    ['/console', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'same-origin' }],
    [
      '/console',
      { 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'iframe', 'sec-fetch-site': 'cross-site' },
    ],
    [
      '/console/figures',
      { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'cross-site' },
    ],
    [
      '/console/figures',
      { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'same-site' },
    ],
    [
      '/console/console.js',
      { 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'script', 'sec-fetch-site': 'cross-site' },
    ],
  ] as const)
    expect([path, (await operator.get(path, headers)).status]).toEqual([path, 403]);
});

test('responses cannot be framed, cached or sniffed, and allow no inline script', async () => {
  for (const path of [
    '/console',
    '/console/sign-in',
    '/console/figures',
    '/console/console.js',
    '/console/console.css',
    '/console/nowhere',
  ]) {
    const { headers } = await operator.get(
      path,
      path.includes('figures') || path.includes('.') ? { 'sec-fetch-site': 'same-origin' } : {},
    );
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
  const { text } = await operator.get('/console');
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
  const old = operator.cookie;
  await operator.open('/console/sign-in');
  await operator.submit('/console/sign-in', { token: harness.token });
  const copy = harness.browser();
  copy.cookie = old;
  expect((await copy.get('/console')).status).toBe(303);
});

test('a session ends at once when its token is replaced, removed or exposed, and a reload does not end it', async () => {
  const { gateway } = harness;
  const file = join(gateway.folder, 'data/admin-token');
  const { token } = harness;
  await gateway.reload((settings) => ({ ...settings, log: { ...settings.log, level: 'info' } }));
  expect((await operator.get('/console')).status).toBe(200);
  writeFileSync(file, 'another-token-of-an-operator', { mode: 0o600 });
  expect((await operator.get('/console')).status).toBe(303);
  expect((await operator.get('/console/figures', { 'sec-fetch-site': 'same-origin' })).status).toBe(401);
  writeFileSync(file, token, { mode: 0o600 });
  chmodSync(file, 0o644);
  expect((await operator.get('/console')).status).toBe(303);
  chmodSync(file, 0o600);
  // A token that was moved to the file of viewers has their role.
  const viewerFile = join(gateway.folder, READ_ONLY_TOKEN_FILE);
  const viewerToken = harness.readOnlyToken;
  operator = await harness.signedIn();
  const { id, isLive } = await liveGrant();
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
    statuses.push(
      (await browser.submit('/console/sign-in', { token: `wrong-token-number-${count}` })).status,
    );
  expect(statuses).toEqual([...Array<number>(10).fill(401), 429, 429]);
  expect(harness.gateway.auditEvents('admin_sign_in_failed').length - recorded).toBe(10);
  expect(harness.gateway.logLines.join('')).not.toContain('wrong-token-number');
  expect((await operator.get('/console')).status).toBe(200);
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
    form_token: formToken((await operator.get('/console')).text, '/console/sign-out'),
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

test('markup in paths, names, clients and reasons is shown as text', async () => {
  const { gateway } = harness;
  const payload = '"><script>alert(1)</script><img src=x onerror=alert(2)>';
  const encoded = encodeURIComponent(payload);
  expect((await gateway.request({ path: encodeURI(`/files/${payload}'`) })).status).toBe(401);
  const named = await gateway.post('/Authorize/Device', { client_id: payload, scope: payload });
  expect(named.status).toBeGreaterThanOrEqual(400);
  for (const path of [
    '/console/refusals',
    `/console/refusals?q=${encoded}`,
    `/console/refusal?id=${encoded}`,
    `/console/grants?by=name&q=${encoded}`,
    `/console/grants?by=${encoded}&q=a`,
    `/console/revoke?by=client&q=${encoded}`,
    `/console/explain?method=${encoded}&path=${encoded}&scope=${encoded}&client=${encoded}&host=${encoded}`,
    `/console/explain?method=GET&path=${encoded}`,
    `/console/audit?q=${encoded}`,
    '/console/audit',
    `/console/sign-in?next=${encoded}`,
  ]) {
    const { text } = await operator.get(path);
    expect([path, /<script>|<img|onerror=alert\(2\)>[^&]*"/.test(text)]).toEqual([path, false]);
  }
});

test('bidirectional and control characters of clients are removed', async () => {
  const { text } = await operator.get(
    `/console/explain?method=GET&path=${encodeURIComponent('/a\u202eb\u0007c')}`,
  );
  const result = text.slice(text.indexOf('id="verdict"'));
  expect(result).not.toMatch(/[\u202e\u0007]/);
});

test('oversized input is refused or cut, and memory stays bounded', async () => {
  const { text } = await operator.get('/console');
  const token = formToken(text, '/console/sign-out');
  const big = await operator
    .send('POST', '/console/revoke', `form_token=${token}&q=${'a'.repeat(20_000)}`, SAME_ORIGIN(harness.url))
    .catch(() => ({ status: 413 }));
  expect(big.status).toBe(413);
  const many = Array.from({ length: 50 }, (_, index) => `f${index}=1`).join('&');
  expect((await operator.send('POST', '/console/revoke', many, SAME_ORIGIN(harness.url))).status).toBe(400);
  expect((await operator.get(`/console/explain?path=/${'a'.repeat(5_000)}`)).text).toContain(
    'path must have at most',
  );
  expect((await operator.get(`/console/grants?by=subject&q=${'a'.repeat(5_000)}`)).status).toBe(200);
  expect((await operator.get(`/console/grants?after=${'a'.repeat(5_000)}`)).status).toBe(200);
  const wrong = harness.browser();
  await wrong.open('/console/sign-in');
  expect((await wrong.submit('/console/sign-in', { token: 'a'.repeat(10_000) })).status).toBe(401);
});

test('only the last refusals are kept, each without its query and with bounded fields', async () => {
  const { gateway } = harness;
  const secret = `eyJ${'a'.repeat(40)}.${'b'.repeat(40)}.${'c'.repeat(40)}`;
  await gateway.api(`/files/${secret}?access=${secret}`);
  await gateway.api(`/files/${'x'.repeat(3_000)}`);
  const page = await operator.get('/console/refusals?q=files');
  expect(page.text).not.toContain('aaaaaaaaaa');
  expect(page.text).toContain('[redacted-jwt]');
  expect(page.text).not.toContain('x'.repeat(600));
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

test('a failing store is a temporary error, never an empty result', async () => {
  const { id } = await liveGrant();
  const { grantIndex, grants } = harness.gateway.server.store;
  const [list, read] = [grantIndex.list.bind(grantIndex), grants.read.bind(grants)];
  const fail = async (): Promise<never> => {
    throw new Fault('store_unavailable', 'unreachable');
  };
  Object.assign(grantIndex, { list: fail });
  Object.assign(grants, { read: fail });
  try {
    const { text } = await operator.get('/console/grants');
    expect(text).toContain('The store is unreachable; try again.');
    const grant = await operator.get(`/console/grant?id=${id}`);
    expect([grant.status, grant.headers['retry-after']]).toEqual([503, expect.stringMatching(/^\d+$/)]);
  } finally {
    Object.assign(grantIndex, { list });
    Object.assign(grants, { read });
  }
});

test('more sessions than the limit end the least recently used one', async () => {
  const first = await harness.signedIn();
  for (let count = 0; count < 64; count += 1) {
    const browser = harness.browser();
    await signIn(browser, harness.token);
    if (count === 30) expect((await operator.get('/console')).status).toBe(200);
  }
  expect((await first.get('/console')).status).toBe(303);
  expect((await operator.get('/console')).status).toBe(200);
});

test('a viewer who signs in many times does not end the sessions of operators', async () => {
  for (let count = 0; count < 70; count += 1) await signIn(harness.browser(), harness.readOnlyToken);
  expect((await operator.get('/console')).status).toBe(200);
  const later = await harness.signedIn();
  for (let count = 0; count < 70; count += 1) await signIn(harness.browser(), harness.readOnlyToken);
  expect((await later.get('/console')).status).toBe(200);
  expect((await operator.get('/console')).status).toBe(200);
});

test('the audit log has who acted and from where, for sign-in, revocation and sign-out', async () => {
  const { gateway } = harness;
  const { id } = await liveGrant();
  const lastAction = () => gateway.auditEvents('admin_action').at(-1);
  const who = { by: 'admin token', from: '127.0.0.1' };
  expect(lastAction()).toMatchObject({ act: 'console_sign_in', role: 'operator', ...who });
  await operator.get(`/console/revoke?by=grant&q=${id}`);
  await operator.submit('/console/revoke');
  expect(lastAction()).toMatchObject({ act: 'revoke_grant', grant: id, ...who });
  await operator.get('/console/revoke?by=client&q=other-app');
  await operator.submit('/console/revoke');
  expect(lastAction()).toMatchObject({ act: 'revoke_all_of_client', client: 'other-app', ...who });
  const { id: another } = await liveGrant();
  await sendRequest({
    port: gateway.adminPort,
    method: 'POST',
    path: `/admin/v1/grants/${another}/revoke`,
    headers: { authorization: `Bearer ${harness.token}` },
    plain: true,
  });
  expect(lastAction()).toMatchObject({ act: 'revoke_grant', grant: another, ...who });
  await operator.get('/console');
  await operator.submit('/console/sign-out');
  expect(lastAction()).toMatchObject({ act: 'console_sign_out', ...who });
});

test('revoking a person ends the grants of the identity that was shown, even if another person has the name by then', async () => {
  const { gateway } = harness;
  const alice = await liveGrant();
  const { access_token: bob } = await gateway.grant({ user: 'bob', scope: 'files:read' });
  await operator.get('/console/revoke?by=name&q=alice');
  await gateway.reload((settings) => swapNames(settings));
  try {
    expect((await operator.submit('/console/revoke')).status).toBe(200);
    expect(gateway.auditEvents('admin_action').at(-1)).toMatchObject({
      act: 'revoke_all_of_identity',
      identity: ALICE,
    });
  } finally {
    await gateway.reload((settings) => swapNames(settings));
  }
  expect(await alice.isLive()).toBe(false);
  expect((await gateway.api('/files/a', bob)).status).toBe(200);
  gateway.clock.advance(2);
});

describe('a name with more live grants than a search reads', () => {
  /** Sorted by id, which is the order in which the store is searched. */
  const seed = async (identities: readonly string[], name: string): Promise<void> => {
    const { clock, server } = harness.gateway;
    const time = Math.floor(clock.now());
    for (const [at, identity] of identities.entries()) {
      const id = `${name}-${String(at).padStart(3, '0')}`;
      const grant = testGrant({
        id,
        identity,
        issuedAt: time,
        rotatedAt: time,
        refreshUntil: time + 600,
        profile: { name },
      });
      await server.store.grants.create(id, grant, time + 600);
    }
  };
  const repeat = (identity: string, length: number): readonly string[] =>
    Array.from({ length }, () => identity);

  test('is not taken for one person because the first grants are of one', async () => {
    const { gateway } = harness;
    await seed([...repeat('corp:first', 100), 'corp:second'], 'shared-name');
    const { text } = await operator.get('/console/revoke?by=name&q=shared-name');
    expect(text).toContain('100 or more live grants');
    expect(text).toContain('name="by" value="name"');
    gateway.clearLog();
    const refused = await operator.submit('/console/revoke');
    expect([refused.status, refused.text.includes('Several users match')]).toEqual([409, true]);
    expect(gateway.auditEvents('admin_action')).toEqual([]);
  });

  test('is revoked by the identity that a directory knows', async () => {
    await seed(repeat(ALICE, 300), 'alice');
    const { text } = await operator.get('/console/revoke?by=name&q=alice');
    expect(text).toMatch(/[0-9]+ or more live grants/);
    expect(text).toContain(`name="q" value="${ALICE}"`);
  });
});

/** The user names of the two users of the directory `staff`. */
function swapNames(settings: SettingsInput): SettingsInput {
  const names: Readonly<Record<string, string>> = { alice: 'bob', bob: 'alice' };
  const { staff } = settings.directories ?? {};
  if (staff === undefined || !('users' in staff)) throw new Error('no users');
  const users = staff.users?.map((user) => ({ ...user, name: names[user.name] ?? user.name }));
  return { ...settings, directories: { staff: { ...staff, users } } };
}

test('messages contain no bidirectional or control characters of the request', async () => {
  const text = encodeURIComponent('a\u202eb\u0007c\u2066d');
  for (const path of [`/console/refusal?id=${text}`, `/console/grants?by=serial&q=${text}`])
    expect((await operator.get(path)).text.replace(/value="[^"]*"/g, '')).not.toMatch(
      /[\u202a-\u202e\u2066-\u2069\u0007]/,
    );
});

test('a grant whose every field is hostile is shown as text, on every page that shows it', async () => {
  const { gateway } = harness;
  const hostile = (name: string): string =>
    `${name}"><img src=x onerror=alert(1)>\u202e\u0007\u2066'</script>`;
  const time = Math.floor(gateway.clock.now());
  const id = 'hostile-grant';
  const grant = testGrant({
    id,
    clientId: hostile('client'),
    identity: hostile('identity'),
    scope: hostile('scope'),
    issuedAt: time,
    rotatedAt: time,
    refreshUntil: time + 3_600,
    profile: { name: hostile('name'), email: hostile('email'), groups: [hostile('group')] },
    certificate: {
      subject: hostile('subject'),
      issuer: hostile('issuer'),
      serial: 'abcd',
      fingerprint: 'A'.repeat(43),
    },
    exchangedFrom: hostile('exchanged'),
  });
  expect(await gateway.server.store.grants.create(id, grant, time + 3_600)).toBe('created');
  const query = (by: string, q: string): string => new URLSearchParams({ by, q }).toString();
  for (const path of [
    `/console/grant?id=${id}`,
    `/console/revoke?by=grant&q=${id}`,
    `/console/grants?${query('serial', 'abcd')}`,
    `/console/grants?${query('identity', hostile('identity'))}`,
    `/console/revoke?${query('name', hostile('name'))}`,
    `/console/revoke?${query('client', hostile('client'))}`,
  ]) {
    const { status, text } = await operator.get(path);
    expect([path, status, text.includes('client&quot;&gt;&lt;img')]).toEqual([path, 200, true]);
    expect(text).not.toContain('<img');
    expect(text.replace(/value="[^"]*"/g, '')).not.toMatch(/[\u202a-\u202e\u2066-\u2069\u0007]/);
  }
  await operator.get(`/console/revoke?by=grant&q=${id}`);
  expect((await operator.submit('/console/revoke')).text).toContain('revoked');
  const { text } = await operator.get('/console/audit?q=hostile-grant');
  expect(text).toContain('client&quot;&gt;&lt;img');
  expect(text).not.toMatch(/<img|[\u202a-\u202e\u2066-\u2069\u0007]/);
});
