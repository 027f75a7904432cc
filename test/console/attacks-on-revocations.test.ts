import { describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { type FormBrowser, formToken } from '../support/form-browser.ts';
import { sendRequest } from '../support/https-client.ts';
import { testGrant } from '../support/store-fixtures.ts';
import { ALICE } from '../support/test-gateway.ts';
import { encode, SAME_ORIGIN, useAttackedConsole } from './attacked-console.ts';

const harness = useAttackedConsole();

test('a revocation needs a form of this session, for this grant, from this origin', async () => {
  const { id, isLive } = await harness.liveGrant();
  const other = await harness.liveGrant();
  const { text } = await harness.operator.get(`/console/revoke?by=grant&q=${id}`);
  const token = formToken(text, '/console/revoke');
  const fields = { by: 'grant', q: id };
  const second = await harness.signedIn();
  const attempts: [what: string, browser: FormBrowser, body: string, headers: Record<string, string>][] = [
    ['no form token', harness.operator, encode(fields), SAME_ORIGIN(harness.url)],
    ['an empty form token', harness.operator, encode({ ...fields, form_token: '' }), SAME_ORIGIN(harness.url)],
    [
      'the token of another form',
      harness.operator,
      encode({ ...fields, form_token: formToken(text, '/console/sign-out') }),
      SAME_ORIGIN(harness.url),
    ],
    ['another session', second, encode({ ...fields, form_token: token }), SAME_ORIGIN(harness.url)],
    [
      'another grant',
      harness.operator,
      encode({ by: 'grant', q: other.id, form_token: token }),
      SAME_ORIGIN(harness.url),
    ],
    [
      'everything of a client',
      harness.operator,
      encode({ by: 'client', q: 'report-runner', form_token: token }),
      SAME_ORIGIN(harness.url),
    ],
    [
      'another site',
      harness.operator,
      encode({ ...fields, form_token: token }),
      { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' },
    ],
    [
      'another port',
      harness.operator,
      encode({ ...fields, form_token: token }),
      { origin: 'http://127.0.0.1:1', 'sec-fetch-site': 'same-site' },
    ],
    [
      'no origin, cross-site',
      harness.operator,
      encode({ ...fields, form_token: token }),
      { 'sec-fetch-site': 'cross-site' },
    ],
    ['no origin', harness.operator, encode({ ...fields, form_token: token }), {}],
    [
      'no origin, same-origin',
      harness.operator,
      encode({ ...fields, form_token: token }),
      { 'sec-fetch-site': 'same-origin' },
    ],
    ['an opaque origin', harness.operator, encode({ ...fields, form_token: token }), { origin: 'null' }],
    [
      'a script',
      harness.operator,
      encode({ ...fields, form_token: token }),
      { ...SAME_ORIGIN(harness.url), 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' },
    ],
    [
      'a repeated field',
      harness.operator,
      `${encode({ ...fields, form_token: token })}&q=${other.id}`,
      SAME_ORIGIN(harness.url),
    ],
  ];
  for (const [what, browser, body, headers] of attempts) {
    const { status } = await browser.send('POST', '/console/revoke', body, headers);
    expect([what, [400, 403].includes(status)]).toEqual([what, true]);
    expect([what, await isLive(), await other.isLive()]).toEqual([what, true, true]);
  }
  const accepted = await harness.operator.send(
    'POST',
    '/console/revoke',
    encode({ ...fields, form_token: token }),
    SAME_ORIGIN(harness.url),
  );
  expect([accepted.status, await isLive()]).toEqual([303, false]);
});

test('GET never revokes, and other methods are refused', async () => {
  const { id, isLive } = await harness.liveGrant();
  await harness.operator.get(`/console/revoke?by=grant&q=${id}`);
  for (const method of ['PUT', 'DELETE', 'PATCH', 'OPTIONS', 'HEAD'])
    expect([method, (await harness.operator.send(method, `/console/revoke?by=grant&q=${id}`)).status]).toEqual([
      method,
      method === 'HEAD' ? 200 : 405,
    ]);
  expect((await harness.operator.get('/console/sign-out')).status).toBe(405);
  expect(await isLive()).toBe(true);
});

test('a viewer sees everything and revokes nothing, neither in the console nor through the admin API', async () => {
  const { id, isLive } = await harness.liveGrant();
  const viewer = await harness.signedIn(harness.readOnlyToken);
  const { text } = await viewer.get(`/console/grant?id=${id}`);
  expect(text).toContain('read-only');
  expect(text).not.toContain('Revoke');
  expect((await viewer.get(`/console/revoke?by=grant&q=${id}`)).status).toBe(403);
  const operatorPage = await harness.operator.get(`/console/revoke?by=grant&q=${id}`);
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
  await harness.operator.open('/console/sign-in');
  await harness.operator.submit('/console/sign-in', { token: harness.readOnlyToken });
  const { id } = await harness.liveGrant();
  expect((await harness.operator.get(`/console/revoke?by=grant&q=${id}`)).status).toBe(403);
  expect((await viewer.get('/console')).text).toContain('read-only');
});

test('the audit log has who acted and from where, for sign-in, revocation and sign-out', async () => {
  const { gateway } = harness;
  const { id } = await harness.liveGrant();
  const lastAction = () => gateway.auditEvents('admin_action').at(-1);
  const who = { by: 'admin token', from: '127.0.0.1' };
  expect(lastAction()).toMatchObject({ act: 'console_sign_in', role: 'operator', ...who });
  await harness.operator.get(`/console/revoke?by=grant&q=${id}`);
  await harness.operator.submit('/console/revoke');
  expect(lastAction()).toMatchObject({ act: 'revoke_grant', grant: id, ...who });
  await harness.operator.get('/console/revoke?by=client&q=other-app');
  await harness.operator.submit('/console/revoke');
  expect(lastAction()).toMatchObject({ act: 'revoke_all_of_client', client: 'other-app', ...who });
  const { id: another } = await harness.liveGrant();
  await sendRequest({
    port: gateway.adminPort,
    method: 'POST',
    path: `/admin/v1/grants/${another}/revoke`,
    headers: { authorization: `Bearer ${harness.token}` },
    plain: true,
  });
  expect(lastAction()).toMatchObject({ act: 'revoke_grant', grant: another, ...who });
  await harness.operator.get('/console');
  await harness.operator.submit('/console/sign-out');
  expect(lastAction()).toMatchObject({ act: 'console_sign_out', ...who });
});

test('revoking a person ends the grants of the identity that was shown, even if another person has the name by then', async () => {
  const { gateway } = harness;
  const alice = await harness.liveGrant();
  const { access_token: bob } = await gateway.grant({ user: 'bob', scope: 'files:read' });
  await harness.operator.get('/console/revoke?by=name&q=alice');
  await gateway.reload((settings) => swapNames(settings));
  try {
    expect((await harness.operator.submit('/console/revoke')).status).toBe(200);
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
        // After the revocations of other tests.
        issuedAfter: (time + 60) * 1_000,
        rotatedAt: time,
        refreshUntil: time + 600,
        profile: { name },
      });
      await server.store.grants.create(id, grant, time + 600);
    }
  };
  const repeat = (identity: string, length: number): readonly string[] => Array.from({ length }, () => identity);

  test('is not taken for one person because the first grants are of one', async () => {
    const { gateway } = harness;
    await seed([...repeat('corp:first', 100), 'corp:second'], 'shared-name');
    const { text } = await harness.operator.get('/console/revoke?by=name&q=shared-name');
    expect(text).toContain('100 or more live grants');
    expect(text).toContain('name="by" value="name"');
    gateway.clearLog();
    const refused = await harness.operator.submit('/console/revoke');
    expect([refused.status, refused.text.includes('Several users match')]).toEqual([409, true]);
    expect(gateway.auditEvents('admin_action')).toEqual([]);
  });

  test('is revoked by the identity that a directory knows', async () => {
    await seed(repeat(ALICE, 300), 'alice');
    const { text } = await harness.operator.get('/console/revoke?by=name&q=alice');
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
