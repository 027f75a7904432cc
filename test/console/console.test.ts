import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type ConsoleHarness, readGrantId, startConsole } from '../support/console-harness.ts';
import type { FormBrowser } from '../support/form-browser.ts';
import { ALICE } from '../support/test-gateway.ts';

let harness: ConsoleHarness;
let operator: FormBrowser;
beforeAll(async () => {
  harness = await startConsole((settings) => ({
    ...settings,
    log: { ...settings.log, access: { pseudonymKey: 'a-pseudonym-key-of-thirty-two-chars' } },
    routes: [...(settings.routes ?? []), { path: '/trial/**', requires: 'reports:read', reportOnly: true }],
  }));
});
afterAll(() => harness?.close());
beforeEach(async () => {
  operator = await harness.signedIn();
});

test('every page of the console needs a session and leads to the sign-in page', async () => {
  const browser = harness.browser();
  for (const path of ['', '/grants', '/grant?id=a', '/refusals', '/explain', '/configuration', '/audit']) {
    const { status, headers } = await browser.get(`/console${path}`);
    expect([path, status, headers.location]).toEqual([
      path,
      303,
      `/console/sign-in?${new URLSearchParams({ next: `/console${path}` }).toString()}`,
    ]);
  }
  expect((await browser.get('/console/nowhere')).status).toBe(404);
});

test('after signing in, the requested page is opened; signing out ends the session everywhere', async () => {
  const browser = harness.browser();
  await browser.open('/console/audit?q=grant');
  const page = await browser.submit('/console/sign-in', { token: harness.token });
  expect(page.url).toBe(`${harness.url}/console/audit?q=grant`);
  expect(harness.gateway.auditEvents('admin_action').at(-1)).toMatchObject({
    act: 'console_sign_in',
    by: 'admin token',
    role: 'operator',
  });
  const copy = harness.browser();
  copy.cookie = browser.cookie;
  expect((await copy.get('/console')).status).toBe(200);
  await browser.submit('/console/sign-out');
  expect((await copy.get('/console')).status).toBe(303);
});

test('the console is not served on the public listener, nor when it is off', async () => {
  expect((await harness.gateway.request({ path: '/console' })).status).toBe(401);
  const other = await startConsole((settings) => ({
    ...settings,
    admin: { ...settings.admin, console: { enabled: false } },
  }));
  try {
    expect((await other.browser().get('/console')).status).toBe(404);
  } finally {
    await other.close();
  }
});

test('the overview shows figures of requests, upstreams and certificates', async () => {
  const { gateway } = harness;
  await operator.get('/console');
  const { access_token: token } = await gateway.grant();
  for (let count = 0; count < 5; count += 1) await gateway.api('/files/a', token);
  await gateway.api('/files/a');
  gateway.clock.advance(5);
  const { text } = await operator.get('/console');
  expect(text).toMatch(/<dt>Grants<\/dt><dd>\d+<small><bdi>issued in the last minute; 0 refreshed, \d+ revoked</);
  expect(text).toMatch(/<bdi>default<\/bdi><\/th><td><span class="badge good">healthy/);
  expect(text).toMatch(/<bdi>listener<\/bdi><\/th><td>certificate/);
  expect(text).toContain('The embedded store is used by this gatehouse only.');
});

test('the overview has counts in words, not small rates', async () => {
  const { gateway } = harness;
  const { access_token: token } = await gateway.grant();
  await operator.get('/console');
  gateway.clock.advance(920);
  await operator.get('/console');
  for (let count = 0; count < 4; count += 1) await gateway.api('/files/a', token);
  await gateway.api('/files/a');
  gateway.clock.advance(61);
  const { text } = await operator.get('/console');
  expect(text).toContain('<dt>Requests</dt><dd>5<small><bdi>in the last minute</bdi></small>');
  expect(text).toContain(
    '<dt>Refused</dt><dd>1<small><bdi>of them (20 %); none failed; token missing: 1</bdi></small>',
  );
  // More than one request per second.
  await Promise.all(Array.from({ length: 90 }, () => gateway.api('/files/a', token)));
  gateway.clock.advance(5);
  const busy = await operator.get('/console');
  expect(busy.text).toMatch(/<dd>95<small><bdi>in the last minute, 1\.\d+ per second</);
});

test('grants are found by the beginning of a value, which revokes nothing', async () => {
  const { gateway } = harness;
  const alices = readGrantId((await gateway.grant({ clientId: 'other-app' })).access_token);
  const bobs = readGrantId((await gateway.grant({ user: 'bob' })).access_token);
  const search = async (by: string, q: string): Promise<readonly boolean[]> => {
    const { text } = await operator.get(`/console/grants?${new URLSearchParams({ by, q }).toString()}`);
    expect(text).not.toContain('Revoke all');
    return [alices, bobs].map((id) => text.includes(`id=${id}`));
  };
  expect(await search('name', 'AL*')).toEqual([true, false]);
  expect(await search('email', 'bob@*')).toEqual([false, true]);
  expect(await search('client', 'other*')).toEqual([true, false]);
  expect(await search('identity', 'local:*')).toEqual([true, true]);
  expect(await search('name', 'lic*')).toEqual([false, false]);
  expect((await operator.get('/console/grants?by=name&q=*')).text).toContain('1 to 1024 characters before the *');
  expect((await operator.get('/console/grants?by=serial&q=ab*')).text).toContain('serial must be hexadecimal.');
  expect((await operator.get('/console/revoke?by=name&q=al*')).status).toBe(400);
});

test('grants are found by person, client and certificate', async () => {
  const { gateway } = harness;
  const id = readGrantId((await gateway.grant()).access_token);
  const bobs = readGrantId((await gateway.grant({ user: 'bob' })).access_token);
  const detail = await operator.get(`/console/grant?id=${id}`);
  const serial = /Certificate serial<\/dt><dd><bdi>([^<]+)/.exec(detail.text)?.[1] ?? '';
  const fingerprint = /Fingerprint<\/dt><dd><bdi>([^<]+)/.exec(detail.text)?.[1] ?? '';
  const searches = {
    name: 'alice',
    email: 'alice@example.test',
    identity: ALICE,
    client: 'report-runner',
    serial,
    fingerprint,
  };
  for (const [by, text] of Object.entries(searches)) {
    const page = await operator.get(`/console/grants?${new URLSearchParams({ by, q: text }).toString()}`);
    expect([by, page.status, page.text.includes(`id=${id}`), page.text.includes(`id=${bobs}`)]).toEqual([
      by,
      200,
      true,
      by === 'client',
    ]);
  }
  expect((await operator.get('/console/grants?by=name&q=nobody')).text).toContain('No live grant matches.');
  expect((await operator.get('/console/grants?by=serial&q=xyz')).text).toContain('serial must be hexadecimal.');
});

test('a grant is revoked only after the confirmation, and its state is shown', async () => {
  const { gateway } = harness;
  const { access_token: token } = await gateway.grant();
  const id = readGrantId(token);
  await operator.get(`/console/grant?id=${id}`);
  await operator.get(`/console/revoke?by=grant&q=${id}`);
  expect((await gateway.api('/files/a', token)).status).toBe(200);
  const page = await operator.submit('/console/revoke');
  expect(page.url).toBe(`${harness.url}/console/grant?id=${id}`);
  expect(page.text).toContain('revoked');
  expect(page.text).not.toContain('Revoke…');
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect(gateway.auditEvents('admin_action').at(-1)).toMatchObject({
    act: 'revoke_grant',
    by: 'admin token',
    grant: id,
  });
});

test.each([
  ['name', 'bob'],
  ['client', 'other-app'],
])('all grants of a %s are revoked at once', async (by, text) => {
  const { gateway } = harness;
  const { access_token: token } = await (by === 'name'
    ? gateway.grant({ user: 'bob' })
    : gateway.grant({ clientId: 'other-app' }));
  const kept = await gateway.grant();
  expect((await operator.get(`/console/revoke?by=${by}&q=${text}`)).text).toMatch(/\d+ live grants?\./);
  const { status } = await operator.submit('/console/revoke');
  expect(status).toBe(200);
  expect((await gateway.api('/whoami', token)).status).toBe(401);
  expect((await gateway.api('/whoami', kept.access_token)).status).toBe(200);
  gateway.clock.advance(2);
});

test('a refusal is found by its request id, with its rule, what that requires and what the grant allows', async () => {
  const { gateway } = harness;
  const { access_token: token } = await gateway.grant({ scope: 'files:read' });
  const { headers, status } = await gateway.api('/reports/q3?secret=1', token, { method: 'POST' });
  expect(status).toBe(403);
  const id = String(headers['x-request-id']);
  const list = await operator.get(`/console/refusals?q=${id}`);
  expect(list.text.match(/href="\/console\/refusal\?id=/g)).toHaveLength(1);
  const { text } = await operator.get(`/console/refusal?id=${id}`);
  expect(text).toContain('insufficient_scope');
  expect(text).toContain('routes[2] /reports/**');
  expect(text).toMatch(/The rule requires<\/dt><dd><code><bdi>reports:write/);
  expect(text).toMatch(/The grant allows<\/dt><dd><code><bdi>files:read/);
  expect(text).toContain('the token lacks reports:write');
  expect(text).toContain('href="/console/explain?method=POST&amp;path=%2Freports%2Fq3&amp;client=report-runner');
  expect(text).not.toContain('secret=1');
  expect(text).not.toContain(token);
  expect((await operator.get('/console/refusal?id=unknown')).status).toBe(404);
});

test('refusals are grouped by their cause and described in sentences', async () => {
  const { gateway } = harness;
  const { access_token: token } = await gateway.grant({ user: 'bob', scope: 'files:read' });
  for (const path of ['/reports/1', '/reports/2', '/reports/3', '/reports/4', '/reports/5'])
    await gateway.api(path, token, { method: 'POST' });
  await gateway.api('/grouped', token);
  const { text } = await operator.get('/console/refusals?q=bob');
  const groups = text.split('<div class="line-up">').slice(1);
  expect(groups[0]).toContain('<h2><bdi>No rule matches the request: none of ');
  const group = groups.find((one) =>
    one.includes('The token does not include reports:write, which the rule requires.'),
  );
  expect(group).toContain('<span>5 requests</span>');
  expect(group).toContain('<summary>2 more</summary>');
  expect(group?.match(/href="\/console\/refusal\?id=/g)).toHaveLength(5);
  expect((await operator.get('/console/refusals')).text).toMatch(
    /\d+ requests, in \d+ groups by reason, rule and caller/,
  );
});

test('requests that a report-only rule forwards are shown as such; forwarded ones are not recorded', async () => {
  const { gateway } = harness;
  const trial = await gateway.api('/trial/a', (await gateway.grant({ user: 'bob', scope: 'files:read' })).access_token);
  expect(trial.status).toBe(200);
  const page = await operator.get(`/console/refusals?q=${String(trial.headers['x-request-id'])}`);
  expect(page.text).toContain('forwarded: report-only');
  const forwarded = await gateway.api('/health');
  const none = await operator.get(`/console/refusals?q=${String(forwarded.headers['x-request-id'])}`);
  expect(none.text).toContain('None of the recent refusals matches.');
});

test('fields that the access log excludes or pseudonymises are not kept for the console', async () => {
  const { gateway } = harness;
  const { access_token: token } = await gateway.grant({ scope: 'files:read' });
  await gateway.reload((settings) => ({
    ...settings,
    log: {
      ...settings.log,
      access: { ...settings.log?.access, exclude: ['path'], pseudonymise: ['identity', 'from'] },
    },
  }));
  const { headers } = await gateway.api('/reports/q3', token);
  await gateway.reload((settings) => ({
    ...settings,
    log: { ...settings.log, access: { pseudonymKey: 'a-pseudonym-key-of-thirty-two-chars' } },
  }));
  const { text } = await operator.get(`/console/refusal?id=${String(headers['x-request-id'])}`);
  expect(text).toContain('(path hidden)');
  expect(text).not.toContain('/reports/q3');
  expect(text).not.toContain('127.0.0.1</');
  expect(text).not.toContain('<bdi>alice');
  expect(text).not.toContain(ALICE);
});

test('a request is explained with the configuration in use, also after a reload', async () => {
  const { gateway } = harness;
  const explain = async (query: Record<string, string>): Promise<string> =>
    (await operator.get(`/console/explain?${new URLSearchParams(query).toString()}`)).text;
  expect(await explain({ method: 'GET', path: '/files/1' })).toContain('requires a token (401 without one)');
  expect(await explain({ method: 'GET', path: '/files/1', client: 'report-runner' })).toContain(
    'the token meets the requirement files:read',
  );
  expect(await explain({ method: 'POST', path: '/reports/1', scope: 'files:read' })).toContain('rejected (403)');
  expect(await explain({ method: 'GET', path: '/added' })).toContain('rejected (404;');
  await gateway.reload((settings) => ({
    ...settings,
    routes: [...(settings.routes ?? []), { path: '/added', public: true }],
  }));
  expect(await explain({ method: 'GET', path: '/added' })).toContain('forwarded without a token');
  expect(await explain({ method: 'GET', path: '/a', scope: '::' })).toContain('This is not a scope.');
  expect(await explain({ method: 'GET', path: '/a', client: 'x' })).toContain('No integration has this client id.');
  expect(await explain({ method: 'get', path: '/a' })).toContain('Write the method in capitals');
});

test('the page for explanations has an example that is allowed', async () => {
  const { text } = await operator.get('/console/explain');
  const [, url = ''] = /Example: <a href="([^"]+)">/.exec(text) ?? [];
  const example = await operator.get(url.replaceAll('&amp;', '&'));
  expect(example.text).toContain('<bdi>/files/example</bdi></h2><span class="badge good">');
  expect(example.text).not.toContain('Example:');
});

test('settings that differ from their default are marked, and settings are filtered by name and value', async () => {
  const load = async (query: string) => (await operator.get(`/console/configuration?${query}`)).text;
  const all = await load('');
  const find = (path: string) => new RegExp(`<bdi>${path}</bdi></dt><dd class="mono">(.*?)</dd>`).exec(all)?.[1];
  expect(find('tokens\\.accessLifetime')).not.toContain('changed');
  expect(find('store\\.path')).not.toContain('changed');
  expect(find('admin\\.port')).toContain('<span class="badge neutral">changed</span>');
  const filtered = await load('q=ACCESSlifetime');
  expect(filtered).toContain('1 setting, 0 changed');
  expect(filtered).toContain('tokens.accessLifetime');
  expect(filtered).not.toContain('admin.port');
  expect(await load('q=reports%3Aread')).toContain('integrations[0].scope');
  const changed = await load('changed=1');
  expect(changed).toContain('admin.port');
  expect(changed).not.toContain('tokens.accessLifetime');
  expect(await load('q=nothing-has-this')).toContain('No setting matches.');
  // A filter reveals nothing about secrets.
  expect(await load('q=argon2id')).toContain('No setting matches.');
  expect(await load('q=a-pseudonym-key')).toContain('No setting matches.');
});

test('the configuration is shown with defaults and without secrets', async () => {
  const { text } = await operator.get('/console/configuration');
  expect(text).toMatch(/<bdi>tokens\.accessLifetime<\/bdi><\/dt><dd class="mono"><bdi>1h<\/bdi>/);
  expect(text).toMatch(/<bdi>routes\[1\]\.requires<\/bdi>/);
  expect(text).toMatch(/users\[0\]\.passwordHash<\/bdi><\/dt><dd class="mono"><span class="soft">hidden/);
  expect(text).not.toContain('argon2id');
  expect(text).not.toContain('a-pseudonym-key');
});

test('the audit tail shows recent events of all kinds', async () => {
  await harness.gateway.grant();
  const { text } = await operator.get('/console/audit');
  expect(text).toContain('<h2>grant issued</h2>');
  expect(text).toContain('<h2>admin action</h2>');
  expect((await operator.get('/console/audit?q=console_sign_in')).text).not.toContain('<h2>grant issued</h2>');
});

test('a session ends after an hour without a click, and after its lifetime even if it is used', async () => {
  const { clock } = harness.gateway;
  clock.advance(3_000);
  expect((await operator.get('/console')).status).toBe(200);
  clock.advance(3_601);
  expect((await operator.get('/console')).status).toBe(303);
  operator = await harness.signedIn();
  for (let hours = 0; hours < 8; hours += 1) {
    expect((await operator.get('/console')).status).toBe(200);
    clock.advance(3_599);
  }
  clock.advance(8);
  expect((await operator.get('/console')).status).toBe(303);
});
