import { createHmac } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createForeignKey } from '../support/foreign-issuer.ts';
import { getAccessToken, refusal, TOKEN_TYPE } from '../support/oauth-client.ts';
import { type ExchangeGateway, startExchangeGateway } from './exchange-gateway.ts';

/** Token exchange (RFC 8693) and JWT bearer (RFC 7523 §2.1): what is refused. */
let gateway: ExchangeGateway['gateway'];
let issuers: ExchangeGateway['issuers'];
let live: ExchangeGateway['live'];
let exchange: ExchangeGateway['exchange'];
let bear: ExchangeGateway['bear'];
let close: ExchangeGateway['close'];
beforeAll(async () => {
  ({ gateway, issuers, live, exchange, bear, close } = await startExchangeGateway());
});
afterAll(() => close());

describe('refused requests', () => {
  test('a missing or unsupported parameter', async () => {
    const token = await issuers.cluster.sign();
    for (const more of [
      { subject_token: '' },
      { subject_token_type: '' },
      { subject_token_type: `${TOKEN_TYPE}saml2` },
      { subject_token_type: `${TOKEN_TYPE}refresh_token` },
      { requested_token_type: `${TOKEN_TYPE}refresh_token` },
      { requested_token_type: `${TOKEN_TYPE}jwt` },
      { actor_token: token },
      { actor_token_type: `${TOKEN_TYPE}jwt` },
      { client_id: '' },
    ])
      expect(await exchange(token, more), JSON.stringify(more).slice(0, 80)).toMatchObject(refusal('invalid_request'));
    expect(await bear('')).toMatchObject(refusal('invalid_request'));
    expect(await exchange(token, { client_id: 'unknown' })).toMatchObject(refusal('invalid_client'));
    expect(
      (await exchange(token, { requested_token_type: `${TOKEN_TYPE}access_token` })).status,
      'the only supported type',
    ).toBe(200);
  });

  test('an integration without entries, or without the grant type', async () => {
    const token = await issuers.cluster.sign();
    expect(await exchange(token, { client_id: 'report-runner' })).toMatchObject(refusal('unauthorized_client'));
    expect(await bear(token, { client_id: 'other-app' })).toMatchObject(refusal('unauthorized_client'));
  });

  const refuseBoth = async (token: string, label: string): Promise<void> => {
    expect(await exchange(token), label).toMatchObject(refusal('invalid_request'));
    expect(await bear(token), label).toMatchObject(refusal('invalid_grant'));
  };

  test.each([
    ['another subject', { sub: 'system:serviceaccount:other:builder' }],
    ['a subject that crosses a separator', { sub: 'system:serviceaccount:shop:a:b' }],
    ['an empty account', { sub: 'system:serviceaccount:shop:' }],
    ['a namespace with the same beginning', { sub: 'system:serviceaccount:shop-evil:builder' }],
    ['a line break', { sub: 'system:serviceaccount:shop:builder\n' }],
    ['no subject', { sub: undefined }],
    ['a list as subject', { sub: ['system:serviceaccount:shop:builder'] }],
    ['another audience', { aud: ['https://kubernetes.default.svc.cluster.local'] }],
    ['the audience of gatehouse’s own tokens', { aud: 'https://localhost:8443' }],
    ['no audience', { aud: undefined }],
    ['no expiry', { exp: undefined }],
    ['no time of issue', { iat: undefined }],
    ['an expiry in the past', { exp: Math.floor(Date.now() / 1_000) - 1 }],
    ['a beginning in the future', { nbf: Math.floor(Date.now() / 1_000) + 300 }],
    ['an issuer that is not trusted', { iss: 'https://kubernetes.default.svc.cluster.local/' }],
    ['a binding to a certificate that is not presented', { cnf: { 'x5t#S256': 'A'.repeat(43) } }],
    ['a binding to a DPoP key', { cnf: { jkt: 'A'.repeat(43) } }],
  ])('a token with %s', async (label, claims) => {
    await refuseBoth(await issuers.cluster.sign(claims), label);
  });

  test('a token of another cluster with the same subject', async () => {
    await refuseBoth(await issuers.otherCluster.sign(), 'another issuer');
    const { issuer } = issuers.cluster.settings;
    await refuseBoth(await issuers.otherCluster.sign({ iss: issuer }), 'signed by another issuer');
  });

  test('a token signed with another key under the same kid, with HMAC, or not at all', async () => {
    const { key } = issuers.cluster;
    await refuseBoth(await issuers.cluster.sign({}, {}, await createForeignKey('RS256', key.kid)), 'another key');
    const [, payload = ''] = (await issuers.cluster.sign()).split('.');
    const header = (alg: string): string =>
      Buffer.from(JSON.stringify({ alg, kid: key.kid, typ: 'JWT' })).toString('base64url');
    const signed = `${header('HS256')}.${payload}`;
    const hmac = createHmac('sha256', JSON.stringify(key.jwk)).update(signed).digest('base64url');
    await refuseBoth(`${signed}.${hmac}`, 'algorithm confusion');
    await refuseBoth(`${header('none')}.${payload}.`, 'none');
  });

  test('keys in the header are not used', async () => {
    const attacker = await createForeignKey('RS256', 'attacker');
    for (const header of [{ jwk: attacker.jwk }, { jku: `${live.url}/keys` }, { x5u: live.url }])
      await refuseBoth(await issuers.cluster.sign({}, header, attacker), JSON.stringify(header).slice(0, 40));
  });

  test('gatehouse’s own tokens', async () => {
    const { access_token, refresh_token } = await gateway.grant();
    await refuseBoth(access_token, 'access token');
    await refuseBoth(refresh_token, 'refresh token');
    await refuseBoth(getAccessToken(await exchange(await issuers.cluster.sign())), 'exchanged token');
  });

  test('a token in place of the token of another kind', async () => {
    await refuseBoth(await issuers.cluster.sign({}, { typ: 'logout+jwt' }), 'logout token');
    await refuseBoth(await issuers.cluster.sign({}, { crit: ['b64'], b64: true }), 'crit');
    for (const text of ['x', 'a.b.c', '...', 'eyJ'.repeat(2_000)]) await refuseBoth(text, text.slice(0, 20));
  });

  test.each([
    [{ repository_id: '75' }],
    [{ repository_id: 74 }],
    [{ repository_id: undefined }],
    [{ ref: 'refs/heads/feature/x' }],
    [{ ref: 'refs/tags/v1' }],
    [{ sub: 'repo:octo-org/shop' }],
    [{ sub: 'repo:octo-org/shop-evil:ref:refs/heads/main' }],
  ])('a GitHub token with %j', async (claims) => {
    await refuseBoth(await issuers.github.sign(claims), JSON.stringify(claims));
  });

  test('a list claim needs one matching entry', async () => {
    await refuseBoth(await issuers.keycloak.sign({ realm_access: { roles: ['admin'] } }), 'other role');
    await refuseBoth(await issuers.keycloak.sign({ realm_access: { roles: 'x files-reader' } }), 'text');
    await refuseBoth(await issuers.keycloak.sign({ realm_access: undefined }), 'none');
  });

  test('the audit log has what did not match, and the response does not', async () => {
    for (const [token, event] of [
      [
        await issuers.cluster.sign({ aud: ['other'] }),
        { reason: 'subject_token_invalid', issuer: 'cluster', detail: 'wrong_audience' },
      ],
      [
        await issuers.github.sign({ repository_id: '75' }),
        { reason: 'subject_not_allowed', detail: 'claim_mismatch repository_id' },
      ],
      [
        await issuers.github.sign({ sub: 'repo:octo-org/shop-evil:ref:refs/heads/main' }),
        { reason: 'subject_not_allowed', detail: 'subject_mismatch' },
      ],
    ] as const) {
      const reply = await exchange(token);
      expect(gateway.auditEvents('grant_denied').at(-1)).toMatchObject(event);
      for (const secret of ['audience', 'repository', 'mismatch']) expect(reply.text).not.toContain(secret);
    }
  });

  test('the denial is audited without the token', async () => {
    const token = await issuers.cluster.sign({ sub: 'system:serviceaccount:other:builder' });
    await exchange(token);
    expect(gateway.auditEvents('grant_denied').at(-1)).toMatchObject({
      reason: 'subject_not_allowed',
      client: 'jobs',
      identity: 'cluster:system:serviceaccount:other:builder',
    });
    const [, payload = 'none', signature = 'none'] = token.split('.');
    for (const line of gateway.logLines) {
      expect(line).not.toContain(payload);
      expect(line).not.toContain(signature);
    }
  });
});
