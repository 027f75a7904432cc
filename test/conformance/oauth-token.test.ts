import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient, DEVICE_GRANT, type DeviceClient, type DeviceCodes } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createOAuthClient, getAccessToken, type OAuthClient, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings, withUser } from '../support/reconfigure.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Wire specification, section 9: the token and device authorization endpoints. */
let gateway: TestGateway;
freezeClock(250);
let oauth: OAuthClient;
let device: DeviceClient;
beforeAll(async () => {
  gateway = await startGateway();
  oauth = createOAuthClient(gateway);
  device = createDeviceClient(gateway);
});
afterAll(() => gateway.close());

const requestCodes = async (scope = 'files:read'): Promise<DeviceCodes> => {
  const reply = await oauth.post('device_authorization', { client_id: 'report-runner', scope });
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as DeviceCodes;
};
const GOOD = { grant_type: 'refresh_token', client_id: 'report-runner' } as const;

describe('requests', () => {
  test('wire 9: responses are JSON with no-store and a request id', async () => {
    const { refresh_token } = await gateway.grant();
    for (const reply of [await oauth.refresh(refresh_token), await oauth.refresh('x')]) {
      expect(reply.headers['content-type']).toMatch(/^application\/json/);
      expect(reply.headers['cache-control']).toBe('no-store');
      expect(reply.headers['pragma']).toBe('no-cache');
      expect(reply.headers['x-request-id']).toMatch(/./);
    }
  });

  test('wire 9: errors have error and error_description, in the characters that RFC 6749 §5.2 allows', async () => {
    const replies = [
      await oauth.refresh('x'),
      await oauth.post('token', { grant_type: 'päss"word\\', client_id: 'x' }),
      await oauth.post('device_authorization', { client_id: 'report-runner', scope: 'a"b\\' }),
    ];
    for (const { json } of replies) {
      expect(Object.keys(json)).toEqual(['error', 'error_description']);
      expect(json['error_description']).toMatch(/^[\x20\x21\x23-\x5b\x5d-\x7e]+$/);
    }
  });

  test('wire 9: only form-encoded bodies are accepted', async () => {
    const { refresh_token } = await gateway.grant();
    const body = JSON.stringify({ ...GOOD, refresh_token });
    for (const type of ['application/json', 'text/plain', 'multipart/form-data; boundary=x', ''])
      expect(await oauth.post('token', body, { headers: { 'content-type': type } })).toMatchObject(
        refusal('invalid_request'),
      );
    for (const headers of [
      { 'content-encoding': 'gzip' },
      { 'content-type': 'application/x-www-form-urlencoded; charset=utf-16' },
    ])
      expect(
        await oauth.post('token', new URLSearchParams({ ...GOOD, refresh_token }).toString(), { headers }),
      ).toMatchObject(refusal('invalid_request'));
    const type = 'Application/X-WWW-Form-URLencoded; Charset="UTF-8"';
    const fields = new URLSearchParams({ ...GOOD, refresh_token, surplus: 'x' }).toString();
    expect((await oauth.post('token', fields, { headers: { 'content-type': type } })).status).toBe(200);
  });

  test('wire 9: a repeated parameter is rejected, known or not, and changes nothing', async () => {
    const { refresh_token } = await gateway.grant();
    const form = new URLSearchParams({ ...GOOD, refresh_token }).toString();
    for (const twice of [`${form}&client_id=report-runner`, `${form}&a=1&a=1`, `${form}&%67rant_type=x`])
      expect(await oauth.post('token', twice)).toMatchObject(refusal('invalid_request'));
    expect((await oauth.refresh(refresh_token)).status).toBe(200);
  });

  test('wire 9: a body over 16 KiB is 413', async () => {
    const reply = await oauth.post('token', { ...GOOD, x: 'a'.repeat(17_000) });
    expect(reply).toMatchObject(refusal('invalid_request', 413));
  });

  test('wire 9: a missing, empty or unknown parameter is reported by name', async () => {
    const { refresh_token } = await gateway.grant();
    for (const [fields, error] of [
      [{}, 'invalid_request'],
      [{ client_id: 'report-runner', refresh_token }, 'invalid_request'],
      [{ ...GOOD, grant_type: '' }, 'invalid_request'],
      [{ grant_type: 'refresh_token', refresh_token }, 'invalid_request'],
      [{ ...GOOD, client_id: '', refresh_token }, 'invalid_request'],
      [GOOD, 'invalid_request'],
      [{ ...GOOD, grant_type: DEVICE_GRANT }, 'invalid_request'],
      [{ ...GOOD, grant_type: 'password', username: 'alice' }, 'unsupported_grant_type'],
      [{ ...GOOD, grant_type: 'authorization_code', code: 'x' }, 'unsupported_grant_type'],
      [{ ...GOOD, grant_type: 'Refresh_Token', refresh_token }, 'unsupported_grant_type'],
      [{ ...GOOD, grant_type: '__proto__', refresh_token }, 'unsupported_grant_type'],
      [{ ...GOOD, client_id: 'nobody', refresh_token }, 'invalid_client'],
      [{ ...GOOD, client_id: 'Report-Runner', refresh_token }, 'invalid_client'],
      [{ ...GOOD, client_id: 'other-app', refresh_token }, 'invalid_grant'],
      [{ ...GOOD, refresh_token: 'made-up' }, 'invalid_grant'],
    ] as const)
      expect(await oauth.post('token', fields), JSON.stringify(fields).slice(0, 90)).toMatchObject(refusal(error));
    expect((await oauth.refresh(refresh_token)).status, 'nothing was changed').toBe(200);
  });

  test('wire 9: secrets of a client that has none are rejected, with a challenge in the scheme the client used', async () => {
    const { refresh_token } = await gateway.grant();
    const basic = Buffer.from('report-runner:secret').toString('base64');
    const byHeader = await oauth.post(
      'token',
      { ...GOOD, refresh_token },
      { headers: { authorization: `basic ${basic}` } },
    );
    expect(byHeader).toMatchObject(refusal('invalid_client', 401));
    expect(byHeader.headers['www-authenticate']).toBe('Basic realm="gatehouse"');
    const client_assertion_type = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';
    for (const more of [{ client_secret: 'x' }, { client_assertion: 'x', client_assertion_type }]) {
      const reply = await oauth.refresh(refresh_token, more);
      expect(reply).toMatchObject(refusal('invalid_client', 401));
      expect(reply.headers['www-authenticate']).toMatch(/./);
    }
    const stale = { headers: { authorization: 'Bearer stale' } };
    const good = { ...GOOD, refresh_token, client_secret: '' };
    expect((await oauth.post('token', good, stale)).status, 'a stale bearer token is ignored').toBe(200);
  });

  test('wire 9: other methods are 405, other paths 404, regardless of letter case, and nothing is forwarded', async () => {
    const before = gateway.upstream.requests.length;
    for (const operation of ['token', 'device_authorization', 'revoke', 'introspect'])
      for (const method of ['GET', 'HEAD', 'PUT', 'DELETE', 'OPTIONS', 'PATCH']) {
        const reply = await gateway.request({ path: `/AUTHSVC/OAuth2/${operation.toUpperCase()}`, method });
        expect(reply.status, `${method} ${operation}`).toBe(405);
        expect(reply.headers.allow).toBe('POST');
      }
    for (const path of ['', '/', '/token/', '/authorize', '/tokenx'])
      expect(await gateway.request({ path: `/authsvc/oauth2${path}`, method: 'POST' }), path).toMatchObject(
        refusal('not_found', 404),
      );
    expect(gateway.upstream.requests.length).toBe(before);
  });

  test('wire 9: a store failure is 503 temporarily_unavailable with Retry-After, never a client error', async () => {
    const { grants, devices } = gateway.server.store;
    const { refresh_token } = await gateway.grant();
    const codes = await requestCodes();
    const responses = [
      await withFailure(grants, 'read', 'not executed', () => oauth.refresh(refresh_token)),
      await withFailure(grants, 'create', 'not executed', () => oauth.clientCredentials()),
      await withFailure(devices, 'read', 'not executed', () => oauth.poll(codes.device_code)),
      await withFailure(devices, 'create', 'not executed', () =>
        oauth.post('device_authorization', { client_id: 'report-runner', scope: 'files:read' }),
      ),
    ];
    for (const reply of responses) {
      expect(reply).toMatchObject(refusal('temporarily_unavailable', 503));
      expect(reply.headers['retry-after']).toMatch(/^[1-9]/);
    }
    expect((await oauth.refresh(refresh_token)).status).toBe(200);
  });

  test('wire 9: too many requests are 429 with Retry-After', async () => {
    const withTokenLimit = (settings: Parameters<Parameters<TestGateway['reload']>[0]>[0]) => ({
      ...settings,
      limits: { ...settings.limits, rates: { ...settings.limits?.rates, token: '1/h' } },
    });
    await withSettings(gateway, withTokenLimit, async () => {
      const { refresh_token } = await gateway.grant();
      expect((await oauth.refresh(refresh_token)).status).toBe(200);
      const reply = await oauth.refresh(refresh_token);
      expect(reply).toMatchObject(refusal('temporarily_unavailable', 429));
      expect(reply.headers['retry-after']).toMatch(/^[1-9]/);
    });
  });
});

describe('refresh_token', () => {
  test('wire 9: rotates like the token API, and either API continues where the other left off', async () => {
    const grant = await gateway.grant();
    const second = await oauth.refresh(grant.refresh_token);
    expect(second.json).toMatchObject({ token_type: 'Bearer', scope: 'files:read' });
    expect([3_599, 3_600]).toContain(second.json['expires_in']);
    expect(Object.keys(second.json).toSorted()).toEqual(
      ['access_token', 'expires_in', 'refresh_token', 'scope', 'token_type'].toSorted(),
    );
    const third = await gateway.refresh(String(second.json['refresh_token']));
    expect(third.status).toBe(200);
    expect((await gateway.api('/files/1', String(third.json['access_token']))).status).toBe(200);
  });

  test('R01: a lost response is repeated with the same strings, on either API', async () => {
    const { refresh_token } = await gateway.grant();
    const first = await oauth.refresh(refresh_token);
    const again = await oauth.refresh(refresh_token);
    const seed = await gateway.refresh(refresh_token);
    for (const { json } of [again, seed]) {
      expect(json['access_token']).toBe(first.json['access_token']);
      expect(json['refresh_token']).toBe(first.json['refresh_token']);
    }
  });

  test('R02: a spent refresh token ends the grant: invalid_grant', async () => {
    const { refresh_token } = await gateway.grant();
    const second = await oauth.refresh(refresh_token);
    const third = await oauth.refresh(String(second.json['refresh_token']));
    expect(await oauth.refresh(refresh_token)).toMatchObject(refusal('invalid_grant'));
    expect(await oauth.refresh(String(third.json['refresh_token']))).toMatchObject(refusal('invalid_grant'));
    expect((await gateway.api('/files/1', String(third.json['access_token']))).status).toBe(401);
  });

  test('wire 9: a scope within the grant is accepted and the response contains the granted scope; a wider one is invalid_scope', async () => {
    const { refresh_token } = await gateway.grant({ scope: 'files:read;reports:read,write' });
    for (const scope of ['reports:manage', 'files:read mail', 'files:READ'])
      expect(await oauth.refresh(refresh_token, { scope }), scope).toMatchObject(refusal('invalid_scope'));
    const reply = await oauth.refresh(refresh_token, { scope: 'reports:read' });
    expect(reply).toMatchObject({ status: 200, json: { scope: 'files:read reports:read reports:write' } });
  });

  test('wire 9: an identity that has lost its access is unauthorized_client, and the grant is kept', async () => {
    const { refresh_token } = await gateway.grant({ scope: 'reports:read' });
    await withSettings(gateway, withUser('alice', { disabled: true }), async () =>
      expect(await oauth.refresh(refresh_token)).toMatchObject(refusal('unauthorized_client')),
    );
    await withSettings(gateway, withIntegration('report-runner', { scope: 'files:read' }), async () =>
      expect(await oauth.refresh(refresh_token)).toMatchObject(refusal('invalid_scope')),
    );
    expect((await oauth.refresh(refresh_token)).status).toBe(200);
  });
});

describe('device_code', () => {
  test('wire 9: the complete flow: requested, pending, confirmed by a user, exchanged once', async () => {
    const codes = await requestCodes('files:read reports:read');
    expect(Object.keys(codes).toSorted()).toEqual(
      [
        'device_code',
        'expires_in',
        'interval',
        'user_code',
        'verification_uri',
        'verification_uri_complete',
      ].toSorted(),
    );
    expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('authorization_pending'));
    expect((await device.decideInBrowser(codes)).status).toBe(200);
    gateway.clock.advance(codes.interval);
    const reply = await oauth.poll(codes.device_code);
    expect(reply).toMatchObject({ status: 200, json: { scope: 'files:read reports:read' } });
    const call = await gateway.api('/files/1', String(reply.json['access_token']));
    expect(call.json['headers']).toMatchObject({
      'x-forwarded-user': ALICE,
      'x-forwarded-scope': 'files:read;reports:read',
    });
    expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('invalid_grant'));
  });

  test('wire 9: denied by the user is access_denied; expired is expired_token; unknown is invalid_grant', async () => {
    const denied = await requestCodes();
    await device.decideInBrowser(denied, { decision: 'deny' });
    expect(await oauth.poll(denied.device_code)).toMatchObject(refusal('access_denied'));
    const late = await requestCodes();
    gateway.clock.advance(late.expires_in + 1);
    expect(await oauth.poll(late.device_code)).toMatchObject(refusal('expired_token'));
    expect(await oauth.poll('ghd_made-up')).toMatchObject(refusal('invalid_grant'));
    const codes = await requestCodes();
    expect(await oauth.poll(codes.device_code, { client_id: 'other-app' })).toMatchObject(refusal('invalid_grant'));
  });

  test('wire 9: polling before the interval has passed is slow_down, and the interval grows by 5 seconds', async () => {
    const codes = await requestCodes();
    expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('authorization_pending'));
    const early = await oauth.poll(codes.device_code);
    expect(early).toMatchObject(refusal('slow_down'));
    expect(Number(early.headers['retry-after'])).toBeGreaterThan(0);
    gateway.clock.advance(codes.interval + 1);
    expect(await oauth.poll(codes.device_code), 'polled too early').toMatchObject(refusal('slow_down'));
    gateway.clock.advance(9);
    expect(await oauth.poll(codes.device_code), 'polled in time').toMatchObject(refusal('authorization_pending'));
    gateway.clock.advance(codes.interval + 10);
    await device.confirm(codes);
    expect((await oauth.poll(codes.device_code)).status).toBe(200);
  });

  test('wire 9: a device that ignores slow_down still gets its token', async () => {
    const codes = await requestCodes();
    await oauth.poll(codes.device_code);
    await device.confirm(codes);
    const errors: unknown[] = [];
    for (let second = 0; second < 60; second += 1) {
      const { status, json } = await oauth.poll(codes.device_code);
      if (status === 200) break;
      errors.push(json['error']);
      gateway.clock.advance(1);
    }
    expect(new Set(errors)).toEqual(new Set(['slow_down']));
    expect(errors.length).toBeLessThan(45);
    expect(errors.length).toBeGreaterThan(5);
  });

  test('wire 9: a device that obeys every slow_down gets no further one', async () => {
    const codes = await requestCodes();
    let { interval } = codes;
    for (let early = 0; early < 3; early += 1) {
      await oauth.poll(codes.device_code);
      expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('slow_down'));
      interval += 5;
      gateway.clock.advance(interval);
      expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('authorization_pending'));
      gateway.clock.advance(interval);
    }
  });

  test('wire 9: the device flow disabled for the integration is unauthorized_client, disabled for all is unsupported_grant_type', async () => {
    const codes = await requestCodes();
    await withSettings(gateway, withIntegration('report-runner', { grants: ['certificate'] }), async () => {
      expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('unauthorized_client'));
      const body = await oauth.post('device_authorization', { client_id: 'report-runner', scope: 'files' });
      expect(body).toMatchObject(refusal('unauthorized_client'));
    });
    await withSettings(
      gateway,
      (settings) => ({ ...settings, device: { enabled: false } }),
      async () => expect(await oauth.poll(codes.device_code)).toMatchObject(refusal('unsupported_grant_type')),
    );
  });

  test('wire 9: device_authorization rejects what the integration does not allow', async () => {
    for (const [fields, error] of [
      [{ scope: 'files:read' }, 'invalid_request'],
      [{ client_id: 'nobody', scope: 'files:read' }, 'invalid_client'],
      [{ client_id: 'report-runner' }, 'invalid_scope'],
      [{ client_id: 'report-runner', scope: 'files:delete' }, 'invalid_scope'],
      [{ client_id: 'report-runner', scope: 'files:' }, 'invalid_scope'],
    ] as const)
      expect(await oauth.post('device_authorization', fields)).toMatchObject(refusal(error));
  });
});

describe('client_credentials', () => {
  test('wire 9: a client certificate obtains an access token and no refresh token', async () => {
    const reply = await oauth.clientCredentials({ scope: 'files:read' });
    expect(reply).toMatchObject({
      status: 200,
      json: { token_type: 'Bearer', scope: 'files:read', expires_in: expect.any(Number) },
    });
    expect(reply.json).not.toHaveProperty('refresh_token');
    const call = await gateway.api('/files/1', String(reply.json['access_token']));
    expect(call.json['headers']).toMatchObject({ 'x-forwarded-user': ALICE });
  });

  test('wire 9: without a scope, the token has all that the integration and the access list allow', async () => {
    const all = await oauth.clientCredentials();
    expect(all.json['scope']).toBe('files:read reports:read reports:write');
    const some = await oauth.clientCredentials({}, { as: gateway.users.bob });
    expect(some.json['scope']).toBe('files:read');
  });

  test.each([
    'files:read reports:read reports:write',
    'reports:write reports:read files:read',
    'files:read reports:read,write',
    'Reports:write,read;FILES:read;',
  ])('wire 7: the scope %s is returned with spaces and one permission per item', async (scope) => {
    const expected = 'files:read reports:read reports:write';
    const reply = await oauth.clientCredentials({ scope });
    expect(reply).toMatchObject({ status: 200, json: { scope: expected } });
    const token = getAccessToken(reply);
    expect(decodeJwt(token).claims['scope']).toBe(expected);
    const headers = { authorization: `Bearer ${token}` };
    expect(await oauth.introspect(token, { headers })).toMatchObject({
      json: { active: true, scope: expected },
    });
  });

  test('wire 9: each token has its own grant, which ends with the token and can be revoked separately', async () => {
    const issued = await oauth.clientCredentials();
    const other = await oauth.clientCredentials();
    const token = String(issued.json['access_token']);
    const { gid } = decodeJwt(token).claims;
    const found = await gateway.server.store.grants.read(String(gid));
    expect(found?.record.refreshUntil).toBe(found?.record.accessExpires);
    expect((await oauth.revoke(token)).status).toBe(200);
    expect((await gateway.api('/files/1', token)).status).toBe(401);
    expect((await gateway.api('/files/1', String(other.json['access_token']))).status).toBe(200);
  });

  test('wire 9: without a valid certificate, 401 invalid_client with WWW-Authenticate', async () => {
    const missing = await oauth.clientCredentials({}, {});
    expect(missing).toMatchObject(refusal('invalid_client', 401));
    expect(missing.headers['www-authenticate']).toBe('Mutual realm="gatehouse"');
    await withSettings(gateway, withUser('alice', { disabled: true }), async () =>
      expect(await oauth.clientCredentials()).toMatchObject(refusal('invalid_client', 401)),
    );
  });

  test('wire 9: a scope or client that the identity may not use is invalid_scope or unauthorized_client', async () => {
    const as = gateway.users.bob;
    expect(await oauth.clientCredentials({ scope: 'reports:write' }, { as })).toMatchObject(refusal('invalid_scope'));
    expect(await oauth.clientCredentials({ client_id: 'other-app' }, { as })).toMatchObject(
      refusal('unauthorized_client'),
    );
    await withSettings(gateway, withIntegration('report-runner', { grants: ['device'] }), async () =>
      expect(await oauth.clientCredentials()).toMatchObject(refusal('unauthorized_client')),
    );
  });

  test('wire 9: the token is bound to the certificate if the integration requires it', async () => {
    await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
      const { json } = await oauth.clientCredentials();
      const token = String(json['access_token']);
      expect((await gateway.api('/files/1', token)).status).toBe(401);
      expect((await gateway.api('/files/1', token, { as: gateway.users.alice })).status).toBe(200);
    });
  });
});
