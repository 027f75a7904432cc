import { afterAll, beforeAll, expect, test } from 'vitest';
import { USER_CODE_ALPHABET } from '../../src/domain/device-request.ts';
import { createDeviceClient, DEVICE_GRANT, FORM } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import { ALICE, type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Wire specification, section 4: POST Authorize/Device, and the complete flow through the real pages. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway((settings) => ({ ...settings, service: { paths: ['/authsvc', '/auth'] } }));
});
afterAll(() => gateway.close());

const files = { client_id: 'report-runner', scope: 'Files:read' };
const requestDevice = (body: unknown): Promise<Reply> => gateway.post('/Authorize/Device', body);
const refusal = (Error: string) => ({ status: 400, json: { Error, Error_description: expect.any(String) } });

test('wire 4: 200 has device_code, user_code, verification_uri, verification_uri_complete, expires_in, interval, expires', async () => {
  const reply = await requestDevice(files);
  expect(reply.status, reply.text).toBe(200);
  const { user_code: code, expires, expires_in: left } = reply.json;
  expect(reply.json).toEqual({
    device_code: expect.any(String),
    user_code: expect.any(String),
    verification_uri: 'https://localhost:8443/authsvc/device',
    verification_uri_complete: `https://localhost:8443/authsvc/device?user_code=${String(code)}`,
    expires_in: expect.any(Number),
    interval: 5,
    expires: expect.any(Number),
  });
  expect(Number(expires) - gateway.clock.now()).toBeGreaterThanOrEqual(Number(left) - 1);
});

test('wire 4: Authorize/Device accepts form and JSON bodies', async () => {
  const reply = await gateway.request({
    path: '/authsvc/Authorize/Device',
    method: 'POST',
    headers: { 'content-type': FORM },
    body: new URLSearchParams(files).toString(),
  });
  expect(reply.status, reply.text).toBe(200);
  expect(reply.headers['content-type']).toMatch(/^application\/json\b/);
});

test('wire 4: invalid_request without client_id, and for a body that cannot be read', async () => {
  expect(await requestDevice({ scope: 'files' })).toMatchObject(refusal('invalid_request'));
  expect(await requestDevice('text')).toMatchObject(refusal('invalid_request'));
  expect(await requestDevice({ client_id: 7, scope: 'files' })).toMatchObject(refusal('invalid_request'));
});

test('wire 4: invalid_client when the device flow is off, for all or for this integration', async () => {
  await withSettings(
    gateway,
    (settings) => ({ ...settings, device: { enabled: false } }),
    async () => expect(await requestDevice(files)).toMatchObject(refusal('invalid_client')),
  );
  await withSettings(gateway, withIntegration('report-runner', { grants: ['certificate'] }), async () => {
    expect(await requestDevice(files)).toMatchObject(refusal('invalid_client'));
    expect((await requestDevice({ ...files, client_id: 'other-app' })).status).toBe(200);
  });
});

test('wire 4: invalid_grant for an unknown client_id, case included', async () => {
  for (const client_id of ['nobody', 'Report-Runner'])
    expect(await requestDevice({ ...files, client_id })).toMatchObject(refusal('invalid_grant'));
});

test('wire 4: invalid_scope for a scope that is missing, malformed or wider than the integration’s', async () => {
  for (const scope of [undefined, '', 'files:', 'files read', 'files:write', 'mail'])
    expect(await requestDevice({ ...files, scope }), scope).toMatchObject(refusal('invalid_scope'));
});

test('wire 4: unauthorized_client when no access entry allows this flow', async () => {
  for (const access of [[], [{ groups: ['operators'], grants: ['certificate' as const] }]])
    await withSettings(gateway, withIntegration('report-runner', { access }), async () =>
      expect(await requestDevice(files)).toMatchObject(refusal('unauthorized_client')),
    );
});

test('wire 4: a store failure is invalid_request with Retry-After', async () => {
  const { devices } = gateway.server.store;
  const reply = await withFailure(devices, 'create', 'not executed', () => requestDevice(files));
  expect(reply).toMatchObject(refusal('invalid_request'));
  expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
});

test('wire 4: user_code is 8 letters of a 20-letter alphabet without vowels or look-alikes, shown as XXXX-XXXX', async () => {
  expect(USER_CODE_ALPHABET).toHaveLength(20);
  expect(new Set(USER_CODE_ALPHABET).size).toBe(20);
  expect(USER_CODE_ALPHABET).not.toMatch(/[AEIOU0-9]/);
  const shape = new RegExp(`^[${USER_CODE_ALPHABET}]{4}-[${USER_CODE_ALPHABET}]{4}$`);
  const codes = await Promise.all(Array.from({ length: 50 }, () => createDeviceClient(gateway).requestCodes()));
  for (const { user_code } of codes) expect(user_code).toMatch(shape);
  expect(new Set(codes.map(({ user_code }) => user_code)).size).toBe(50);
});

test('wire 4: device_code has at least 128 random bits', async () => {
  const codes = await Promise.all(Array.from({ length: 50 }, () => createDeviceClient(gateway).requestCodes()));
  const bits = codes.map(({ device_code }) => Buffer.from(device_code.replace(/^ghd_/, ''), 'base64url'));
  for (const code of bits) expect(code.length).toBeGreaterThanOrEqual(16);
  // Every byte varies: no part is a counter, a time or a prefix.
  const length = bits[0]?.length ?? 0;
  for (let at = 0; at < length; at += 1) expect(new Set(bits.map((code) => code[at])).size).toBeGreaterThan(20);
});

test.each(['typed in lower case', 'without its dash', 'with spaces'])(
  'wire 4: a user_code %s is the same code',
  async (how) => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    const { user_code } = codes;
    const typed = {
      'typed in lower case': user_code.toLowerCase(),
      'without its dash': user_code.replace('-', ''),
      'with spaces': ` ${user_code.replace('-', ' ')} `,
    }[how];
    await steps.decideInBrowser({ ...codes, user_code: typed ?? '' });
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
  },
);

test('wire 4: the complete device flow: code, sign-in, review, approve, exchange, call, refresh', async () => {
  const steps = createDeviceClient(gateway);
  const codes = (await requestDevice(files)).json as unknown as Awaited<ReturnType<typeof steps.requestCodes>>;
  expect((await steps.exchange(codes.device_code)).json).toMatchObject({ Error: 'authorization_pending' });
  const end = await steps.decideInBrowser(codes);
  expect(end.status).toBe(200);
  expect(end.headers['content-type']).toMatch(/^text\/html\b/);
  expect(gateway.auditEvents('device_confirmed').at(-1)).toMatchObject({
    identity: ALICE,
    client: 'report-runner',
  });

  gateway.clock.advance(codes.interval);
  const exchanged = await gateway.request({
    path: '/authsvc/Authorize/Token',
    method: 'POST',
    headers: { 'content-type': FORM },
    body: new URLSearchParams({
      client_id: 'report-runner',
      grant_type: DEVICE_GRANT,
      device_code: codes.device_code,
    }).toString(),
  });
  expect(exchanged.status, exchanged.text).toBe(200);
  expect(exchanged.json['scope']).toBe('Files:read');
  const call = await gateway.api('/files/1', String(exchanged.json['access_token']));
  expect(call.json['headers']).toMatchObject({
    'x-forwarded-user': ALICE,
    'x-forwarded-scope': 'files:read',
  });
  expect((await gateway.refresh(String(exchanged.json['refresh_token']))).status).toBe(200);
  expect((await steps.exchange(codes.device_code)).json).toMatchObject({ Error: 'invalid_grant' });
});

test('wire 4: a user can sign in on the page with a client certificate', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.decideInBrowser(codes, { as: gateway.users.alice });
  expect((await steps.exchange(codes.device_code)).status).toBe(200);
  expect(gateway.auditEvents('sign_in').at(-1)).toMatchObject({ by: 'certificate', identity: ALICE });
});

test('wire 4: the page has no Approve button for a user who may not have this scope', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes('report-runner', 'reports:write');
  await expect(steps.decideInBrowser(codes, { userName: 'bob' })).rejects.toThrow(/no form for "\/approve"/);
  expect((await steps.exchange(codes.device_code)).json).toMatchObject({ Error: 'authorization_pending' });
});

test('wire 4: the page is also served under an alias', async () => {
  const page = await gateway.request({ path: '/Auth/Device' });
  expect(page.status).toBe(200);
  expect(page.headers['cache-control']).toMatch(/no-store/);
});

test('wire 4: the grant is kept at least until the code would have expired, so a code never works twice', async () => {
  const lifetimes = withIntegration('report-runner', { grantLifetime: '30s', accessLifetime: '10s' });
  await withSettings(gateway, lifetimes, async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.confirm(codes);
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
    for (let left = codes.expires_in; left > 0; left -= 20) {
      gateway.clock.advance(20);
      await gateway.server.store.sweep();
      expect((await steps.exchange(codes.device_code)).json).toMatchObject({ Error: 'invalid_grant' });
    }
  });
});
