import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { hashClientSecret } from '../../../src/grants/client-authentication.ts';
import { createDeviceClient } from '../../support/device-client.ts';
import { createShapedIssuers, type ShapedIssuer, writeKeySets } from '../../support/foreign-tokens.ts';
import { decodeJwt } from '../../support/forged-tokens.ts';
import { freezeClock } from '../../support/frozen-clock.ts';
import { createOAuthClient, type OAuthClient, refusal } from '../../support/oauth-client.ts';
import { withIntegration, withSettings } from '../../support/reconfigure.ts';
import { type Reply, startGateway, type TestGateway } from '../../support/test-gateway.ts';

/** Several APIs behind one gateway: `integrations[].audience`, `resource` (RFC 8707) and `routes[].audience`. */
const SECRET = 'ghc_secret-of-the-service-with-two-audiences-0123';
const PUBLIC_URL = 'https://localhost:8443';
const FILES = 'https://files.example.test';
const MAIL = 'urn:example:mail';

let gateway: TestGateway;
let oauth: OAuthClient;
let okta: ShapedIssuer;
freezeClock(250);
beforeAll(async () => {
  ({ okta } = await createShapedIssuers());
  gateway = await startGateway(
    (settings) => ({
      ...settings,
      trustedProxies: ['127.0.0.1'],
      introspection: { requires: 'files:read', access: [{ groups: ['operators'] }] },
      trustedIssuers: {
        okta: { ...okta.settings, audience: ['gatehouse', FILES, MAIL], scope: 'files:read' },
      },
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'two',
          scope: 'files:read',
          grants: ['client', 'certificate', 'device', 'exchange'],
          clientSecretHashes: [hashClientSecret(SECRET)],
          access: [{ groups: ['operators'] }],
          exchange: [{ issuer: 'okta', subject: '**', refresh: true }],
          audience: [FILES, MAIL],
        },
        ...[
          { clientId: 'public-files', audience: FILES },
          { clientId: 'public-other', audience: 'urn:example:other' },
          { clientId: 'public-default' },
        ].map((client) => ({ ...client, scope: 'files:read', access: [{ groups: ['operators'] }] })),
      ],
      upstreams: {
        ...settings.upstreams,
        mail: { ...settings.upstreams?.['default'], audience: MAIL },
      },
      routes: [
        { path: '/api/files/**', requires: 'files:read', audience: FILES, issuers: ['own', 'okta'] },
        { path: '/api/mail/**', requires: 'files:read', upstream: 'mail' },
        { path: '/api/both/**', requires: 'files:read', upstream: 'mail', audience: [PUBLIC_URL, FILES] },
        { path: '/api/report/**', requires: 'files:read', audience: FILES, reportOnly: true },
        { path: '/api/open/**', requires: 'files:read', issuers: ['own', 'okta'] },
        ...(settings.routes ?? []),
      ],
    }),
    (folder) => writeKeySets(folder, { okta }),
  );
  oauth = createOAuthClient(gateway);
});
afterAll(() => gateway.close());

const CLIENT = { client_id: 'two', client_secret: SECRET };
const obtain = (fields: Readonly<Record<string, string>> = {}): Promise<Reply> =>
  oauth.post('token', { grant_type: 'client_credentials', ...CLIENT, ...fields });
const obtainToken = async (fields: Readonly<Record<string, string>> = {}): Promise<string> => {
  const reply = await obtain(fields);
  expect(reply.status, reply.text).toBe(200);
  return String(reply.json['access_token']);
};
const ROUTES = { files: '/api/files/1', mail: '/api/mail/1', both: '/api/both/1', default: '/files/1' };
const callAll = async (token: string): Promise<Record<string, number>> =>
  Object.fromEntries(
    await Promise.all(
      Object.entries(ROUTES).map(async ([name, path]) => [name, (await gateway.api(path, token)).status] as const),
    ),
  );

describe.each(['jwt', 'opaque'] as const)('%s tokens', (tokenFormat) => {
  beforeAll(() =>
    gateway.reload((settings) => ({
      ...settings,
      tokens: { ...settings.tokens, format: tokenFormat },
    })),
  );

  test('a token is valid for its own audience only', async () => {
    const [files, mail] = [await obtainToken({ resource: FILES }), await obtainToken({ resource: MAIL })];
    const { access_token: own } = await gateway.grant();
    expect(await callAll(files)).toEqual({ files: 200, mail: 401, both: 200, default: 401 });
    expect(await callAll(mail)).toEqual({ files: 401, mail: 200, both: 401, default: 401 });
    expect(await callAll(own)).toEqual({ files: 401, mail: 401, both: 200, default: 200 });
    // Again, from the cache, and in another order.
    for (const path of [ROUTES.files, ROUTES.mail, ROUTES.files, ROUTES.default])
      expect((await gateway.api(path, files)).status, path).toBe(path === ROUTES.files ? 200 : 401);
  });

  test('the refusal is an invalid_token challenge', async () => {
    const reply = await gateway.api(ROUTES.mail, await obtainToken());
    expect(reply.json).toMatchObject({
      error: 'invalid_token',
      error_description: 'The access token was issued for another API.',
    });
    expect(reply.headers['www-authenticate']).toMatch(/^Bearer .*error="invalid_token"/);
  });

  test('forward-auth decides alike', async () => {
    const check = (path: string, token: string) =>
      gateway.request({
        path: `/authsvc/check${path}`,
        headers: { authorization: `Bearer ${token}` },
      });
    const files = await obtainToken();
    expect((await check(ROUTES.files, files)).status).toBe(200);
    for (const path of [ROUTES.mail, ROUTES.default]) expect((await check(path, files)).status, path).toBe(401);
  });

  test('Authorize/Verify, whose response has no audience, refuses a token for another API', async () => {
    const verify = async (token: string) => {
      const headers = { authorization: `Bearer ${token}` };
      return (await gateway.request({ path: '/authsvc/Authorize/Verify', headers })).status;
    };
    expect(await verify(await obtainToken({ resource: MAIL }))).toBe(401);
    expect(await verify((await gateway.grant()).access_token)).toBe(200);
  });

  test('introspection shows the audience', async () => {
    expect((await oauth.introspect(await obtainToken({ resource: MAIL }))).json['aud']).toBe(MAIL);
    expect((await oauth.introspect((await gateway.grant()).access_token)).json['aud']).toBe(PUBLIC_URL);
  });
});

test('the first audience is the default, for every grant type and both APIs', async () => {
  await gateway.reload((settings) => ({ ...settings, tokens: { ...settings.tokens, format: 'jwt' } }));
  const getAudience = (token: unknown): unknown => decodeJwt(String(token)).claims['aud'];
  expect(getAudience(await obtainToken())).toBe(FILES);
  const { access_token } = await gateway.grant({ clientId: 'two' });
  expect(getAudience(access_token)).toBe(FILES);
  const device = createDeviceClient(gateway);
  const codes = await oauth.post('device_authorization', { ...CLIENT, scope: 'files:read' });
  await device.confirm(codes.json as never);
  const polled = await oauth.poll(String(codes.json['device_code']), { ...CLIENT, resource: MAIL });
  expect(getAudience(polled.json['access_token'])).toBe(MAIL);
  const exchanged = await oauth.exchange(await okta.sign(), { ...CLIENT, audience: MAIL });
  expect(getAudience(exchanged.json['access_token'])).toBe(MAIL);
});

test('a resource that the integration does not have is invalid_target', async () => {
  for (const resource of ['https://other.example.test', PUBLIC_URL, `${FILES}/`, FILES.toUpperCase(), 'x y'])
    expect(await obtain({ resource }), resource).toMatchObject(refusal('invalid_target'));
  const exchange = (fields: Readonly<Record<string, string>>, subjectToken: string): Promise<Reply> =>
    oauth.exchange(subjectToken, { ...CLIENT, ...fields });
  const token = await okta.sign();
  expect(await exchange({ audience: 'unknown' }, token)).toMatchObject(refusal('invalid_target'));
  expect(await exchange({ audience: FILES, resource: MAIL }, token)).toMatchObject(refusal('invalid_target'));
  expect((await exchange({ audience: FILES, resource: FILES }, token)).status).toBe(200);
});

const setDetail = (detail: 'host' | 'route') => (settings: SettingsInput) => ({
  ...settings,
  resourceMetadata: { detail },
});
const PATHS = [...Object.values(ROUTES), '/api/open/1', '', '/', '/nothing'];

describe('with detail: route', () => {
  beforeAll(() => gateway.reload(setDetail('route')));
  afterAll(() => gateway.reload(setDetail('host')));

  test('the resource in the metadata of a path gives a token that its route accepts', async () => {
    for (const [path, aud] of [
      [ROUTES.files, FILES],
      [ROUTES.mail, MAIL],
    ] as const) {
      const challenge = (await gateway.request({ path })).headers['www-authenticate'] ?? '';
      const url = new URL(/resource_metadata="([^"]*)"/.exec(challenge)?.[1] ?? '');
      const { resource } = (await gateway.request({ path: url.pathname })).json;
      // RFC 9728 §3.3: it is what the URL of the document was derived from.
      expect(resource).toBe(`${PUBLIC_URL}${path}`);
      const token = await obtainToken({ resource: String(resource) });
      expect(decodeJwt(token).claims['aud']).toBe(aud);
      expect((await gateway.api(path, token)).status, path).toBe(200);
    }
  });

  test('a resource that no audience of the integration is for, or several, is invalid_target', async () => {
    for (const path of ['/api/open/1', '/files/1', '', '/', '/nothing'])
      expect(await obtain({ resource: `${PUBLIC_URL}${path}` }), path).toMatchObject(refusal('invalid_target'));
    expect(await oauth.clientCredentials({ resource: `${PUBLIC_URL}${ROUTES.mail}` })).toMatchObject(
      refusal('invalid_target'),
    );
  });

  test('a refresh accepts the resource of a path if the grant is for it', async () => {
    const codes = await oauth.post('device_authorization', { ...CLIENT, scope: 'files:read' });
    await createDeviceClient(gateway).confirm(codes.json as never);
    const polled = await oauth.poll(String(codes.json['device_code']), { ...CLIENT, resource: MAIL });
    const refresh = (path: string): Promise<Reply> =>
      oauth.post('token', {
        grant_type: 'refresh_token',
        ...CLIENT,
        refresh_token: String(polled.json['refresh_token']),
        resource: `${PUBLIC_URL}${path}`,
      });
    expect(await refresh(ROUTES.files)).toMatchObject(refusal('invalid_target'));
    expect((await refresh(ROUTES.mail)).status).toBe(200);
  });
});

describe('with detail: host', () => {
  test('a public client does not learn from invalid_target which audience a path has', async () => {
    const probe = async (clientId: string, path: string): Promise<unknown> => {
      const resource = `${PUBLIC_URL}${path}`;
      const { status, json } = await oauth.poll('unknown-device-code', { client_id: clientId, resource });
      expect(status).toBe(400);
      return json['error'];
    };
    for (const clientId of ['public-files', 'public-other', 'public-default']) {
      const errors = await Promise.all(PATHS.map((path) => probe(clientId, path)));
      expect(new Set(errors).size, `${clientId}: ${errors.join(', ')}`).toBe(1);
    }
    expect(await probe('public-files', ROUTES.mail)).toBe('invalid_grant');
    expect(await probe('public-other', ROUTES.files)).toBe('invalid_target');
  });

  test('a resource of the host gives a token for the only audience of the integration that the host has', async () => {
    await withSettings(gateway, withIntegration('two', { audience: [MAIL, 'urn:example:other'] }), async () => {
      for (const path of PATHS) {
        const token = await obtainToken({ resource: `${PUBLIC_URL}${path}` });
        expect(decodeJwt(token).claims['aud'], path).toBe(MAIL);
      }
    });
  });

  test('with several, it is invalid_target', async () => {
    for (const path of PATHS)
      expect(await obtain({ resource: `${PUBLIC_URL}${path}` }), path).toMatchObject(refusal('invalid_target'));
  });
});

test('audience is the same as resource with every grant type, and never ignored', async () => {
  const { aud } = decodeJwt(await obtainToken({ audience: MAIL })).claims;
  expect(aud).toBe(MAIL);
  const byCertificate = { client_id: 'two', audience: MAIL };
  const certified = await oauth.clientCredentials(byCertificate);
  expect(decodeJwt(String(certified.json['access_token'])).claims['aud']).toBe(MAIL);
  for (const send of [obtain, (fields: object) => oauth.clientCredentials({ ...byCertificate, ...fields })]) {
    expect(await send({ audience: 'https://other.example.test' })).toMatchObject(refusal('invalid_target'));
    expect(await send({ audience: MAIL, resource: FILES })).toMatchObject(refusal('invalid_target'));
  }
});

test('without audience, resource may name the public URL or a part of it', async () => {
  const send = (resource: string): Promise<Reply> => oauth.clientCredentials({ resource });
  for (const resource of [PUBLIC_URL, `${PUBLIC_URL}/files`]) expect((await send(resource)).status, resource).toBe(200);
  for (const resource of [FILES, `${PUBLIC_URL}.evil.test`, 'https://localhost', `${PUBLIC_URL}0/x`])
    expect(await send(resource), resource).toMatchObject(refusal('invalid_target'));
});

test('a refresh keeps the audience; a repeated one gives the same token; another resource is refused', async () => {
  const first = await oauth.exchange(await okta.sign(), { ...CLIENT, resource: MAIL });
  const refreshToken = String(first.json['refresh_token']);
  const refresh = (fields: Readonly<Record<string, string>> = {}): Promise<Reply> =>
    oauth.refresh(refreshToken, { ...CLIENT, ...fields });
  expect(await refresh({ resource: FILES })).toMatchObject(refusal('invalid_target'));
  expect(await refresh({ audience: FILES })).toMatchObject(refusal('invalid_target'));
  const second = await refresh({ resource: MAIL });
  expect(second.status, second.text).toBe(200);
  expect(decodeJwt(String(second.json['access_token'])).claims['aud']).toBe(MAIL);
  // The integration changes between the response and its repetition.
  await withSettings(gateway, withIntegration('two', { audience: [FILES] }), async () => {
    expect((await refresh()).json).toEqual(second.json);
  });
});

test('a grant moves to the default when its integration no longer has its audience', async () => {
  const { refresh_token } = await gateway.grant({ clientId: 'two' });
  await withSettings(gateway, withIntegration('two', { audience: MAIL }), async () => {
    const refreshed = await oauth.refresh(refresh_token, CLIENT);
    expect(decodeJwt(String(refreshed.json['access_token'])).claims['aud']).toBe(MAIL);
  });
});

test('an opaque token that was issued for the earlier audience does not get the later one', async () => {
  await withSettings(gateway, withIntegration('two', { tokenFormat: 'opaque' }), async () => {
    const grant = await gateway.grant({ clientId: 'two' });
    await gateway.reload(withIntegration('two', { tokenFormat: 'opaque', audience: MAIL }));
    const refreshed = await oauth.refresh(grant.refresh_token, CLIENT);
    expect((await gateway.api(ROUTES.mail, String(refreshed.json['access_token']))).status).toBe(200);
    expect((await gateway.api(ROUTES.mail, grant.access_token)).status).toBe(401);
  });
});

test('a token of a trusted issuer needs the audience of the route, where it has one', async () => {
  const call = async (path: string, aud: unknown): Promise<number> =>
    (await gateway.api(path, await okta.sign({ aud }))).status;
  expect(await call(ROUTES.files, FILES)).toBe(200);
  expect(await call(ROUTES.files, ['gatehouse', FILES])).toBe(200);
  expect(await call(ROUTES.files, 'gatehouse')).toBe(401);
  expect(await call(ROUTES.files, MAIL)).toBe(401);
  expect(await call('/api/open/1', 'gatehouse'), 'a route without audience').toBe(200);
  expect(await call('/api/open/1', 'other'), 'not accepted from this issuer').toBe(401);
});

test('a report-only route forwards and logs', async () => {
  const { access_token } = await gateway.grant();
  expect((await gateway.api('/api/report/1', access_token)).status).toBe(200);
});

test('a token for another API may not introspect', async () => {
  const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });
  const { access_token } = await gateway.grant();
  expect((await oauth.introspect(access_token, bearer(access_token))).status).toBe(200);
  expect(await oauth.introspect(access_token, bearer(await obtainToken()))).toMatchObject(
    refusal('invalid_token', 401),
  );
});
