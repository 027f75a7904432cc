import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { type CodeFlow, createCodeFlow, ISSUER, withCodeClients } from '../support/code-client.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Browsers do not send the `Strict` session cookie with a link of another site. */
let gateway: TestGateway;
let flow: CodeFlow;
beforeAll(async () => {
  gateway = await startGateway(withCodeClients);
});
afterAll(() => gateway?.close());
beforeEach(() => {
  flow = createCodeFlow(gateway);
});
afterEach(() => flow[Symbol.asyncDispose]());

const CROSS_SITE = { 'sec-fetch-site': 'cross-site' };

test.each(['/authsvc/device', '/authsvc/device/grants', '/authsvc/device?user_code=BCDF-GHJK'])(
  'a link of another site to %s sets no session, and continues on this site',
  async (path) => {
    const page = await flow.browser.get(path, CROSS_SITE);
    expect([page.status, page.redirectTo]).toEqual([200, `${ISSUER}${path}`]);
    expect(page.headers['set-cookie']).toBeUndefined();
    const next = await flow.browser.get(path, { 'sec-fetch-site': 'same-origin' });
    expect(next.headers['set-cookie']).toContain('__Host-gatehouse=');
  },
);

test('the query is escaped, and cannot lead to another site', async () => {
  const query = `user_code="><script>&x='%0d%0a;url=//evil.example.test`;
  const page = await flow.browser.get(`/AUTHSVC/Device?${query}`, CROSS_SITE);
  expect(page.text).not.toContain('<script>');
  expect(new URL(page.redirectTo ?? '').origin).toBe(ISSUER);
  expect(new URL(page.redirectTo ?? '').pathname).toBe('/authsvc/device');
});

test('a session that is sent is used at once', async () => {
  await flow.browser.open('/authsvc/device');
  const page = await flow.browser.get('/authsvc/device', CROSS_SITE);
  expect(page.text).toContain('name="user_code"');
});
