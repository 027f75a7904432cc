import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Agent } from 'undici';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { startGatewayWithAdminTls } from '../support/console-certificates.ts';
import { readGrantId } from '../support/console-harness.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';
import { createCa, type IssuedCertificate, issue } from '../support/pki.ts';
import type { TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
let ca: IssuedCertificate;
let operator: IssuedCertificate;
let viewer: IssuedCertificate;
let unrelated: IssuedCertificate;
const agents: Agent[] = [];

beforeAll(async () => {
  ca = await createCa();
  const other = await createCa();
  [operator, viewer, unrelated] = await Promise.all([
    issue(ca, { commonName: 'olivia' }),
    issue(ca, { commonName: 'victor' }),
    issue(other, { commonName: 'olivia' }),
  ]);
  gateway = await startGatewayWithAdminTls(ca, ['CN=olivia']);
});
afterEach(async () => {
  for (const agent of agents.splice(0)) await agent.destroy();
});
afterAll(() => gateway?.close());

const browse = (certificate?: IssuedCertificate): FormBrowser => {
  const agent = createAgent({ ca: ca.pem, certificate });
  agents.push(agent);
  return new FormBrowser({ agent, base: `https://localhost:${gateway.adminPort}` });
};

test('a certificate of the client CA signs in without a token, with a Secure __Host- cookie', async () => {
  const browser = browse(operator);
  const { text, headers } = await browser.open('/console');
  expect(text).toContain('certificate CN=olivia');
  const { status } = await browser.submit('/console/certificate');
  expect(status).toBe(200);
  expect(String(headers['set-cookie'])).toMatch(/^__Host-gatehouse-console-\d+=[\w-]{43}; Path=\/; .*; Secure$/);
  expect(gateway.auditEvents('admin_action').at(-1)).toMatchObject({
    act: 'console_sign_in',
    by: 'certificate CN=olivia',
    role: 'operator',
  });
});

test('presenting a certificate alone opens no page, and a certificate of another CA does not sign in', async () => {
  expect((await browse(operator).get('/console')).status).toBe(303);
  const browser = browse(unrelated);
  const { text } = await browser.open('/console');
  expect(text).not.toContain('Sign in with this certificate');
});

test('the cookie of a certificate session is worthless without that certificate', async () => {
  const browser = browse(operator);
  await browser.open('/console');
  await browser.submit('/console/certificate');
  expect((await browser.get('/console')).status).toBe(200);
  for (const other of [browse(), browse(unrelated), browse(viewer)]) {
    other.cookie = browser.cookie;
    expect((await other.get('/console')).status).toBe(303);
  }
});

test('a certificate that admin.tls.operators does not list may only view', async () => {
  const { access_token: token } = await gateway.grant();
  const id = readGrantId(token);
  const browser = browse(viewer);
  await browser.open('/console');
  expect((await browser.submit('/console/certificate')).text).toContain('read-only');
  expect((await browser.get(`/console/grant?id=${id}`)).text).not.toContain('Revoke…');
  expect((await browser.get(`/console/revoke?by=grant&q=${id}`)).status).toBe(403);
  const api = browse(viewer);
  const post = await api.send('POST', `/admin/v1/grants/${id}/revoke`, '', {});
  expect([post.status, post.text.includes('access_denied')]).toEqual([403, true]);
  expect((await gateway.api('/files/a', token)).status).toBe(200);
  // A wrong token does not help; the admin token does.
  const withToken = (token: string) =>
    browse(viewer).send('POST', `/admin/v1/grants/${id}/revoke`, '', { authorization: `Bearer ${token}` });
  expect((await withToken('not-the-admin-token')).status).toBe(403);
  expect((await gateway.api('/files/a', token)).status).toBe(200);
  const trusted = browse(operator);
  expect((await trusted.send('POST', `/admin/v1/grants/${id}/revoke`, '', {})).status).toBe(200);
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  const adminToken = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
  expect((await withToken(adminToken)).status).toBe(200);
});
