import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { Grant } from '../../src/domain/grant.ts';
import { getGrantRecordExpiry } from '../../src/domain/grant.ts';
import { isGrantRevoked } from '../../src/grants/revoke.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { formToken } from '../support/form-browser.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import {
  BASE,
  identityOf,
  type PagesBrowser,
  type PagesHarness,
  startPagesHarness,
  storeUnavailable,
} from '../support/pages-harness.ts';
import { withUser } from '../support/reconfigure.ts';

let pages: PagesHarness;
freezeClock();
beforeAll(async () => {
  pages = await startPagesHarness();
});
afterAll(() => pages.close());
// All grants of the previous test have expired.
beforeEach(() => pages.reset(86_400 * 91));

const GRANTS = `${BASE}/grants`;

let grantCount = 0;
async function createGrantOf(name: string, changes: Partial<Grant> = {}): Promise<Grant> {
  grantCount += 1;
  const now = pages.gateway.clock.now();
  const grant: Grant = {
    id: `grant-${grantCount}`,
    clientId: 'report-runner',
    identity: identityOf(name),
    grantType: 'device',
    scope: 'reports:read',
    issuedAt: now,
    refreshUntil: now + 86_400 * 30,
    generation: 1,
    rotatedAt: now,
    accessExpires: now + 3_600,
    keys: { signing: 's', sealing: 's' },
    ...changes,
  };
  await pages.gateway.server.store.grants.create(grant.id, grant, getGrantRecordExpiry(grant));
  return grant;
}

async function signIn(name: string): Promise<PagesBrowser> {
  const browser = pages.browser();
  await browser.open(GRANTS);
  await browser.signIn(name);
  return browser;
}

const isRevoked = async (grant: Grant): Promise<boolean> => {
  const { store } = pages.gateway.server;
  const found = await store.grants.read(grant.id);
  return found?.record.revokedAt !== undefined && isGrantRevoked({ store }, grant);
};

test('the list of approvals requires a sign-in', async () => {
  const pending = await pages.requestCodes('reports:read,write');
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  expect((await alice.submit(`${BASE}/approve`)).text).toContain(`href="${GRANTS}"`);
  await createDeviceClient(pages.gateway).exchange(pending.device_code);

  const browser = pages.browser();
  const first = await browser.open(GRANTS);
  expect(first.text).toContain('Sign in to see the apps and devices you have approved.');
  expect(first.text).not.toContain('Step 2');
  const list = await browser.signIn();
  for (const shown of [
    'Approved apps and devices',
    'Report runner',
    'See and change reports',
    'Alice Example',
    'Never',
  ])
    expect(list.text).toContain(shown);
});

test('an approval is announced until its device has fetched the token, in the language of the page', async () => {
  const pending = await pages.requestCodes('reports:read');
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await alice.submit(`${BASE}/approve`);
  const waiting = await alice.get(GRANTS);
  expect(waiting.text).toContain('You approved \u2068Report runner\u2069. It appears here once');
  expect(waiting.text).not.toContain('No apps or devices can act');
  expect((await alice.open(`${GRANTS}?language=de`)).text).toContain('Sie haben \u2068Report runner\u2069 genehmigt.');
  // It is not shown to another user, or to alice in another browser.
  for (const name of ['bob', 'alice'])
    expect((await (await signIn(name)).get(GRANTS)).text).not.toContain('You approved');

  await createDeviceClient(pages.gateway).exchange(pending.device_code);
  const fetched = await alice.open(`${GRANTS}?language=en`);
  expect(fetched.text).toContain('See reports');
  expect(fetched.text).not.toContain('You approved');
});

test('an approval whose token is never fetched is not announced forever', async () => {
  const pending = await pages.requestCodes();
  const alice = pages.browser();
  await alice.reachReview(pending.user_code);
  await alice.submit(`${BASE}/approve`);
  expect((await alice.get(GRANTS)).text).toContain('You approved');
  for (let minute = 0; minute < 11; minute += 1) {
    pages.gateway.clock.advance(60);
    await alice.get(GRANTS);
  }
  expect((await alice.get(GRANTS)).text).toContain('No apps or devices can act on your behalf');
});

test('the list shows when and how a grant was issued and last used, and omits ended grants', async () => {
  const now = pages.gateway.clock.now();
  await createGrantOf('alice', { issuedAt: now - 86_400 * 3, generation: 4, rotatedAt: now - 7_200 });
  await createGrantOf('alice', { grantType: 'certificate', clientId: 'gone-app', scope: 'files' });
  await createGrantOf('alice', { scope: 'files:revoked', revokedAt: now });
  await createGrantOf('alice', { scope: 'files:over', refreshUntil: now });
  await createGrantOf('bob', { scope: 'files:of-bob' });
  const { text } = await (await signIn('alice')).get(GRANTS);
  for (const shown of [
    '3 days ago',
    '2 hours ago',
    'in 30 days',
    'Granted with your certificate',
    'gone-app',
    'No longer available',
  ])
    expect(text).toContain(shown);
  for (const hidden of ['revoked”', 'over”', 'of-bob']) expect(text).not.toContain(hidden);
});

test('revoking requires confirmation, revokes the grant everywhere and is reported once', async () => {
  const grant = await createGrantOf('alice');
  const kept = await createGrantOf('alice', { scope: 'files:read' });
  const alice = await signIn('alice');
  const question = await alice.get(`${BASE}/grant?id=${grant.id}`);
  expect(question.text).toContain('Revoke access?');
  expect(await isRevoked(grant)).toBe(false);
  const list = await alice.submit(`${BASE}/revoke`, { grant: grant.id });
  expect(list.text).toContain('Access for \u2068Report runner\u2069 was revoked.');
  expect(list.text).not.toContain('See reports');
  expect(await isRevoked(grant)).toBe(true);
  expect(await isRevoked(kept)).toBe(false);
  expect((await alice.get(GRANTS)).text).not.toContain('was revoked');
  expect(pages.gateway.auditEvents('grant_revoked').at(-1)).toMatchObject({
    event: 'grant_revoked',
    grant: grant.id,
    by: 'owner',
    identity: identityOf('alice'),
  });
});

test('the grant of another user cannot be seen or revoked, and looks like an unknown one', async () => {
  const grant = await createGrantOf('bob', { scope: 'files:read' });
  const own = await createGrantOf('alice');
  const alice = await signIn('alice');
  const other = await alice.get(`${BASE}/grant?id=${grant.id}`);
  const nothing = await alice.get(`${BASE}/grant?id=no-such-grant`);
  expect(other.status).toBe(404);
  expect(other.text).toBe(nothing.text);
  // The token of the user's own form, for another user's grant.
  const token = formToken((await alice.get(`${BASE}/grant?id=${own.id}`)).text, `${BASE}/revoke`);
  const send = (fields: Record<string, string>, headers = {}) =>
    alice.send('POST', `${BASE}/revoke`, new URLSearchParams(fields).toString(), headers);
  expect((await send({ form_token: token, grant: grant.id })).status).toBe(403);
  expect((await send({ form_token: token })).status).toBe(403);
  expect((await send({ grant: own.id })).status).toBe(403);
  expect((await send({ form_token: token, grant: own.id }, { origin: 'https://evil.test' })).status).toBe(403);
  expect((await send({ form_token: token, grant: own.id }, { 'sec-fetch-site': 'cross-site' })).status).toBe(403);
  // Even with a valid token for this form, another user's grant cannot be revoked.
  expect(await isRevoked(grant)).toBe(false);
  expect(await isRevoked(own)).toBe(false);
  for (const method of ['GET', 'HEAD'])
    expect((await alice.send(method, `${BASE}/revoke?grant=${own.id}`)).status).toBe(405);
  expect((await send({ form_token: token, grant: own.id })).status).toBe(303);
  expect(await isRevoked(own)).toBe(true);
  // A second click on the same form.
  expect((await send({ form_token: token, grant: own.id })).status).toBe(404);
});

test('many grants are shown on several pages, each of them once', async () => {
  for (let count = 0; count < 60; count += 1) await createGrantOf('alice', { scope: `files:n${count}` });
  const alice = await signIn('alice');
  const seen = new Set<string>();
  let next: string | undefined = GRANTS;
  for (let pages = 0; next !== undefined && pages < 10; pages += 1) {
    const { text } = await alice.get(next);
    for (const [, name = ''] of text.matchAll(/“(n\d+)”/g)) seen.add(name);
    next = /href="([^"]*\?after=[^"]*)"/.exec(text)?.[1]?.replaceAll('&amp;', '&');
  }
  expect(seen.size).toBe(60);
});

test('a disabled user is signed out', async () => {
  await createGrantOf('alice');
  const alice = await signIn('alice');
  await pages.reconfigure(withUser('alice', { disabled: true }));
  expect((await alice.open(GRANTS)).text).toContain('name="password"');
});

test('wrong passwords for the list close no device request, and the user name stays filled in', async () => {
  const browser = pages.browser();
  await browser.open(GRANTS);
  const again = await browser.signIn('alice "x"', 'wrong');
  expect(again.status).toBe(403);
  expect(again.text).toContain('name="user_name" value="alice &quot;x&quot;"');
  expect(again.text).not.toContain('wrong"');
  expect(again.text).toMatch(/name="password"[^>]* autofocus>/);
  await browser.signIn();
  expect((await browser.get(GRANTS)).status).toBe(200);
});

test('after signing out, a copy of the cookie no longer works', async () => {
  await createGrantOf('alice');
  const alice = await signIn('alice');
  const copy = alice.cookie;
  expect((await alice.get(GRANTS)).text).toContain('Report runner');
  await alice.submit(`${BASE}/sign-out`);
  const attacker = pages.browser();
  attacker.cookie = copy;
  expect((await attacker.open(GRANTS)).text).not.toContain('Report runner');
  attacker.cookie = copy;
  expect((await attacker.get(`${BASE}/review`)).status).toBe(403);
});

test('revoking an identity signs it out', async () => {
  const alice = await signIn('alice');
  expect((await alice.get(GRANTS)).status).toBe(200);
  pages.gateway.clock.advance(1);
  const now = pages.gateway.clock.now();
  await pages.gateway.server.store.revocations.announce({
    of: 'identity',
    identity: identityOf('alice'),
    notBefore: now,
    keepUntil: now + 86_400,
  });
  expect((await alice.get(GRANTS)).headers.location).toBe(`${BASE}/sign-in`);
});

test('signing out while the store is unreachable still replaces the cookie', async () => {
  const alice = await signIn('alice');
  const page = await alice.get(GRANTS);
  const before = alice.cookie;
  pages.beforeStore = storeUnavailable;
  const token = formToken(page.text, `${BASE}/sign-out`);
  const response = await alice.send('POST', `${BASE}/sign-out`, new URLSearchParams({ form_token: token }).toString());
  expect(response.status).toBe(303);
  expect(alice.cookie).not.toBe(before);
  expect((await alice.open(`${BASE}/review`)).text).not.toContain('Alice Example');
});

test('an unreachable store is reported as such in the list', async () => {
  const alice = await signIn('alice');
  pages.beforeStore = storeUnavailable;
  const page = await alice.get(GRANTS);
  expect(page.status).toBe(503);
  expect(page.headers['retry-after']).toBeDefined();
  expect(page.text).toContain('This service is temporarily unavailable');
});

test('if the list is disabled, there is neither a page nor a link to it', async () => {
  await pages.reconfigure((settings) => ({ ...settings, pages: { myGrants: false } }));
  const browser = pages.browser();
  expect((await browser.get(BASE)).text).not.toContain('/grants');
  expect((await browser.get(GRANTS)).status).toBe(404);
});
