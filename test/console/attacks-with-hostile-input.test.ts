import { expect, test } from 'vitest';
import { Fault } from '../../src/ports/fault.ts';
import { formToken } from '../support/form-browser.ts';
import { testGrant } from '../support/store-fixtures.ts';
import { SAME_ORIGIN, useAttackedConsole } from './attacked-console.ts';

const harness = useAttackedConsole();

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
    const { text } = await harness.operator.get(path);
    expect([path, /<script>|<img|onerror=alert\(2\)>[^&]*"/.test(text)]).toEqual([path, false]);
  }
});

test('bidirectional and control characters of clients are removed', async () => {
  const { text } = await harness.operator.get(
    `/console/explain?method=GET&path=${encodeURIComponent('/a\u202eb\u0007c')}`,
  );
  const result = text.slice(text.indexOf('id="verdict"'));
  expect(result).not.toMatch(/[\u202e\u0007]/);
});

test('messages contain no bidirectional or control characters of the request', async () => {
  const text = encodeURIComponent('a\u202eb\u0007c\u2066d');
  for (const path of [`/console/refusal?id=${text}`, `/console/grants?by=serial&q=${text}`])
    expect((await harness.operator.get(path)).text.replace(/value="[^"]*"/g, '')).not.toMatch(
      /[\u202a-\u202e\u2066-\u2069\u0007]/,
    );
});

test('a grant whose every field is hostile is shown as text, on every page that shows it', async () => {
  const { gateway } = harness;
  const hostile = (name: string): string => `${name}"><img src=x onerror=alert(1)>\u202e\u0007\u2066'</script>`;
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
    const { status, text } = await harness.operator.get(path);
    expect([path, status, text.includes('client&quot;&gt;&lt;img')]).toEqual([path, 200, true]);
    expect(text).not.toContain('<img');
    expect(text.replace(/value="[^"]*"/g, '')).not.toMatch(/[\u202a-\u202e\u2066-\u2069\u0007]/);
  }
  await harness.operator.get(`/console/revoke?by=grant&q=${id}`);
  expect((await harness.operator.submit('/console/revoke')).text).toContain('revoked');
  const { text } = await harness.operator.get('/console/audit?q=hostile-grant');
  expect(text).toContain('client&quot;&gt;&lt;img');
  expect(text).not.toMatch(/<img|[\u202a-\u202e\u2066-\u2069\u0007]/);
});

test('oversized input is refused or cut, and memory stays bounded', async () => {
  const { text } = await harness.operator.get('/console');
  const token = formToken(text, '/console/sign-out');
  const big = await harness.operator
    .send('POST', '/console/revoke', `form_token=${token}&q=${'a'.repeat(20_000)}`, SAME_ORIGIN(harness.url))
    .catch(() => ({ status: 413 }));
  expect(big.status).toBe(413);
  const many = Array.from({ length: 50 }, (_, index) => `f${index}=1`).join('&');
  expect((await harness.operator.send('POST', '/console/revoke', many, SAME_ORIGIN(harness.url))).status).toBe(400);
  expect((await harness.operator.get(`/console/explain?path=/${'a'.repeat(5_000)}`)).text).toContain(
    'path must have at most',
  );
  expect((await harness.operator.get(`/console/grants?by=subject&q=${'a'.repeat(5_000)}`)).status).toBe(200);
  expect((await harness.operator.get(`/console/grants?after=${'a'.repeat(5_000)}`)).status).toBe(200);
  const wrong = harness.browser();
  await wrong.open('/console/sign-in');
  expect((await wrong.submit('/console/sign-in', { token: 'a'.repeat(10_000) })).status).toBe(401);
});

test('only the last refusals are kept, each without its query and with bounded fields', async () => {
  const { gateway } = harness;
  const secret = `eyJ${'a'.repeat(40)}.${'b'.repeat(40)}.${'c'.repeat(40)}`;
  await gateway.api(`/files/${secret}?access=${secret}`);
  await gateway.api(`/files/${'x'.repeat(3_000)}`);
  const page = await harness.operator.get('/console/refusals?q=files');
  expect(page.text).not.toContain('aaaaaaaaaa');
  expect(page.text).toContain('[redacted-jwt]');
  expect(page.text).not.toContain('x'.repeat(600));
});

test('a failing store is a temporary error, never an empty result', async () => {
  const { id } = await harness.liveGrant();
  const { grantIndex, grants } = harness.gateway.server.store;
  const [list, read] = [grantIndex.list.bind(grantIndex), grants.read.bind(grants)];
  const fail = async (): Promise<never> => {
    throw new Fault('store_unavailable', 'unreachable');
  };
  Object.assign(grantIndex, { list: fail });
  Object.assign(grants, { read: fail });
  try {
    const { text } = await harness.operator.get('/console/grants');
    expect(text).toContain('The store is unreachable; try again.');
    const grant = await harness.operator.get(`/console/grant?id=${id}`);
    expect([grant.status, grant.headers['retry-after']]).toEqual([503, expect.stringMatching(/^\d+$/)]);
  } finally {
    Object.assign(grantIndex, { list });
    Object.assign(grants, { read });
  }
});
