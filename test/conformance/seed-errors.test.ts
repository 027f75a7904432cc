import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withIntegration, withSettings, withUser } from '../support/reconfigure.ts';
import { BOB, type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Token API specification, section 7: each error under each of its conditions. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const refusal = (Error: string) => ({ status: 400, json: { Error } });
const withDevice = (enabled: boolean) => (settings: Parameters<Parameters<TestGateway['reload']>[0]>[0]) => ({
  ...settings,
  device: { ...settings.device, enabled },
});
const requestGrant = (scope: string | undefined): Promise<Reply> =>
  gateway.post(
    '/Authorize/Certificate',
    { client_id: 'report-runner', ...(scope !== undefined && { scope }) },
    { as: gateway.users.alice },
  );

describe('7.1 Authorize/Token', () => {
  test('seed 7.1 authorization_pending: the browser confirmation is missing', async () => {
    const steps = createDeviceClient(gateway);
    const { device_code } = await steps.requestCodes();
    expect(await steps.exchange(device_code)).toMatchObject(refusal('authorization_pending'));
  });

  test('seed 7.1 invalid_client: browser-based authentication is disabled', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.confirm(codes);
    await withSettings(gateway, withDevice(false), async () => {
      expect(await steps.exchange(codes.device_code)).toMatchObject(refusal('invalid_client'));
      expect(await gateway.post('/Authorize/Device', { client_id: 'report-runner', scope: 'files' })).toMatchObject(
        refusal('invalid_client'),
      );
    });
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
  });

  test('seed 7.1 invalid_client: disabled for this integration alone', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.confirm(codes);
    await withSettings(gateway, withIntegration('report-runner', { grants: ['certificate'] }), async () =>
      expect(await steps.exchange(codes.device_code)).toMatchObject(refusal('invalid_client')),
    );
  });

  test('seed 7.1 invalid_request: client_id is missing', async () => {
    const { refresh_token } = await gateway.grant();
    for (const body of [{ refresh_token }, { client_id: '', refresh_token }])
      expect(await gateway.post('/Authorize/Token', body)).toMatchObject(refusal('invalid_request'));
  });

  test('seed 7.1 invalid_request: an internal error occurred', async () => {
    const { refresh_token } = await gateway.grant();
    const reply = await withFailure(gateway.server.store.grants, 'read', 'not executed', () =>
      gateway.refresh(refresh_token),
    );
    expect(reply).toMatchObject(refusal('invalid_request'));
    expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
  });

  test('seed 7.1 invalid_scope: the requested scope is missing', async () => {
    expect(await requestGrant(undefined)).toMatchObject(refusal('invalid_scope'));
    expect(await requestGrant('')).toMatchObject(refusal('invalid_scope'));
    expect(await gateway.post('/Authorize/Device', { client_id: 'report-runner' })).toMatchObject(
      refusal('invalid_scope'),
    );
  });

  test('seed 7.1 invalid_scope: the scope of the grant was removed from the integration', async () => {
    const { refresh_token } = await gateway.grant({ scope: 'reports:write' });
    await withSettings(gateway, withIntegration('report-runner', { scope: 'reports:read;files:read' }), async () =>
      expect(await gateway.refresh(refresh_token)).toMatchObject(refusal('invalid_scope')),
    );
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
  });

  test('seed 7.1 invalid_scope: malformed', async () => {
    for (const scope of [':', 'files:', 'files:read,', ';', 'files:read;;reports', 'files read', '*', 'files:*'])
      expect(await requestGrant(scope), scope).toMatchObject(refusal('invalid_scope'));
  });

  test('seed 7.1 invalid_scope: the scope exceeds that of the API integration, and the description names the excess', async () => {
    const reply = await requestGrant('files:read,write');
    expect(reply).toMatchObject(refusal('invalid_scope'));
    expect(reply.json['Error_description']).toContain('files:write');
  });

  test('seed 7.1 invalid_grant: the user ID and password of the authorization were wrong too often', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    for (let tries = 0; tries < 4; tries += 1)
      await expect(steps.decideInBrowser(codes, { password: 'wrong' })).rejects.toThrow(/no form/);
    expect(await steps.exchange(codes.device_code)).toMatchObject(refusal('authorization_pending'));
    await expect(steps.decideInBrowser(codes, { password: 'wrong' })).rejects.toThrow(/no form/);
    gateway.clock.advance(5);
    const reply = await steps.exchange(codes.device_code);
    expect(reply).toMatchObject(refusal('invalid_grant'));
    expect(reply.json['Error_description']).toMatch(/user ID or password/);
  });

  test('seed 7.1 invalid_grant: a scope is not allowed for the identity at this API integration', async () => {
    const grant = await gateway.grant({ user: 'bob', scope: 'files:read' });
    const narrowed = [{ groups: ['operators'] }, { groups: ['readers'], scope: 'reports:read' }];
    await withSettings(gateway, withIntegration('report-runner', { access: narrowed }), async () =>
      expect(await gateway.refresh(grant.refresh_token)).toMatchObject(refusal('invalid_grant')),
    );
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes('report-runner', 'reports:write');
    await steps.confirm(codes, BOB);
    expect(await steps.exchange(codes.device_code)).toMatchObject(refusal('invalid_grant'));
  });

  test('seed 7.1 invalid_grant: the device_code is expired', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    gateway.clock.advance(codes.expires_in + 1);
    const reply = await steps.exchange(codes.device_code);
    expect(reply).toMatchObject(refusal('invalid_grant'));
    expect(reply.json['Error_description']).toMatch(/expired/);
  });

  test('seed 7.1 invalid_grant: the device_code is invalid', async () => {
    const steps = createDeviceClient(gateway);
    const { device_code } = await steps.requestCodes();
    const flipped = device_code.slice(0, -2) + (device_code.at(-2) === 'A' ? 'B' : 'A') + device_code.at(-1);
    for (const code of [flipped, 'ghd_', 'x', 'x'.repeat(10_000), device_code.toUpperCase(), `${device_code} `])
      expect(await steps.exchange(code)).toMatchObject(refusal('invalid_grant'));
  });

  test('seed 7.1 invalid_grant: client_id does not match the integration’s Client ID', async () => {
    const { refresh_token } = await gateway.grant();
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.confirm(codes);
    for (const client of ['other-app', 'nobody', 'Report-Runner']) {
      expect(await gateway.refresh(refresh_token, { client_id: client })).toMatchObject(refusal('invalid_grant'));
      expect(await steps.exchange(codes.device_code, client)).toMatchObject(refusal('invalid_grant'));
    }
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
  });

  test('seed 7.1 unauthorized_client: the user is not authorized for this grant type', async () => {
    const { refresh_token } = await gateway.grant();
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.confirm(codes);
    const withGrants = (grants: ('certificate' | 'device')[]) =>
      withIntegration('report-runner', { access: [{ groups: ['operators'], grants }] });
    await withSettings(gateway, withGrants(['device']), async () => {
      expect(await gateway.refresh(refresh_token)).toMatchObject(refusal('unauthorized_client'));
      expect(await requestGrant('files:read')).toMatchObject(refusal('unauthorized_client'));
    });
    await withSettings(gateway, withGrants(['certificate']), async () =>
      expect(await steps.exchange(codes.device_code)).toMatchObject(refusal('unauthorized_client')),
    );
    await withSettings(gateway, withUser('alice', { disabled: true }), async () =>
      expect(await gateway.refresh(refresh_token)).toMatchObject(refusal('unauthorized_client')),
    );
    expect((await gateway.refresh(refresh_token)).status).toBe(200);
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
  });

  test('seed 7.1: Authorize/Token returns only these six error codes', async () => {
    const six = [
      'authorization_pending',
      'invalid_client',
      'invalid_request',
      'invalid_scope',
      'invalid_grant',
      'unauthorized_client',
    ];
    const events = gateway.log
      .filter((line) => line.event === 'request' && line['rule'] === 'authsvc:token')
      .map((line) => line['status']);
    expect(new Set(events)).toEqual(new Set([200, 400]));
    const { TOKEN_ERRORS } = await import('../../src/authsvc/error-tables.ts');
    for (const { status, code } of Object.values(TOKEN_ERRORS)) {
      expect(status).toBe(400);
      expect(six).toContain(code);
    }
  });
});

describe('7.2 Authorize/Certificate', () => {
  test('seed 7.2: HTTP 400 and HTTP 401 contain an error and a description specific to this operation', async () => {
    const unauthenticated = await gateway.post('/Authorize/Certificate', {
      client_id: 'report-runner',
      scope: 'files:read',
    });
    expect(unauthenticated.status).toBe(401);
    for (const reply of [unauthenticated, await requestGrant('nonsense:'), await requestGrant(undefined)]) {
      expect(reply.json['Error']).toMatch(/^[a-z_]+$/);
      expect(String(reply.json['Error_description']).length).toBeGreaterThan(10);
    }
  });
});
