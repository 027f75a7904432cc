import { afterAll, beforeAll, expect, test } from 'vitest';
import { createOAuthClient } from '../support/oauth-client.ts';
import { ALICE, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

let gateway: TestGateway;
let grant: TokenGrant;
let unusualValues: readonly string[];
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    introspection: { access: [{ identities: [ALICE] }] },
    limits: { rates: { ...settings.limits?.rates, introspect: 'off' } },
  }));
  grant = await gateway.grant();
  const { access_token: access, refresh_token: refresh } = grant;
  unusualValues = [
    '\0',
    '__proto__',
    'constructor',
    '\u202e\u0000\ufeff',
    '😀'.repeat(400),
    'x'.repeat(15_000),
    `${access}\0`,
    `${access}=`,
    `${refresh}.`,
    `ghr_${'A'.repeat(64)}`,
    `${'A'.repeat(61)}A==`,
    '='.repeat(64),
    'files:read;;',
    'files:'.repeat(500),
    'a '.repeat(3_000),
    '{"a":1}',
  ];
});
afterAll(() => gateway.close());

/** Requests that are valid except for the parameter under test. */
const OPERATIONS: Readonly<Record<string, Record<string, string>>> = {
  token: { grant_type: 'client_credentials', client_id: 'report-runner' },
  device_authorization: { client_id: 'report-runner', scope: 'files:read' },
  revoke: { token: 'nothing' },
  introspect: { token: 'nothing' },
};
const PARAMETERS = ['grant_type', 'client_id', 'refresh_token', 'device_code', 'scope', 'token', 'token_type_hint'];
const GRANT_TYPES: Readonly<Record<string, string>> = {
  refresh_token: 'refresh_token',
  device_code: 'urn:ietf:params:oauth:grant-type:device_code',
};

/** Expects that no internal error was logged and the grant is still valid. */
async function expectUnaffected(): Promise<void> {
  expect(
    gateway.log.filter(({ event }) => /internal_error|page_failed|failed_to|dependency_failed/.test(event)),
  ).toEqual([]);
  expect((await gateway.api('/files/a', grant.access_token)).status).toBe(200);
}

test.each(Object.entries(OPERATIONS))(
  'oauth2/%s with an unusual parameter value is never an internal error and never yields a token',
  async (operation, fields) => {
    const steps = createOAuthClient(gateway);
    const faults: string[] = [];
    for (const name of PARAMETERS) {
      const grantType = GRANT_TYPES[name];
      for (const value of unusualValues) {
        const { status, text } = await steps.post(
          operation,
          { ...fields, ...(grantType !== undefined && { grant_type: grantType }), [name]: value },
          { as: gateway.users.alice },
        );
        if (status >= 500) faults.push(`${name} ${value.slice(0, 40)}: ${status}`);
        if (grantType !== undefined && operation === 'token') expect(text).not.toContain('access_token');
      }
    }
    expect(faults).toEqual([]);
    await expectUnaffected();
  },
);

test('pages with an unusual query are never an internal error', async () => {
  const faults: string[] = [];
  for (const value of unusualValues)
    for (const path of [
      '/authsvc/device?user_code=',
      '/authsvc/device/grants?after=',
      '/authsvc/device/openid/x?state=',
      '/authsvc/device?language=',
    ]) {
      const { status } = await gateway.request({
        path: `${path}${encodeURIComponent(value).slice(0, 4_000).replace(/%.?$/, '')}`,
      });
      if (status >= 500) faults.push(`${path} ${value.slice(0, 40)}: ${status}`);
    }
  expect(faults).toEqual([]);
  await expectUnaffected();
});

test.each(['text/plain', 'application/json', 'multipart/form-data; boundary=x', 'constructor', '__proto__', ''])(
  'the OAuth endpoints refuse the content type "%s"',
  async (type) => {
    const steps = createOAuthClient(gateway);
    for (const operation of Object.keys(OPERATIONS)) {
      const { status } = await steps.post(operation, 'token=a&token=b', { headers: { 'content-type': type } });
      expect([operation, status]).toEqual([operation, 400]);
    }
    await expectUnaffected();
  },
);

test('a charset is recognised with spaces around its equals sign', async () => {
  const reply = await gateway.post(
    '/Authorize/Device',
    { client_id: 'report-runner', scope: 'files:read' },
    { headers: { 'content-type': 'application/json; charset = latin1' } },
  );
  expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
});
