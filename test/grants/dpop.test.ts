import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { ProofMemory } from '../../src/tokens/proof-memory.ts';
import { createDeviceClient, DEVICE_GRANT } from '../support/device-client.ts';
import { createDpopKey, type DpopKey, type ProofInput, signProof } from '../support/dpop-client.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import {
  createShapedIssuers,
  type IssuerShape,
  type ShapedIssuer,
  toIssuerSettings,
  writeKeySets,
} from '../support/foreign-tokens.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { createOAuthClient, exchangeFields, JWT_BEARER, type OAuthClient, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings, withTokens } from '../support/reconfigure.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** DPoP at the token endpoint (RFC 9449 §5): which tokens are bound, and what a refresh needs. */
const ORIGIN = 'https://localhost:8443';
const TOKEN_URL = `${ORIGIN}/authsvc/oauth2/token`;
const SECRET = 'a-random-secret-of-a-client';

let gateway: TestGateway;
let oauth: OAuthClient;
let issuers: Readonly<Record<IssuerShape, ShapedIssuer>>;
let key: DpopKey;
let otherKey: DpopKey;
beforeAll(async () => {
  issuers = await createShapedIssuers();
  gateway = await startGateway(
    (settings) => ({
      ...settings,
      dpop: { enabled: true },
      introspection: { access: [{ groups: ['operators'] }] },
      trustedIssuers: toIssuerSettings(issuers),
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'jobs',
          scope: 'files:read',
          exchange: [{ issuer: 'cluster', subject: '*:*:*:*', refresh: true }],
        },
        {
          clientId: 'confidential',
          scope: 'files:read',
          grants: ['client', 'device'],
          access: [{ groups: ['operators'] }],
          clientSecretHashes: [hashClientSecret(SECRET)],
        },
        { clientId: 'strict', scope: 'files:read', access: [{ groups: ['operators'] }], dpop: 'required' },
      ],
    }),
    (folder) => writeKeySets(folder, issuers),
  );
  oauth = createOAuthClient(gateway);
  [key, otherKey] = await Promise.all([createDpopKey(), createDpopKey('EdDSA')]);
});
afterAll(() => gateway.close());

const prove = (input: Partial<ProofInput> = {}, by = key): Promise<string> =>
  signProof(by, { method: 'POST', url: TOKEN_URL, now: gateway.clock.now(), ...input });

type Fields = Readonly<Record<string, string>>;
const requestToken = async (fields: Fields, dpop?: string | string[]): Promise<Reply> =>
  oauth.post('token', { client_id: 'report-runner', ...fields }, { headers: { ...(dpop && { dpop }) } });

/** A confirmed device code. */
async function obtainCode(clientId = 'report-runner'): Promise<Fields> {
  const device = createDeviceClient(gateway);
  const secret = clientId === 'confidential' ? { client_secret: SECRET } : {};
  const { json } = await oauth.post('device_authorization', {
    client_id: clientId,
    scope: 'files:read',
    ...secret,
  });
  await device.confirm(json as never);
  return { grant_type: DEVICE_GRANT, device_code: String(json['device_code']), client_id: clientId };
}
const requestRefresh = (reply: Reply, dpop?: string, more: Fields = {}): Promise<Reply> =>
  requestToken({ grant_type: 'refresh_token', refresh_token: String(reply.json['refresh_token']), ...more }, dpop);

const callApi = async (reply: Reply, by = key): Promise<number> => {
  const token = String(reply.json['access_token']);
  const dpop = await prove({ method: 'GET', url: `${ORIGIN}/files/1`, token }, by);
  return (await gateway.request({ path: '/files/1', headers: { authorization: `DPoP ${token}`, dpop } })).status;
};
const getConfirmation = (reply: Reply): unknown => decodeJwt(String(reply.json['access_token'])).claims['cnf'];
const BOUND = { status: 200, json: { token_type: 'DPoP' } };

describe('issued tokens', () => {
  test('a device code with a proof gives bound tokens, and without one bearer tokens', async () => {
    const bound = await requestToken(await obtainCode(), await prove());
    expect(bound).toMatchObject(BOUND);
    expect(getConfirmation(bound)).toEqual({ jkt: key.thumbprint });
    expect(await callApi(bound)).toBe(200);
    const plain = await requestToken(await obtainCode());
    expect(plain).toMatchObject({ status: 200, json: { token_type: 'Bearer' } });
    expect(getConfirmation(plain)).toBeUndefined();
  });

  test('client_credentials, token exchange and JWT bearer bind their tokens', async () => {
    const client = { client_id: 'confidential', client_secret: SECRET };
    const subject = await issuers.cluster.sign();
    for (const fields of [
      { grant_type: 'client_credentials', ...client },
      { ...exchangeFields(subject), client_id: 'jobs' },
      { grant_type: JWT_BEARER, client_id: 'jobs', assertion: subject },
    ]) {
      const reply = await requestToken(fields, await prove());
      expect(reply, reply.text).toMatchObject(BOUND);
      expect(await callApi(reply), fields.grant_type).toBe(200);
      expect(await callApi(reply, otherKey), fields.grant_type).toBe(401);
    }
  });

  test('a subject token that is bound is exchanged only with a proof of the same key', async () => {
    const subject = await issuers.cluster.sign({ cnf: { jkt: key.thumbprint } });
    const fields = { ...exchangeFields(subject), client_id: 'jobs' };
    expect(await requestToken(fields)).toMatchObject({ status: 400 });
    expect(await requestToken(fields, await prove({}, otherKey))).toMatchObject({ status: 400 });
    const reply = await requestToken(fields, await prove());
    expect(reply).toMatchObject(BOUND);
    expect(getConfirmation(reply)).toEqual({ jkt: key.thumbprint });
  });

  test('a token can be bound to a certificate and a key, and needs both', () =>
    withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
      const reply = await oauth.clientCredentials(
        { scope: 'files:read' },
        { as: gateway.users.alice, headers: { dpop: await prove() } },
      );
      expect(getConfirmation(reply)).toEqual({ jkt: key.thumbprint, 'x5t#S256': expect.any(String) });
      const token = String(reply.json['access_token']);
      const send = async (as?: TestGateway['users']['alice'], by = key): Promise<number> => {
        const dpop = await prove({ method: 'GET', url: `${ORIGIN}/files/1`, token }, by);
        const headers = { authorization: `DPoP ${token}`, dpop };
        return (await gateway.request({ path: '/files/1', headers, ...(as && { as }) })).status;
      };
      expect(await send(gateway.users.alice)).toBe(200);
      expect(await send()).toBe(401);
      expect(await send(gateway.users.bob)).toBe(401);
      expect(await send(gateway.users.alice, otherKey)).toBe(401);
    }));

  test('introspection shows the key; Verify refuses the token; revocation needs no proof', async () => {
    const reply = await requestToken(await obtainCode(), await prove());
    const token = String(reply.json['access_token']);
    expect((await oauth.introspect(token)).json).toMatchObject({
      active: true,
      token_type: 'DPoP',
      cnf: { jkt: key.thumbprint },
    });
    const headers = { authorization: `Bearer ${token}` };
    expect(await gateway.request({ path: '/authsvc/Authorize/Verify', headers })).toMatchObject({
      status: 401,
    });
    expect(await oauth.introspect(token, { headers })).toMatchObject({ status: 401 });
    expect(await gateway.request({ path: '/authsvc/Revoke/Token', headers })).toMatchObject({ status: 200 });
    expect((await oauth.introspect(token)).json).toEqual({ active: false });
    expect(await callApi(reply)).toBe(401);
  });
});

describe('a refresh', () => {
  describe.each(['jwt', 'opaque'] as const)('with %s tokens', (format) => {
    test('needs a proof of the same key, and a retry returns the same tokens', () =>
      withSettings(gateway, withTokens({ format }), async () => {
        const first = await requestToken(await obtainCode(), await prove());
        expect(await requestRefresh(first)).toMatchObject(refusal('invalid_grant'));
        expect(await requestRefresh(first, await prove({}, otherKey))).toMatchObject(refusal('invalid_grant'));
        const second = await requestRefresh(first, await prove());
        expect(second).toMatchObject(BOUND);
        expect(await callApi(second)).toBe(200);
        expect(await requestRefresh(first)).toMatchObject(refusal('invalid_grant'));
        expect((await requestRefresh(first, await prove())).json).toMatchObject({
          access_token: second.json['access_token'],
          refresh_token: second.json['refresh_token'],
        });
      }));
  });

  test('of a bound grant is refused by the token API, which knows no proofs', async () => {
    const first = await requestToken(await obtainCode(), await prove());
    const refreshed = await gateway.refresh(String(first.json['refresh_token']));
    expect(refreshed).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
    expect(await requestRefresh(first, await prove())).toMatchObject(BOUND);
  });

  test('of a public client cannot bind a grant that is not bound: an attacker could exclude the client', async () => {
    const first = await requestToken(await obtainCode());
    expect(await requestRefresh(first, await prove())).toMatchObject(refusal('invalid_grant'));
    expect(await requestRefresh(first)).toMatchObject({ status: 200, json: { token_type: 'Bearer' } });
  });

  test('of a client that authenticates may change the key, and must have one', async () => {
    const client = { client_id: 'confidential', client_secret: SECRET };
    const first = await requestToken({ ...(await obtainCode('confidential')), ...client }, await prove());
    expect(first).toMatchObject(BOUND);
    expect(await requestRefresh(first, undefined, client)).toMatchObject(refusal('invalid_grant'));
    const second = await requestRefresh(first, await prove({}, otherKey), client);
    expect(getConfirmation(second)).toEqual({ jkt: otherKey.thumbprint });
    // A retry with another key than that of the tokens that it would return.
    expect(await requestRefresh(first, await prove(), client)).toMatchObject(refusal('invalid_grant'));
    expect((await requestRefresh(first, await prove({}, otherKey), client)).json['access_token']).toBe(
      second.json['access_token'],
    );
    const third = await requestRefresh(second, await prove({}, otherKey), client);
    expect(third).toMatchObject(BOUND);
    // Reuse is detected whichever key it comes with.
    await requestRefresh(first, await prove(), client);
    expect(await requestRefresh(third, await prove({}, otherKey), client)).toMatchObject(refusal('invalid_grant'));
  });
});

describe('a proof at the token endpoint', () => {
  test.each<[string, () => Partial<ProofInput>]>([
    ['for another method', () => ({ method: 'GET' })],
    ['for another endpoint', () => ({ url: `${ORIGIN}/authsvc/oauth2/revoke` })],
    ['for another host', () => ({ url: 'https://evil.example.test/authsvc/oauth2/token' })],
    ['that is too old', () => ({ now: gateway.clock.now() - 62 })],
    ['from the future', () => ({ now: gateway.clock.now() + 7 })],
    ['of another type', () => ({ header: { typ: 'JWT' } })],
    ['with a private key', () => ({ header: { jwk: key.privateJwk } })],
    ['with the key of someone else', () => ({ header: { jwk: otherKey.jwk, alg: 'ES256' } })],
  ])('%s is refused, and the credential stays usable', async (_, input) => {
    const fields = await obtainCode();
    expect(await requestToken(fields, await prove(input()))).toMatchObject(refusal('invalid_dpop_proof'));
    expect(await requestToken(fields, await prove())).toMatchObject(BOUND);
  });

  test('is accepted once', async () => {
    const dpop = await prove();
    const client = { grant_type: 'client_credentials', client_id: 'confidential', client_secret: SECRET };
    expect(await requestToken(client, dpop)).toMatchObject(BOUND);
    expect(await requestToken(client, dpop)).toMatchObject(refusal('invalid_dpop_proof'));
  });

  test('is accepted once in 50 concurrent requests', async () => {
    const dpop = await prove();
    const client = { grant_type: 'client_credentials', client_id: 'confidential', client_secret: SECRET };
    const replies = await Promise.all(Array.from({ length: 50 }, () => requestToken(client, dpop)));
    const [accepted, ...rejected] = replies.toSorted((a, b) => a.status - b.status);
    expect(accepted).toMatchObject(BOUND);
    for (const reply of rejected) expect(reply).toMatchObject(refusal('invalid_dpop_proof'));
  });

  test('of a request that is refused for another reason can be used again', async () => {
    const dpop = await prove();
    const fields = { grant_type: DEVICE_GRANT, device_code: 'unknown' };
    expect(await requestToken(fields, dpop)).toMatchObject(refusal('invalid_grant'));
    expect(await requestToken(await obtainCode(), dpop)).toMatchObject(BOUND);
  });

  test('gets 503 before anything is issued if no more keys can be remembered', async () => {
    const reserve = vi.spyOn(ProofMemory.prototype, 'reserve');
    onTestFinished(() => reserve.mockRestore());
    expect(await requestToken(await obtainCode(), await prove())).toMatchObject(BOUND);
    const memory = reserve.mock.contexts[0] as ProofMemory;
    const fields = await obtainCode();
    const newKey = await createDpopKey();
    const now = gateway.clock.now();
    const fill = (): void => {
      for (let index = 0; index <= 65_536; index += 1) memory.use(`key ${index}`, 'p', now, now, 65);
    };
    expect(fill).toThrow(/too many keys/);
    const refused = await requestToken(fields, await prove({}, newKey));
    expect(refused).toMatchObject(refusal('temporarily_unavailable', 503));
    expect(refused.headers['retry-after']).toBe('65');
    expect(
      await requestRefresh(await requestToken(await obtainCode(), await prove()), await prove()),
      'a known key',
    ).toMatchObject(BOUND);
    gateway.clock.advance(130);
    expect(await requestToken(fields, await prove({}, newKey)), 'the same device code').toMatchObject(BOUND);
  });

  test('that occurs twice is refused', async () => {
    const fields = await obtainCode();
    expect(await requestToken(fields, [await prove(), await prove()])).toMatchObject(refusal('invalid_dpop_proof'));
  });

  test('with a key signed by another key is refused', async () => {
    const foreign = await createForeignKey();
    const dpop = await prove({ header: { jwk: foreign.jwk } });
    expect(await requestToken(await obtainCode(), dpop)).toMatchObject(refusal('invalid_dpop_proof'));
  });

  test('needs a nonce where the settings require one', () =>
    withSettings(
      gateway,
      (settings) => ({ ...settings, dpop: { enabled: true, nonce: 'required' } }),
      async () => {
        const fields = await obtainCode();
        const refused = await requestToken(fields, await prove());
        expect(refused).toMatchObject(refusal('use_dpop_nonce'));
        const nonce = refused.headers['dpop-nonce'];
        expect(await requestToken(fields, await prove({ claims: { nonce } }))).toMatchObject(BOUND);
      },
    ));

  test('is ignored while DPoP is off: the token is a bearer token, and says so', () =>
    withSettings(
      gateway,
      (settings) => ({
        ...settings,
        dpop: { enabled: false },
        integrations: settings.integrations?.filter(({ dpop }) => dpop !== 'required') ?? [],
      }),
      async () => {
        const reply = await requestToken(await obtainCode(), await prove());
        expect(reply).toMatchObject({ status: 200, json: { token_type: 'Bearer' } });
      },
    ));
});

describe('an integration that requires DPoP', () => {
  test('issues and refreshes tokens only with a proof, on every endpoint', async () => {
    const fields = await obtainCode('strict');
    expect(await requestToken(fields)).toMatchObject(refusal('invalid_request'));
    expect(await createDeviceClient(gateway).exchange(String(fields['device_code']), 'strict')).toMatchObject({
      status: 400,
      json: { Error: 'invalid_request' },
    });
    await expect(gateway.grant({ clientId: 'strict', scope: 'files:read' })).rejects.toThrow(/DPoP/);
    expect(await oauth.clientCredentials({ client_id: 'strict' })).toMatchObject(refusal('invalid_request'));
    const reply = await requestToken(fields, await prove());
    expect(reply).toMatchObject(BOUND);
    expect(await requestRefresh(reply, await prove(), { client_id: 'strict' })).toMatchObject(BOUND);
  });

  test('is a configuration error while DPoP is off', async () => {
    await expect(gateway.reload((settings) => ({ ...settings, dpop: { enabled: false } }))).rejects.toThrow(
      /required needs dpop\.enabled: true/,
    );
  });
});

test('metadata lists the algorithms of proofs while DPoP is on', async () => {
  const documents = ['/.well-known/oauth-authorization-server', '/.well-known/oauth-protected-resource'];
  for (const path of documents)
    expect((await gateway.request({ path })).json, path).toMatchObject({
      dpop_signing_alg_values_supported: ['ES256', 'ES384', 'EdDSA', 'Ed25519', 'PS256', 'RS256'],
    });
});
