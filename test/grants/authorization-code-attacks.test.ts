import { once } from 'node:events';
import { connect, type IncomingHttpHeaders } from 'node:http2';
import { beforeAll, describe, expect, test } from 'vitest';
import {
  APP,
  CALLBACK,
  createPkce,
  type Fields,
  ISSUER,
  SECRET,
  WEB,
  withCodeClients,
} from '../support/code-client.ts';
import { createDpopKey, type DpopKey, signProof } from '../support/dpop-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { formToken } from '../support/form-browser.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import type { TestGateway } from '../support/test-gateway.ts';
import { useCodeGateway } from './code-gateway.ts';

/** Attacks on codes and on the tokens they are exchanged for. */
const API = 'https://api.example.test';
const OTHER = 'https://other.example.test';
let gateway: TestGateway;
const shared = useCodeGateway((settings) => ({
  ...withCodeClients(settings),
  integrations: [
    ...(withCodeClients(settings).integrations ?? []),
    { ...APP, clientId: 'second', redirectUris: [CALLBACK] },
    { ...APP, clientId: 'several', audience: [API, OTHER] },
    { ...APP, clientId: 'bound', bindToCertificate: true },
  ],
  dpop: { enabled: true },
  routes: [
    { path: '/files/**', requires: 'files:read', audience: [API] },
    { path: '/other/**', requires: 'files:read', audience: [OTHER] },
    { path: '/default/**', requires: 'files:read' },
  ],
}));
const { start } = shared;
beforeAll(() => {
  ({ gateway } = shared);
});

describe('the verifier', () => {
  test.each<[string, (verifier: string) => string, string]>([
    ['missing', () => '', 'invalid_request'],
    ['of 42 characters', () => 'x'.repeat(42), 'invalid_request'],
    ['of 129 characters', () => 'x'.repeat(129), 'invalid_request'],
    ['with a character that is not allowed', () => `${'x'.repeat(43)}+`, 'invalid_request'],
    ['with a line feed', (verifier) => `${verifier}\n`, 'invalid_request'],
    ['that is the challenge', () => 'challenge', 'invalid_grant'],
    ['of another request', () => createPkce().verifier, 'invalid_grant'],
    ['of 43 characters', () => 'x'.repeat(43), 'invalid_grant'],
    ['of 128 characters', () => 'x'.repeat(128), 'invalid_grant'],
  ])('%s is refused, and the code stays usable', async (what, change, error) => {
    const flow = start();
    const code = await flow.obtainCode();
    const code_verifier = what.endsWith('the challenge') ? flow.pkce.challenge : change(flow.pkce.verifier);
    expect(await flow.exchange(code, { code_verifier })).toMatchObject(refusal(error));
    expect((await flow.exchange(code)).status).toBe(200);
  });
});

describe('a code of one client', () => {
  test('is worth nothing for another, which can neither use it nor revoke its grant', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    for (const fields of [
      { client_id: 'second' },
      { client_id: 'web', client_secret: SECRET },
      { client_id: 'nobody' },
      { client_id: 'report-runner' },
      { client_id: '' },
    ] as Fields[])
      expect((await flow.exchange(code, fields)).status).toBeGreaterThanOrEqual(400);
    const token = getAccessToken(await flow.exchange(code));
    expect(await flow.exchange(code, { client_id: 'second' })).toMatchObject(refusal('invalid_grant'));
    expect((await gateway.api('/default/a', token)).status).toBe(200);
    expect(gateway.auditEvents('code_replayed')).toEqual([]);
  });

  test('is injected into the session of another user of the same client: the verifier does not match', async () => {
    const victim = start();
    const stolen = await victim.obtainCode();
    const attacker = start();
    await attacker.obtainCode();
    expect(await attacker.exchange(stolen)).toMatchObject(refusal('invalid_grant'));
    expect((await victim.exchange(stolen)).status).toBe(200);
  });

  test('with credentials of several kinds, or of a public client, is refused', async () => {
    const flow = start();
    const redirect_uri = WEB.redirectUris?.[0] ?? '';
    const code = await flow.obtainCode({ client_id: 'web', redirect_uri });
    const basic = (id: string) => ({
      headers: { authorization: `Basic ${Buffer.from(`${id}:${SECRET}`).toString('base64')}` },
    });
    const fields = { client_id: 'web', redirect_uri };
    expect(await flow.exchange(code, { ...fields, client_secret: SECRET }, basic('web'))).toMatchObject(
      refusal('invalid_request'),
    );
    expect(await flow.exchange(code, { ...fields, client_id: 'app' }, basic('web'))).toMatchObject(
      refusal('invalid_request'),
    );
    expect(await flow.exchange(code, fields, basic('app'))).toMatchObject(refusal('invalid_request'));
    expect((await flow.exchange(code, { ...fields, client_id: '' }, basic('web'))).status).toBe(200);
    const own = await flow.obtainCode();
    expect(await flow.exchange(own, { client_secret: SECRET })).toMatchObject(refusal('invalid_client', 401));
    expect((await flow.exchange(own)).status).toBe(200);
  });

  test.each([
    ['a shorter one', (code: string) => code.slice(0, -1)],
    ['a longer one', (code: string) => `${code}A`],
    ['another letter at the end', (code: string) => `${code.slice(0, -1)}${code.endsWith('A') ? 'E' : 'A'}`],
    ['another request id', (code: string) => `gha_${'A'.repeat(22)}${code.slice(26)}`],
    ['a line feed', (code: string) => `${code}\n`],
    ['a space', (code: string) => ` ${code}`],
    ['another prefix', (code: string) => code.replace('gha_', 'ghd_')],
  ])('that is altered is unknown, and revokes nothing: %s', async (_, alter) => {
    const flow = start();
    const code = await flow.obtainCode();
    const token = getAccessToken(await flow.exchange(code));
    expect(await flow.exchange(alter(code))).toMatchObject(refusal('invalid_grant'));
    expect((await gateway.api('/default/a', token)).status).toBe(200);
  });
});

describe('a spent code', () => {
  test('ends the grant also after it was refreshed, and every token of it', async () => {
    const flow = start();
    const client = createOAuthClient(gateway);
    const code = await flow.obtainCode();
    const first = await flow.exchange(code);
    const second = await client.refresh(String(first.json['refresh_token']), { client_id: 'app' });
    gateway.clock.advance(3_600);
    const third = await client.refresh(String(second.json['refresh_token']), { client_id: 'app' });
    const token = getAccessToken(third);
    expect((await gateway.api('/default/a', token)).status).toBe(200);
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
    expect((await gateway.api('/default/a', token)).status).toBe(401);
    expect(await client.refresh(String(third.json['refresh_token']), { client_id: 'app' })).toMatchObject(
      refusal('invalid_grant'),
    );
  });

  test('does not make a new grant after the first was revoked or has expired', async () => {
    const flow = start();
    const client = createOAuthClient(gateway);
    const revoked = await flow.obtainCode();
    const { refresh_token: token } = (await flow.exchange(revoked)).json;
    await client.revoke(String(token), { client_id: 'app' });
    expect(await flow.exchange(revoked)).toMatchObject(refusal('invalid_grant'));
    await gateway.reload((settings) => ({
      ...settings,
      integrations: settings.integrations?.map((one) =>
        one.clientId === 'second' ? { ...one, grantLifetime: '5s', accessLifetime: '5s' } : one,
      ),
    }));
    const fields = { client_id: 'second' };
    const expired = await flow.obtainCode(fields);
    expect((await flow.exchange(expired, fields)).status).toBe(200);
    gateway.clock.advance(20);
    expect(await flow.exchange(expired, fields)).toMatchObject(refusal('invalid_grant'));
  });

  test('in twenty concurrent requests makes at most one grant, whose tokens are refused afterwards', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    const replies = await Promise.all(Array.from({ length: 20 }, () => flow.exchange(code)));
    const granted = replies.filter(({ status }) => status === 200);
    expect(granted).toHaveLength(1);
    for (const reply of replies.filter((one) => one.status !== 200))
      expect(reply).toMatchObject(refusal('invalid_grant'));
    expect((await gateway.api('/default/a', String(granted[0]?.json['access_token']))).status).toBe(401);
  });
});

describe('failures of the store are temporary errors at each step', () => {
  test('and neither invalid_grant nor access_denied, and nothing is sent to the app', async () => {
    const flow = start();
    await flow.reachReview();
    const { notes, grants, revocations } = gateway.server.store;
    const fail = <T>(part: object, name: string, run: () => Promise<T>): Promise<T> =>
      withFailure(part as Record<string, unknown>, name, 'not executed', run);
    for (const [part, name, action] of [
      [notes, 'create', 'approve'],
      [notes, 'create', 'deny'],
    ] as const) {
      const page = await fail(part, name, () => flow.browser.post(`/authsvc/device/${action}`));
      expect([page.status, page.redirectTo, page.headers['retry-after']], action).toEqual([
        503,
        undefined,
        expect.any(String),
      ]);
      await flow.reachReview();
    }
    const review = await fail(notes, 'read', async () => flow.browser.follow(await flow.authorize()));
    expect(review.status).toBe(503);
    const code = await flow.obtainCode();
    expect((await flow.exchange(code)).status).toBe(200);
    // The second use must not be answered before the grant is revoked.
    for (const [part, name] of [
      [grants, 'read'],
      [revocations, 'announce'],
    ] as const)
      expect(await fail(part, name, () => flow.exchange(code)), name).toMatchObject(
        refusal('temporarily_unavailable', 503),
      );
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
  });
});

async function getOverHttp2(path: string, token: string): Promise<number> {
  const session = connect(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
  try {
    const stream = session.request({ ':path': path, authorization: `Bearer ${token}` });
    const [headers] = (await once(stream, 'response')) as [IncomingHttpHeaders];
    stream.resume();
    await once(stream, 'end');
    return Number(headers[':status']);
  } finally {
    session.close();
  }
}

describe('audiences', () => {
  test('a token for one resource is refused on the routes of others, and cannot be refreshed for them', async () => {
    const flow = start();
    const fields = { client_id: 'several', resource: OTHER };
    const code = await flow.obtainCode(fields);
    const reply = await flow.exchange(code, fields);
    const token = getAccessToken(reply);
    for (const [path, status] of [
      ['/files/a', 401],
      ['/other/a', 200],
      ['/default/a', 401],
    ] as const) {
      expect((await gateway.api(path, token)).status, path).toBe(status);
      expect(await getOverHttp2(path, token), `${path} over HTTP/2`).toBe(status);
    }
    const client = createOAuthClient(gateway);
    const refresh = (resource: string) =>
      client.refresh(String(reply.json['refresh_token']), { client_id: 'several', resource });
    for (const resource of [API, `${OTHER}/`, `${OTHER}#x`, 'https://elsewhere.example.test'])
      expect(await refresh(resource), resource).toMatchObject(refusal('invalid_target'));
    expect((await refresh(OTHER)).status).toBe(200);
  });

  test('the token request cannot name another resource, several, or one with a fragment', async () => {
    const flow = start();
    const fields = { client_id: 'several', resource: OTHER };
    const code = await flow.obtainCode(fields);
    for (const resource of [API, `${OTHER}/`, `${OTHER}#x`])
      expect(await flow.exchange(code, { ...fields, resource }), resource).toMatchObject(refusal('invalid_target'));
    const body = new URLSearchParams({
      grant_type: 'authorization_code',
      client_id: 'several',
      redirect_uri: CALLBACK,
      code,
      code_verifier: flow.pkce.verifier,
      resource: OTHER,
    });
    body.append('resource', API);
    expect(await createOAuthClient(gateway).post('token', body.toString())).toMatchObject(refusal('invalid_request'));
    expect((await flow.exchange(code, fields)).status).toBe(200);
  });

  test('the user sees which of several APIs the token would be for', async () => {
    const flow = start();
    for (const [resource, shown] of [
      [OTHER, OTHER],
      [API, API],
      ['', API],
    ] as const) {
      const review = await flow.reachReview({ client_id: 'several', resource });
      expect(review.text).toContain(`<dt>For the API</dt><dd><bdi>${shown}</bdi></dd>`);
    }
    expect((await flow.reachReview()).text).not.toContain('For the API');
  });

  const reorder = withIntegration('several', { audience: [OTHER, API] });
  const several = { client_id: 'several' };

  test('a default audience that changes after the page was shown is shown before it is approved', async () => {
    const flow = start();
    await flow.reachReview(several);
    await withSettings(gateway, reorder, async () => {
      const again = await flow.browser.post('/authsvc/device/approve');
      expect(again.status).toBe(403);
      expect(again.text).toContain(`<dt>For the API</dt><dd><bdi>${OTHER}</bdi></dd>`);
      expect(gateway.auditEvents('authorization_approved')).toEqual([]);
      const { searchParams } = await flow.decide('approve');
      const token = getAccessToken(await flow.exchange(searchParams.get('code') ?? '', several));
      expect((await gateway.api('/other/a', token)).status).toBe(200);
      expect((await gateway.api('/files/a', token)).status).toBe(401);
    });
  });

  test('a form token is valid for the displayed audience only', async () => {
    const flow = start();
    const review = await flow.reachReview(several);
    const approve = (audience: string) =>
      flow.browser.send(
        'POST',
        review.url.replace('/review', '/approve'),
        new URLSearchParams({
          form_token: formToken(review.text, '/approve'),
          scope: 'files:read',
          audience,
        }).toString(),
        { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
      );
    for (const audience of [OTHER, '', `${API}/`]) expect((await approve(audience)).status).toBe(403);
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
    expect((await approve(API)).redirectTo).toContain('code=');
  });

  test('a code is for the audience that was approved, whatever the default is by then', async () => {
    const flow = start();
    const code = await flow.obtainCode(several);
    const token = await withSettings(gateway, reorder, async () => getAccessToken(await flow.exchange(code, several)));
    expect((await gateway.api('/files/a', token)).status).toBe(200);
    expect((await gateway.api('/other/a', token)).status).toBe(401);
  });

  test.each([
    ['that the integration has lost', { ...several, resource: OTHER }, { audience: [API] }],
    ['that was the default', several, { audience: [OTHER] }],
    ['of an integration that had none', { client_id: 'app' }, { audience: [API] }],
  ])('a code for an audience %s is refused until the audience is back', async (_, fields, changes) => {
    const flow = start();
    const code = await flow.obtainCode(fields);
    await withSettings(gateway, withIntegration(fields.client_id, changes), async () => {
      expect(await flow.exchange(code, { client_id: fields.client_id })).toMatchObject(refusal('invalid_target'));
    });
    expect((await flow.exchange(code, fields)).status).toBe(200);
  });

  test('a request for an audience that the integration has lost can only be denied', async () => {
    const flow = start();
    const { url } = await flow.reachReview({ ...several, resource: OTHER });
    await withSettings(gateway, withIntegration('several', { audience: [API] }), async () => {
      const page = await flow.browser.get(url);
      expect(page.text).toContain('This app is no longer available.');
      expect(page.text).not.toContain('/approve');
    });
  });
});

test('a client whose tokens are bound to certificates gets none without one', async () => {
  const flow = start();
  const fields = { client_id: 'bound' };
  const code = await flow.obtainCode(fields);
  expect(await flow.exchange(code, fields)).toMatchObject(refusal('invalid_client', 401));
  const token = getAccessToken(await flow.exchange(code, fields, { as: gateway.users.alice }));
  expect((await gateway.api('/default/a', token)).status).toBe(401);
  expect((await gateway.api('/default/a', token, { as: gateway.users.bob })).status).toBe(401);
  expect((await gateway.api('/default/a', token, { as: gateway.users.alice })).status).toBe(200);
});

describe('a DPoP key', () => {
  const keys = Promise.all([createDpopKey(), createDpopKey()]);
  const prove = async (key: DpopKey, operation: string, method = 'POST') => ({
    headers: {
      dpop: await signProof(key, {
        method,
        url: `${ISSUER}/authsvc/oauth2/${operation}`,
        now: gateway.clock.now(),
      }),
    },
  });

  test('of the proof of a pushed request is required at the token endpoint, as if dpop_jkt had named it', async () => {
    const [key, other] = await keys;
    const flow = start();
    const client = createOAuthClient(gateway);
    const pushed = await client.post('par', flow.parameters(), await prove(key, 'par'));
    expect(pushed.status, pushed.text).toBe(201);
    await flow.reachReview(
      new URLSearchParams({
        client_id: 'app',
        request_uri: String(pushed.json['request_uri']),
        dpop_jkt: other.thumbprint,
      }).toString(),
    );
    const code = (await flow.decide('approve')).searchParams.get('code') ?? '';
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
    expect(await flow.exchange(code, {}, await prove(other, 'token'))).toMatchObject(refusal('invalid_grant'));
    const reply = await flow.exchange(code, {}, await prove(key, 'token'));
    expect([reply.status, reply.json['token_type']]).toEqual([200, 'DPoP']);
  });

  test('that differs from dpop_jkt, and a proof for another URL or method, are refused', async () => {
    const [key, other] = await keys;
    const flow = start();
    const push = (fields: Fields, more: object) =>
      createOAuthClient(gateway).post('par', flow.parameters(fields), more);
    const invalid = refusal('invalid_dpop_proof');
    expect(await push({ dpop_jkt: other.thumbprint }, await prove(key, 'par'))).toMatchObject(invalid);
    expect(await push({}, await prove(key, 'token'))).toMatchObject(invalid);
    expect(await push({}, await prove(key, 'par', 'GET'))).toMatchObject(invalid);
    expect((await push({ dpop_jkt: key.thumbprint }, await prove(key, 'par'))).status).toBe(201);
  });
});
