import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient, DEVICE_GRANT, FORM } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createCa, issue } from '../support/pki.ts';
import { withSettings } from '../support/reconfigure.ts';
import { ALICE, BOB, type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Token API specification, sections 4 and 5. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const form = (path: string, fields: Readonly<Record<string, string>>): Promise<Reply> =>
  gateway.request({
    path: `/authsvc${path}`,
    method: 'POST',
    headers: { 'content-type': FORM },
    body: new URLSearchParams(fields).toString(),
  });
const confirmDevice = async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes);
  return codes.device_code;
};
const files = { client_id: 'report-runner', scope: 'files:read' } as const;

describe('4.1 POST Authorize/Token', () => {
  test('seed 4: neither operation needs a bearer token', async () => {
    const grant = await gateway.grant();
    expect((await gateway.refresh(grant.refresh_token)).status).toBe(200);
  });

  test('seed 4: all parameter names are case sensitive', async () => {
    const { refresh_token } = await gateway.grant();
    for (const body of [
      { Client_id: 'report-runner', refresh_token },
      { CLIENT_ID: 'report-runner', refresh_token },
      { client_id: 'report-runner', Refresh_Token: refresh_token },
      { clientId: 'report-runner', refresh_token },
    ])
      expect(await gateway.post('/Authorize/Token', body)).toMatchObject({
        status: 400,
        json: { Error: 'invalid_request' },
      });
    for (const body of [
      { Client_id: 'report-runner', scope: 'files:read' },
      { client_id: 'report-runner', Scope: 'files:read' },
    ])
      expect((await gateway.post('/Authorize/Certificate', body, { as: gateway.users.alice })).status).toBe(400);
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
  });

  test('seed 4.1: the device_code exchange is accepted form-encoded, with a JSON response', async () => {
    const device_code = await confirmDevice();
    const reply = await form('/Authorize/Token', {
      client_id: 'report-runner',
      grant_type: DEVICE_GRANT,
      device_code,
    });
    expect(reply.status, reply.text).toBe(200);
    expect(reply.headers['content-type']).toMatch(/^application\/json\b/);
    expect(reply.json['token_type']).toBe('Bearer');
  });

  test('seed 4.1: the device_code exchange is accepted as JSON', async () => {
    const reply = await createDeviceClient(gateway).exchange(await confirmDevice());
    expect(reply.status, reply.text).toBe(200);
  });

  test('seed 4.1: a refresh must be JSON; a form-encoded one is rejected and does not use up the token', async () => {
    const { refresh_token } = await gateway.grant();
    const asForm = await form('/Authorize/Token', { client_id: 'report-runner', refresh_token });
    expect(asForm).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
  });

  test('seed 4.1 client_id: required for every request', async () => {
    const { refresh_token } = await gateway.grant();
    const device_code = await confirmDevice();
    for (const body of [{ refresh_token }, { grant_type: DEVICE_GRANT, device_code }, {}])
      expect(await gateway.post('/Authorize/Token', body)).toMatchObject({
        status: 400,
        json: { Error: 'invalid_request' },
      });
  });

  test('seed 4.1 client_id: must equal the Client ID of the API integration, case included', async () => {
    const { refresh_token } = await gateway.grant();
    for (const client_id of ['Report-Runner', 'REPORT-RUNNER', 'report-runner ', ' report-runner', 'report'])
      expect((await gateway.refresh(refresh_token, { client_id })).json, client_id).toMatchObject({
        Error: 'invalid_grant',
      });
  });

  test('seed 4.1 grant_type: required, with its fixed value, for the first token after Authorize/Device', async () => {
    const device_code = await confirmDevice();
    for (const grant_type of [
      undefined,
      '',
      'device_code',
      'refresh_token',
      `${DEVICE_GRANT} `,
      DEVICE_GRANT.toUpperCase(),
    ])
      expect(
        await gateway.post('/Authorize/Token', { client_id: 'report-runner', device_code, grant_type }),
      ).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect((await createDeviceClient(gateway).exchange(device_code)).status).toBe(200);
  });

  test('seed 4.1 device_code: required for the first token after Authorize/Device', async () => {
    const reply = await gateway.post('/Authorize/Token', {
      client_id: 'report-runner',
      grant_type: DEVICE_GRANT,
    });
    expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
  });

  test('seed 4.1 device_code: valid once only', async () => {
    const device_code = await confirmDevice();
    const steps = createDeviceClient(gateway);
    expect((await steps.exchange(device_code)).status).toBe(200);
    expect((await steps.exchange(device_code)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('seed 4.1 device_code: is not logged', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.exchange(codes.device_code);
    await steps.exchange(codes.device_code, 'other-app');
    await gateway.request({
      path: `/authsvc/Authorize/Token?device_code=${codes.device_code}`,
      method: 'POST',
    });
    const log = JSON.stringify(gateway.log);
    expect(log).toContain('device_requested');
    expect(log).not.toContain(codes.device_code.slice(4));
    expect(log).not.toContain(codes.user_code);
  });

  test('seed 4.1 refresh_token: the one of an authorization and the one of a refresh both work', async () => {
    const first = await gateway.grant();
    const second = await gateway.refresh(first.refresh_token);
    expect((await gateway.refresh(String(second.json['refresh_token']))).status).toBe(200);
  });

  test('seed 4.1: every error is HTTP 400', async () => {
    for (const body of [null, [], 'text', 7, { client_id: 'report-runner', refresh_token: 'x' }])
      expect((await gateway.post('/Authorize/Token', body)).status).toBe(400);
  });
});

describe('4.2 POST Authorize/Certificate', () => {
  test('seed 4.2: application/json with client_id and scope returns the token grant with identity', async () => {
    const reply = await gateway.post('/Authorize/Certificate', files, { as: gateway.users.alice });
    expect(reply.status, reply.text).toBe(200);
    expect(reply.json['identity']).toBe(ALICE);
  });

  test('seed 4.2: a body that is not application/json is a 400 with a description', async () => {
    const reply = await gateway.request({
      path: '/authsvc/Authorize/Certificate',
      method: 'POST',
      as: gateway.users.alice,
      headers: { 'content-type': FORM },
      body: new URLSearchParams(files).toString(),
    });
    expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect(reply.json['Error_description']).toMatch(/application\/json/);
  });

  test('seed 4.2 client_id: must equal the Client ID, case included', async () => {
    for (const client_id of ['Report-runner', 'nobody'])
      expect(
        await gateway.post('/Authorize/Certificate', { ...files, client_id }, { as: gateway.users.alice }),
      ).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
  });

  test('seed 4.2 scope: the whole integration scope, or a subset', async () => {
    for (const scope of ['reports:read,write;files:read', 'files:read'])
      expect(
        (await gateway.post('/Authorize/Certificate', { ...files, scope }, { as: gateway.users.alice })).status,
      ).toBe(200);
  });

  test('seed 4.2: an authentication error is HTTP 401', async () => {
    expect((await gateway.post('/Authorize/Certificate', files)).status).toBe(401);
  });
});

describe('5 authentication', () => {
  test('seed 5.1: no bearer token and no special permission is needed, and an invalid one is ignored', async () => {
    const headers = { authorization: 'Bearer eyJhbGciOiJub25lIn0.e30.' };
    const reply = await gateway.post('/Authorize/Certificate', files, { as: gateway.users.bob, headers });
    expect(reply.status, reply.text).toBe(200);
    expect(reply.json['identity']).toBe(BOB);
  });

  test('seed 5.2: without a registered integration, or without access to it, no token is issued', async () => {
    const unregistered = { ...files, client_id: 'unregistered' };
    expect((await gateway.post('/Authorize/Certificate', unregistered, { as: gateway.users.alice })).status).toBe(400);
    const notGiven = { ...files, client_id: 'other-app' };
    expect(await gateway.post('/Authorize/Certificate', notGiven, { as: gateway.users.bob })).toMatchObject({
      status: 400,
      json: { Error: 'unauthorized_client' },
    });
  });

  test('seed 5.3: the access token is sent in the header of later calls', async () => {
    const { access_token } = await gateway.grant();
    const call = await gateway.request({
      path: '/files/1',
      headers: { authorization: `Bearer ${access_token}` },
    });
    expect(call.status).toBe(200);
  });

  test('seed 5.4: without a client certificate, no token is issued', async () => {
    expect((await gateway.post('/Authorize/Certificate', files)).json).not.toHaveProperty('access_token');
  });

  test('seed 5.4: a certificate of an unapproved issuer gets no token, even if the issuer has the same name', async () => {
    const twin = await createCa();
    expect(twin.subject).toBe(gateway.ca.subject);
    const reply = await gateway.post('/Authorize/Certificate', files, {
      as: await issue(twin, { commonName: 'alice' }),
    });
    expect(reply).toMatchObject({ status: 401, json: { Error: 'invalid_client' } });
  });

  test('seed 5.4: the identity comes from the common name, the e-mail or the user principal name, as configured', async () => {
    const mixed = await issue(gateway.ca, {
      commonName: 'alice',
      emails: ['bob@example.test'],
      userPrincipalNames: ['alice@corp.example.test'],
    });
    const readIdentity = async (): Promise<unknown> =>
      (await gateway.post('/Authorize/Certificate', files, { as: mixed })).json['identity'];
    expect(await readIdentity()).toBe(ALICE);
    for (const [identityFrom, identity] of [
      ['email', BOB],
      ['userPrincipalName', ALICE],
    ] as const)
      await withSettings(
        gateway,
        (settings) => ({ ...settings, certificates: { ...settings.certificates, identityFrom } }),
        async () => expect(await readIdentity()).toBe(identity),
      );
  });

  test('seed 5.4: an identity that is not authorized to use the web API gets no token', async () => {
    const outsider = await issue(gateway.ca, { commonName: 'stranger' });
    expect(await gateway.post('/Authorize/Certificate', files, { as: outsider })).toMatchObject({
      status: 401,
      json: { Error: 'access_denied' },
    });
  });

  test('seed 5.5: an unconfirmed device_code returns no token', async () => {
    const steps = createDeviceClient(gateway);
    const { device_code } = await steps.requestCodes();
    expect((await steps.exchange(device_code)).json).toEqual({
      Error: 'authorization_pending',
      Error_description: expect.any(String),
    });
  });

  test('seed 5.6: a refresh needs the client_id of its integration', async () => {
    const { refresh_token } = await gateway.grant();
    expect((await gateway.refresh(refresh_token, { client_id: 'other-app' })).json).toMatchObject({
      Error: 'invalid_grant',
    });
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
  });

  test('seed 5.7: a token of one integration is rejected where another is required', async () => {
    const { access_token } = await gateway.grant();
    expect((await gateway.api('/other/1', access_token)).status).toBe(403);
    const other = await gateway.grant({ clientId: 'other-app' });
    expect((await gateway.api('/other/1', other.access_token)).status).toBe(200);
  });
});
