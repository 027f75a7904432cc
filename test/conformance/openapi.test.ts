import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, expect, test } from 'vitest';
import document from '../../docs/openapi.json' with { type: 'json' };
import type { SettingsInput } from '../../src/config/schema.ts';
import { APP, CALLBACK } from '../support/code-client.ts';
import {
  createDeviceClient,
  DEVICE_GRANT,
  type DeviceClient,
  type DeviceCodes,
  FORM,
} from '../support/device-client.ts';
import { createDpopKey, signProof } from '../support/dpop-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createOAuthClient, type OAuthClient } from '../support/oauth-client.ts';
import { withIntegration, withSettings, withUser } from '../support/reconfigure.ts';
import { type Reply, startGateway, type TestGateway, type TestRequest } from '../support/test-gateway.ts';

const key = await createForeignKey();

/** Produces every documented response of every operation and validates it against the OpenAPI document. */
let gateway: TestGateway;
let issuer: ForeignIssuerServer;
freezeClock(250);
let oauth: OAuthClient;
let device: DeviceClient;
beforeAll(async () => {
  issuer = await startForeignIssuer();
  gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: {
      corp: { issuer: issuer.url, audience: 'files-api', logout: { audience: 'gatehouse' } },
    },
    trustedProxies: ['127.0.0.1'],
    introspection: { requires: 'reports:read', access: [{ groups: ['operators'] }] },
    integrations: [
      ...(settings.integrations ?? []).map((integration) =>
        integration.clientId === 'other-app' ? { ...integration, tokenFormat: 'opaque' as const } : integration,
      ),
      APP,
      { ...APP, clientId: 'signing', jwks: { keys: [key.jwk as Record<string, string>] } },
    ],
    // An incomplete body is rejected after this time.
    limits: { ...settings.limits, headerTimeout: '2s' },
  }));
  oauth = createOAuthClient(gateway);
  device = createDeviceClient(gateway);
  for (const [path, operations] of Object.entries(document.paths))
    if ('post' in operations) incomplete.set(path, sendIncomplete(path));
});
afterAll(async () => {
  await gateway?.close();
  issuer?.close();
});

interface Described {
  readonly responses: Readonly<Record<string, { readonly content?: Readonly<Record<string, { schema: Schema }>> }>>;
}
interface Schema {
  readonly properties?: Readonly<Record<string, { readonly enum?: string[]; readonly const?: string }>>;
}

const JSON_TYPE = 'application/json';
const UNKNOWN_CLIENT = { client_id: 'nobody', scope: 'files:read' };
const RUNNER = { client_id: 'report-runner', scope: 'files:read' };
const bearer = (token: string): Partial<TestRequest> => ({ headers: { authorization: `Bearer ${token}` } });
/** The fields with which the client `signing` authenticates. */
const authenticate = async () => {
  const exp = Math.floor(gateway.clock.now()) + 60;
  const jti = crypto.randomUUID();
  const claims = { iss: 'signing', sub: 'signing', aud: 'https://localhost:8443', exp, jti };
  return {
    client_id: 'signing',
    client_assertion: await signForeign(key, claims),
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
  };
};
const get = (path: string, more: Partial<TestRequest> = {}): Promise<Reply> => gateway.request({ path, ...more });
const alice = (): Partial<TestRequest> => ({ as: gateway.users.alice });
const tokenApiPost = (path: string, body: unknown, more: Partial<TestRequest> = {}): Promise<Reply> =>
  gateway.post(path, body, more);
const postCertificate = (body: unknown, as = gateway.users.alice): Promise<Reply> =>
  tokenApiPost('/Authorize/Certificate', body, { as });
const withDpop = (nonce: 'off' | 'required', run: () => Promise<Reply>): Promise<Reply> =>
  withSettings(gateway, (settings) => ({ ...settings, dpop: { enabled: true, nonce } }), run);
const signProofFor = async (endpoint: string): Promise<string> =>
  signProof(await createDpopKey(), {
    method: 'POST',
    url: `https://localhost:8443/authsvc/oauth2/${endpoint}`,
    now: gateway.clock.now(),
  });
const sendWithProof = (dpop: string): Promise<Reply> => oauth.clientCredentials({}, { ...alice(), headers: { dpop } });
/** Returns the response to the second request, which exceeds the rate limit. */
const exceedLimit = (name: string, run: () => Promise<Reply>): Promise<Reply> =>
  withSettings(
    gateway,
    (settings: SettingsInput) => ({
      ...settings,
      limits: { ...settings.limits, rates: { ...settings.limits?.rates, [name]: '1/h' } },
    }),
    async () => {
      await run();
      return run();
    },
  );
/** Sends less than its Content-Length. All are sent together at first, because each response takes the full timeout. */
const sendIncomplete = (path: string): Promise<Reply> => {
  const type = path.includes('/oauth2/') ? FORM : JSON_TYPE;
  const headers = { 'content-type': type, 'content-length': '50' };
  return gateway.request({ path, method: 'POST', headers, body: 'client_id=' });
};
const incomplete = new Map<string, Promise<Reply>>();
const getIncomplete = (path: string): Promise<Reply> => incomplete.get(path) ?? sendIncomplete(path);
const sendTooLarge = (path: string, type: string): Promise<Reply> =>
  gateway.request({ path, method: 'POST', headers: { 'content-type': type }, body: 'x'.repeat(20_000) });
const withStoreFailure = <T>(operation: 'read' | 'announce', run: () => Promise<T>): Promise<T> =>
  operation === 'read'
    ? withFailure(gateway.server.store.grants, 'read', 'not executed', run)
    : withFailure(gateway.server.store.revocations, 'announce', 'not executed', run);
const requestCodes = (): Promise<DeviceCodes> => device.requestCodes();
const pollPending = async (poll: (deviceCode: string) => Promise<Reply>): Promise<Reply> =>
  poll((await requestCodes()).device_code);
const grantOpaqueToken = async (): Promise<string> => (await gateway.grant({ clientId: 'other-app' })).access_token;

const logOut = async (): Promise<Reply> => {
  const now = Math.floor(gateway.clock.now());
  const events = { 'http://schemas.openid.net/event/backchannel-logout': {} };
  const logoutToken = await issuer.sign({ aud: 'gatehouse', sub: 'x', events, iat: now, exp: now + 60 });
  return oauth.post('backchannel_logout', { logout_token: logoutToken });
};

const AUTHORIZATION = {
  client_id: 'app',
  response_type: 'code',
  redirect_uri: CALLBACK,
  code_challenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
  code_challenge_method: 'S256',
};
const push = (
  changes: Readonly<Record<string, string>> = {},
  headers: Readonly<Record<string, string>> = {},
): Promise<Reply> => oauth.post('par', { ...AUTHORIZATION, ...changes }, { headers });
const SEED_TOKEN = 'POST /authsvc/Authorize/Token';
const CERTIFICATE = 'POST /authsvc/Authorize/Certificate';
const DEVICE = 'POST /authsvc/Authorize/Device';
const VERIFY = '/authsvc/Authorize/Verify';
const REVOKE = '/authsvc/Revoke/Token';
const TOKEN = 'POST /authsvc/oauth2/token';
const DEVICE_AUTHORIZATION = 'POST /authsvc/oauth2/device_authorization';
const END = 'POST /authsvc/oauth2/revoke';
const LOGOUT = 'POST /authsvc/oauth2/backchannel_logout';
const PAR = 'POST /authsvc/oauth2/par';
const INTROSPECT = 'POST /authsvc/oauth2/introspect';

/** Every documented response, and a request that produces it. */
const RESPONSES: Readonly<Record<string, () => Promise<Reply>>> = {
  [`${SEED_TOKEN} 200`]: async () => gateway.refresh((await gateway.grant()).refresh_token),
  [`${SEED_TOKEN} 400 authorization_pending`]: () => pollPending((code) => device.exchange(code)),
  [`${SEED_TOKEN} 400 invalid_client`]: async () => {
    const { device_code } = await requestCodes();
    return withSettings(
      gateway,
      (settings) => ({ ...settings, device: { enabled: false } }),
      () => device.exchange(device_code),
    );
  },
  [`${SEED_TOKEN} 400 invalid_grant`]: () => gateway.refresh('x'),
  [`${SEED_TOKEN} 400 invalid_request`]: () => tokenApiPost('/Authorize/Token', {}),
  [`${SEED_TOKEN} 400 invalid_scope`]: async () => {
    const { refresh_token } = await gateway.grant({ scope: 'reports:read' });
    return withSettings(gateway, withIntegration('report-runner', { scope: 'files:read' }), () =>
      gateway.refresh(refresh_token),
    );
  },
  [`${SEED_TOKEN} 400 unauthorized_client`]: async () => {
    const { refresh_token } = await gateway.grant();
    return withSettings(gateway, withUser('alice', { disabled: true }), () => gateway.refresh(refresh_token));
  },
  [`${SEED_TOKEN} 408 invalid_request`]: () => getIncomplete('/authsvc/Authorize/Token'),
  [`${SEED_TOKEN} 413 invalid_request`]: () => sendTooLarge('/authsvc/Authorize/Token', JSON_TYPE),

  [`${CERTIFICATE} 200`]: () => postCertificate(RUNNER),
  [`${CERTIFICATE} 400 invalid_grant`]: () => postCertificate(UNKNOWN_CLIENT),
  [`${CERTIFICATE} 400 invalid_request`]: () => postCertificate({}),
  [`${CERTIFICATE} 400 invalid_scope`]: () => postCertificate({ ...RUNNER, scope: 'mail:send' }),
  [`${CERTIFICATE} 400 unauthorized_client`]: () =>
    postCertificate({ ...RUNNER, client_id: 'other-app' }, gateway.users.bob),
  [`${CERTIFICATE} 401 invalid_client`]: () => tokenApiPost('/Authorize/Certificate', RUNNER),
  [`${CERTIFICATE} 401 access_denied`]: () =>
    withSettings(gateway, withUser('alice', { disabled: true }), () => postCertificate(RUNNER)),
  [`${CERTIFICATE} 408 invalid_request`]: () => getIncomplete('/authsvc/Authorize/Certificate'),
  [`${CERTIFICATE} 413 invalid_request`]: () => sendTooLarge('/authsvc/Authorize/Certificate', JSON_TYPE),
  [`${CERTIFICATE} 429 invalid_request`]: () => exceedLimit('certificate', () => postCertificate(RUNNER)),

  [`${DEVICE} 200`]: () => tokenApiPost('/Authorize/Device', RUNNER),
  [`${DEVICE} 400 invalid_client`]: () =>
    withSettings(gateway, withIntegration('report-runner', { grants: ['certificate'] }), () =>
      tokenApiPost('/Authorize/Device', RUNNER),
    ),
  [`${DEVICE} 400 invalid_grant`]: () => tokenApiPost('/Authorize/Device', UNKNOWN_CLIENT),
  [`${DEVICE} 400 invalid_request`]: () => tokenApiPost('/Authorize/Device', {}),
  [`${DEVICE} 400 invalid_scope`]: () => tokenApiPost('/Authorize/Device', { client_id: 'report-runner' }),
  [`${DEVICE} 400 unauthorized_client`]: () =>
    withSettings(gateway, withIntegration('report-runner', { access: [] }), () =>
      tokenApiPost('/Authorize/Device', RUNNER),
    ),
  [`${DEVICE} 408 invalid_request`]: () => getIncomplete('/authsvc/Authorize/Device'),
  [`${DEVICE} 413 invalid_request`]: () => sendTooLarge('/authsvc/Authorize/Device', FORM),
  [`${DEVICE} 429 invalid_request`]: () => exceedLimit('device', () => tokenApiPost('/Authorize/Device', RUNNER)),

  ...Object.fromEntries(
    (['GET', 'HEAD'] as const).flatMap((method) => {
      const verify = (token: string, more: Partial<TestRequest> = {}) =>
        get(VERIFY, { method, ...bearer(token), ...more });
      const at = (status: number, code: string) =>
        `${method} ${VERIFY} ${status}${method === 'GET' && code !== '' ? ` ${code}` : ''}`;
      return [
        [at(200, ''), async () => verify((await gateway.grant()).access_token)],
        [at(400, 'invalid_request'), () => verify('x', { path: `${VERIFY}?access_token=x` })],
        [at(401, 'invalid_token'), () => verify('x')],
        [at(429, 'invalid_request'), () => exceedLimit('token', () => verify('x'))],
        [
          at(503, 'temporarily_unavailable'),
          async () => {
            const { access_token } = await gateway.grant();
            return withStoreFailure('read', () => verify(access_token));
          },
        ],
      ] as const;
    }),
  ),
  [`GET ${REVOKE} 200`]: async () => get(REVOKE, bearer((await gateway.grant()).access_token)),
  [`GET ${REVOKE} 400 invalid_request`]: () => get(`${REVOKE}?access_token=x`),
  [`GET ${REVOKE} 401 invalid_token`]: () => get(REVOKE),
  [`GET ${REVOKE} 429 invalid_request`]: () => exceedLimit('token', () => get(REVOKE)),
  [`GET ${REVOKE} 503 temporarily_unavailable`]: async () => {
    const { access_token } = await gateway.grant();
    return withStoreFailure('announce', () => get(REVOKE, bearer(access_token)));
  },

  [`${TOKEN} 200`]: () => oauth.clientCredentials(),
  [`${TOKEN} 400 access_denied`]: async () => {
    const body = await requestCodes();
    await device.decideInBrowser(body, { decision: 'deny' });
    return oauth.poll(body.device_code);
  },
  [`${TOKEN} 400 authorization_pending`]: () => pollPending((code) => oauth.poll(code)),
  [`${TOKEN} 400 expired_token`]: async () => {
    const body = await requestCodes();
    gateway.clock.advance(body.expires_in + 1);
    return oauth.poll(body.device_code);
  },
  [`${TOKEN} 400 invalid_client`]: () => oauth.refresh('x', { client_id: 'nobody' }),
  [`${TOKEN} 400 invalid_grant`]: () => oauth.refresh('x'),
  [`${TOKEN} 400 invalid_request`]: () => oauth.post('token', { grant_type: DEVICE_GRANT }),
  [`${TOKEN} 400 invalid_scope`]: () => oauth.clientCredentials({ scope: 'mail:send' }),
  [`${TOKEN} 400 invalid_dpop_proof`]: () => withDpop('off', async () => sendWithProof('x.y.z')),
  [`${TOKEN} 400 use_dpop_nonce`]: () => withDpop('required', async () => sendWithProof(await signProofFor('token'))),
  [`${TOKEN} 400 invalid_target`]: () => oauth.clientCredentials({ resource: 'https://other.example.test' }),
  [`${TOKEN} 400 slow_down`]: async () => {
    const { device_code } = await requestCodes();
    await oauth.poll(device_code);
    return oauth.poll(device_code);
  },
  [`${TOKEN} 400 unauthorized_client`]: () =>
    oauth.clientCredentials({ client_id: 'other-app' }, { as: gateway.users.bob }),
  [`${TOKEN} 400 unsupported_grant_type`]: () => oauth.post('token', { grant_type: 'password' }),
  [`${TOKEN} 401 invalid_client`]: () => oauth.clientCredentials({}, {}),
  [`${TOKEN} 408 invalid_request`]: () => getIncomplete('/authsvc/oauth2/token'),
  [`${TOKEN} 413 invalid_request`]: () => sendTooLarge('/authsvc/oauth2/token', FORM),
  [`${TOKEN} 429 temporarily_unavailable`]: () => exceedLimit('token', () => oauth.refresh('x')),
  [`${TOKEN} 503 temporarily_unavailable`]: async () => {
    const { refresh_token } = await gateway.grant();
    return withStoreFailure('read', () => oauth.refresh(refresh_token));
  },

  ...Object.fromEntries(
    ['GET', 'HEAD'].flatMap((method) => {
      const path = '/authsvc/oauth2/authorize';
      const authorize = (changes: Readonly<Record<string, string>> = {}, more: Partial<TestRequest> = {}) =>
        get(`${path}?${new URLSearchParams({ ...AUTHORIZATION, ...changes }).toString()}`, {
          method,
          ...more,
        });
      return [
        [`${method} ${path} 200`, () => authorize()],
        [`${method} ${path} 303`, () => authorize({ prompt: 'none' })],
        [`${method} ${path} 400`, () => authorize({ client_id: 'nobody' })],
        [`${method} ${path} 403`, () => authorize({}, { headers: { 'sec-purpose': 'prefetch' } })],
        [`${method} ${path} 429`, () => exceedLimit('page', () => authorize())],
      ] as const;
    }),
  ),
  [`${PAR} 201`]: () => push(),
  [`${PAR} 400 interaction_required`]: () => push({ prompt: 'none' }),
  [`${PAR} 400 invalid_client`]: () => push({ client_id: 'nobody' }),
  [`${PAR} 400 invalid_dpop_proof`]: () => withDpop('off', () => push({}, { dpop: 'x.y.z' })),
  [`${PAR} 400 use_dpop_nonce`]: () => withDpop('required', async () => push({}, { dpop: await signProofFor('par') })),
  [`${PAR} 400 invalid_request`]: () => push({ redirect_uri: 'https://evil.example.test' }),
  [`${PAR} 400 invalid_scope`]: () => push({ scope: 'mail:send' }),
  [`${PAR} 400 invalid_target`]: () => push({ resource: 'https://other.example.test' }),
  [`${PAR} 400 unauthorized_client`]: () => push({ client_id: 'report-runner' }),
  [`${PAR} 400 unsupported_response_type`]: () => push({ response_type: 'token' }),
  [`${PAR} 401 invalid_client`]: () => push({ client_id: 'signing' }),
  [`${PAR} 408 invalid_request`]: () => getIncomplete('/authsvc/oauth2/par'),
  [`${PAR} 413 invalid_request`]: () => sendTooLarge('/authsvc/oauth2/par', FORM),
  [`${PAR} 429 temporarily_unavailable`]: () => exceedLimit('token', () => push()),
  [`${PAR} 503 temporarily_unavailable`]: async () => {
    const credential = await authenticate();
    return withFailure(gateway.server.store.notes, 'create', 'not executed', () => push(credential));
  },

  [`${DEVICE_AUTHORIZATION} 200`]: () => oauth.post('device_authorization', RUNNER),
  [`${DEVICE_AUTHORIZATION} 400 invalid_client`]: () => oauth.post('device_authorization', UNKNOWN_CLIENT),
  [`${DEVICE_AUTHORIZATION} 400 invalid_request`]: () => oauth.post('device_authorization', {}),
  [`${DEVICE_AUTHORIZATION} 400 invalid_scope`]: () =>
    oauth.post('device_authorization', { client_id: 'report-runner' }),
  [`${DEVICE_AUTHORIZATION} 400 unauthorized_client`]: () =>
    withSettings(gateway, withIntegration('report-runner', { grants: ['certificate'] }), () =>
      oauth.post('device_authorization', RUNNER),
    ),
  [`${DEVICE_AUTHORIZATION} 401 invalid_client`]: () =>
    oauth.post('device_authorization', { ...RUNNER, client_secret: 'x' }),
  [`${DEVICE_AUTHORIZATION} 408 invalid_request`]: () => getIncomplete('/authsvc/oauth2/device_authorization'),
  [`${DEVICE_AUTHORIZATION} 413 invalid_request`]: () => sendTooLarge('/authsvc/oauth2/device_authorization', FORM),
  [`${DEVICE_AUTHORIZATION} 429 temporarily_unavailable`]: () =>
    exceedLimit('device', () => oauth.post('device_authorization', RUNNER)),
  [`${DEVICE_AUTHORIZATION} 503 temporarily_unavailable`]: () =>
    withFailure(gateway.server.store.devices, 'create', 'not executed', () =>
      oauth.post('device_authorization', RUNNER),
    ),

  [`${END} 200`]: () => oauth.revoke('x'),
  [`${END} 400 invalid_grant`]: async () =>
    oauth.revoke((await gateway.grant()).access_token, { client_id: 'other-app' }),
  [`${LOGOUT} 200`]: logOut,
  [`${LOGOUT} 400 invalid_request`]: () => oauth.post('backchannel_logout', { logout_token: 'x' }),
  [`${LOGOUT} 408 invalid_request`]: () => getIncomplete('/authsvc/oauth2/backchannel_logout'),
  [`${LOGOUT} 413 invalid_request`]: () => sendTooLarge('/authsvc/oauth2/backchannel_logout', FORM),
  [`${LOGOUT} 429 temporarily_unavailable`]: () => exceedLimit('introspect', logOut),
  [`${LOGOUT} 503 temporarily_unavailable`]: () => withStoreFailure('announce', logOut),

  [`${END} 400 invalid_request`]: () => oauth.post('revoke', {}),
  [`${END} 401 invalid_client`]: () => oauth.revoke('x', { client_id: 'report-runner', client_secret: 'x' }),
  [`${END} 408 invalid_request`]: () => getIncomplete('/authsvc/oauth2/revoke'),
  [`${END} 413 invalid_request`]: () => sendTooLarge('/authsvc/oauth2/revoke', FORM),
  [`${END} 429 temporarily_unavailable`]: () => exceedLimit('token', () => oauth.revoke('x')),
  [`${END} 503 temporarily_unavailable`]: async () => {
    const { refresh_token } = await gateway.grant();
    return withStoreFailure('announce', () => oauth.revoke(refresh_token));
  },

  [`${INTROSPECT} 200`]: async () => oauth.introspect((await gateway.grant()).access_token),
  [`${INTROSPECT} 400 invalid_request`]: () => oauth.post('introspect', {}, alice()),
  [`${INTROSPECT} 400 unauthorized_client`]: async () =>
    oauth.post('introspect', { token: 'x', ...(await authenticate()) }),
  [`${INTROSPECT} 401 insufficient_scope`]: async () =>
    oauth.introspect('x', bearer((await gateway.grant()).access_token)),
  [`${INTROSPECT} 401 invalid_client`]: () => oauth.introspect('x', {}),
  [`${INTROSPECT} 401 invalid_token`]: () => oauth.introspect('x', bearer('x')),
  [`${INTROSPECT} 408 invalid_request`]: () => getIncomplete('/authsvc/oauth2/introspect'),
  [`${INTROSPECT} 413 invalid_request`]: () => sendTooLarge('/authsvc/oauth2/introspect', FORM),
  [`${INTROSPECT} 429 temporarily_unavailable`]: () => exceedLimit('introspect', () => oauth.introspect('x')),
  [`${INTROSPECT} 503 temporarily_unavailable`]: async () => {
    const token = await grantOpaqueToken();
    return withStoreFailure('read', () => oauth.introspect(token));
  },

  ...Object.fromEntries(
    [
      '/authsvc/oauth2/jwks',
      '/authsvc/openapi.json',
      '/.well-known/oauth-protected-resource',
      '/.well-known/oauth-authorization-server',
      '/.well-known/oauth-authorization-server/authsvc',
    ].flatMap((path) =>
      ['GET', 'HEAD'].map((method) => [`${method} ${path} 200`, () => get(path, { method })] as const),
    ),
  ),
  'GET /authsvc/check 200': () => get('/authsvc/check/health'),
  'GET /authsvc/check 401': () => get('/authsvc/check/whoami'),
  'GET /authsvc/check 403': async () => get('/authsvc/check/reports/1', bearer((await gateway.grant()).access_token)),
  'GET /authsvc/check 429': async () => {
    await gateway.reload((settings) => ({ ...settings, limits: { ...settings.limits, routes: '1/h' } }));
    try {
      await get('/authsvc/check/health');
      return await get('/authsvc/check/health');
    } finally {
      await gateway.reload(({ limits: { routes: _routes, ...limits } = {}, ...settings }) => ({
        ...settings,
        limits,
      }));
    }
  },
  'GET /authsvc/check 503': async () => {
    const token = await grantOpaqueToken();
    return withStoreFailure('read', () => get('/authsvc/check/whoami', bearer(token)));
  },
};

const DOCUMENTED = Object.entries(document.paths).flatMap(([path, operations]) =>
  Object.entries(operations as Readonly<Record<string, Described>>).flatMap(([method, { responses }]) =>
    Object.entries(responses).flatMap(([status, { content = {} }]) => {
      const [type, schema] = Object.entries(content).map(([name, media]) => [name, media.schema] as const)[0] ?? [];
      const error = schema?.properties?.['Error'] ?? (status === '200' ? undefined : schema?.properties?.['error']);
      const names = error?.enum ?? (error?.const === undefined ? [''] : [error.const]);
      return names.map((code) => ({
        response: `${method.toUpperCase()} ${path} ${status}${code && ` ${code}`}`,
        status: Number(status),
        code,
        type,
        pointer: `#/paths/${path.replaceAll('~', '~0').replaceAll('/', '~1')}/${method}/responses/${status}/content/${(type ?? '').replaceAll('/', '~1')}/schema`,
      }));
    }),
  ),
);

const ajv = new Ajv2020({ strict: false, formats: { 'date-time': true } }).addSchema(document, 'document');

test('the responses tested here are exactly those of the document', () => {
  expect(Object.keys(RESPONSES).toSorted()).toEqual(DOCUMENTED.map(({ response }) => response).toSorted());
});

test.each(DOCUMENTED)('$response is as documented', async ({ response, status, code, type, pointer }) => {
  const reply = await RESPONSES[response]?.();
  if (reply === undefined) throw new Error(`no request for ${response}`);
  expect(reply.status, reply.text).toBe(status);
  if (code !== '') expect(reply.json['Error'] ?? reply.json['error']).toBe(code);
  if (type === undefined) {
    expect(reply.text).toBe('');
    return;
  }
  expect(reply.headers['content-type']?.split(';')[0]).toBe(type);
  const valid = ajv.validate(`document${pointer}`, type === 'text/html' ? reply.text : reply.json);
  expect(valid, `${reply.text} ${ajv.errorsText()}`).toBe(true);
});

test('the document is served with the public URL and the service path of the gateway', async () => {
  const { json } = await get('/authsvc/openapi.json');
  expect(json).toEqual({ ...document, servers: [{ url: 'https://localhost:8443' }] });
  await withSettings(
    gateway,
    (settings) => ({ ...settings, service: { paths: ['/tokens', '/authsvc'] } }),
    async () => {
      const renamed = await get('/tokens/openapi.json');
      const paths = Object.keys(renamed.json['paths'] as object);
      expect(paths).toContain('/tokens/oauth2/token');
      expect(paths).toContain('/.well-known/oauth-authorization-server/tokens');
      expect(paths.filter((path) => path.includes('authsvc'))).toEqual([]);
    },
  );
});
