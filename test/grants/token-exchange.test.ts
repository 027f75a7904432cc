import { createHmac } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withFailure } from '../support/fault-injection.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { getAccessToken, JWT_BEARER, refusal, TOKEN_EXCHANGE, TOKEN_TYPE } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import {
  ENTRIES,
  type Exchange,
  type ExchangeGateway,
  startExchangeGateway,
  withExchange,
} from './exchange-gateway.ts';

/** Token exchange (RFC 8693) and JWT bearer (RFC 7523 §2.1). */
let gateway: ExchangeGateway['gateway'];
let oauth: ExchangeGateway['oauth'];
let issuers: ExchangeGateway['issuers'];
let live: ExchangeGateway['live'];
let exchange: ExchangeGateway['exchange'];
let bear: ExchangeGateway['bear'];
let close: ExchangeGateway['close'];
beforeAll(async () => {
  ({ gateway, oauth, issuers, live, exchange, bear, close } = await startExchangeGateway());
});
afterAll(() => close());

describe('issued tokens', () => {
  test('a service account token becomes an access token without a refresh token', async () => {
    const reply = await exchange(await issuers.cluster.sign());
    expect(reply.json).toMatchObject({
      token_type: 'Bearer',
      issued_token_type: `${TOKEN_TYPE}access_token`,
      scope: 'files:read',
    });
    expect([3_599, 3_600]).toContain(reply.json['expires_in']);
    expect(reply.json).not.toHaveProperty('refresh_token');
    const token = getAccessToken(reply);
    expect(decodeJwt(token).claims).toMatchObject({
      sub: 'cluster:system:serviceaccount:shop:builder',
      client_id: 'jobs',
      scope: 'files:read',
    });
    const call = await gateway.api('/files/1', token);
    expect(call.status, call.text).toBe(200);
    expect(call.json['headers']).toMatchObject({
      'x-forwarded-user': 'cluster:system:serviceaccount:shop:builder',
      'x-forwarded-client-id': 'jobs',
    });
    expect(gateway.auditEvents('grant_issued').at(-1)).toMatchObject({
      client: 'jobs',
      identity: 'cluster:system:serviceaccount:shop:builder',
      grantType: 'exchange',
      issuer: 'cluster',
    });
  });

  test.each(['jwt', 'access_token', 'id_token'])('subject_token_type %s is accepted', async (type) => {
    const reply = await exchange(await issuers.cluster.sign(), {
      subject_token_type: `${TOKEN_TYPE}${type}`,
    });
    expect(reply.status, reply.text).toBe(200);
  });

  test('an RFC 9068 access token is not an ID token', async () => {
    const token = await issuers.keycloak.sign({}, { typ: 'at+jwt' });
    expect(await exchange(token, { subject_token_type: `${TOKEN_TYPE}id_token` })).toMatchObject(
      refusal('invalid_request'),
    );
    expect((await exchange(token, { subject_token_type: `${TOKEN_TYPE}access_token` })).status).toBe(200);
  });

  test.each([
    ['cluster', 'cluster:system:serviceaccount:shop:builder'],
    ['github', 'github:repo:octo-org/shop:ref:refs/heads/main'],
    ['gitlab', 'gitlab:project_path:shop/api:ref_type:branch:ref:main'],
    ['keycloak', 'keycloak:2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a'],
    ['entra', 'entra:3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d'],
    ['entraV1', 'entraV1:3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d'],
    ['okta', 'okta:dave@example.test'],
  ] as const)('a token of %s, by either grant type', async (name, identity) => {
    for (const send of [exchange, bear]) {
      const reply = await send(await issuers[name].sign());
      expect(decodeJwt(getAccessToken(reply)).claims['sub']).toBe(identity);
    }
  });

  test('JWT bearer has no issued_token_type', async () => {
    expect((await bear(await issuers.okta.sign())).json).not.toHaveProperty('issued_token_type');
  });

  test('the scope is that of integration and entry, and a request within it', async () => {
    const token = await issuers.github.sign();
    expect((await exchange(token)).json['scope']).toBe('files:read reports:write');
    expect((await exchange(token, { scope: 'reports:write' })).json['scope']).toBe('reports:write');
    expect(await exchange(token, { scope: 'mail:send' })).toMatchObject(refusal('invalid_scope'));
    expect(await exchange(token, { scope: 'a b:' })).toMatchObject(refusal('invalid_scope'));
    const limited = await issuers.cluster.sign();
    expect(await exchange(limited, { scope: 'reports:write' })).toMatchObject(refusal('invalid_scope'));
  });

  test('entries add up', async () => {
    const subject = 'system:serviceaccount:shop:builder';
    await withSettings(
      gateway,
      withExchange([
        { issuer: 'cluster', subject, scope: 'files:read' },
        { issuer: 'cluster', subject: 'system:serviceaccount:shop:*', scope: 'reports:write' },
      ]),
      async () => {
        const reply = await exchange(await issuers.cluster.sign());
        expect(reply.json['scope']).toBe('files:read reports:write');
      },
    );
  });

  test('opaque tokens work, and introspection names the identity', async () => {
    await withSettings(gateway, withIntegration('jobs', { tokenFormat: 'opaque' }), async () => {
      const token = getAccessToken(await exchange(await issuers.okta.sign()));
      expect((await gateway.api('/files/1', token)).status).toBe(200);
      expect((await oauth.introspect(token)).json).toMatchObject({
        active: true,
        sub: 'okta:dave@example.test',
        client_id: 'jobs',
      });
    });
  });

  test('the metadata lists the grant types only where an integration allows them', async () => {
    const read = async () =>
      (await gateway.request({ path: '/.well-known/oauth-authorization-server' })).json[
        'grant_types_supported'
      ];
    expect(await read()).toEqual(expect.arrayContaining([TOKEN_EXCHANGE, JWT_BEARER]));
    await withSettings(gateway, withExchange([]), async () => {
      expect(await read()).not.toContain(TOKEN_EXCHANGE);
      expect(await exchange(await issuers.okta.sign())).toMatchObject(refusal('unsupported_grant_type'));
    });
  });
});

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
      expect(await exchange(token, more), JSON.stringify(more).slice(0, 80)).toMatchObject(
        refusal('invalid_request'),
      );
    expect(await bear('')).toMatchObject(refusal('invalid_request'));
    expect(await exchange(token, { client_id: 'unknown' })).toMatchObject(refusal('invalid_client'));
    expect(
      (await exchange(token, { requested_token_type: `${TOKEN_TYPE}access_token` })).status,
      'the only supported type',
    ).toBe(200);
  });

  test('an integration without entries, or without the grant type', async () => {
    const token = await issuers.cluster.sign();
    expect(await exchange(token, { client_id: 'report-runner' })).toMatchObject(
      refusal('unauthorized_client'),
    );
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
    await refuseBoth(
      await issuers.cluster.sign({}, {}, await createForeignKey('RS256', key.kid)),
      'another key',
    );
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
      identity: 'cluster:system:serviceaccount:other:builder',
    });
    const [, payload = 'none', signature = 'none'] = token.split('.');
    for (const line of gateway.logLines) {
      expect(line).not.toContain(payload);
      expect(line).not.toContain(signature);
    }
  });
});

describe('single use', () => {
  const once: Exchange = [{ issuer: 'cluster', subject: 'system:serviceaccount:shop:*', once: true }];

  test('a token is accepted once, whatever the grant type and the number of concurrent requests', async () => {
    await withSettings(gateway, withExchange(once), async () => {
      const token = await issuers.cluster.sign();
      const replies = await Promise.all([exchange(token), bear(token), exchange(token), exchange(token)]);
      expect(replies.filter(({ status }) => status === 200)).toHaveLength(1);
      expect(await bear(token)).toMatchObject(refusal('invalid_grant'));
      expect(gateway.auditEvents('subject_token_replayed')).not.toEqual([]);
      expect((await exchange(await issuers.cluster.sign())).status, 'another jti').toBe(200);
    });
  });

  test('it stays used after a restart, and after the grant was revoked', async () => {
    await gateway.reload(withExchange(once));
    const token = await issuers.cluster.sign();
    const access = getAccessToken(await exchange(token));
    await oauth.revoke(access);
    expect(await exchange(token)).toMatchObject(refusal('invalid_request'));
    await gateway.restart();
    expect(await exchange(token)).toMatchObject(refusal('invalid_request'));
    await gateway.reload(withExchange(ENTRIES));
    expect((await exchange(token)).status, 'without once').toBe(200);
  });

  test('it stays used for as long as it is valid, also after the grant was revoked', async () => {
    await withSettings(gateway, withExchange(once), async () => {
      const exp = Math.floor(gateway.clock.now()) + 30 * 86_400;
      const token = await issuers.cluster.sign({ exp });
      const access = getAccessToken(await exchange(token));
      await oauth.revoke(access);
      gateway.clock.advance(3 * 86_400);
      try {
        expect(await exchange(token)).toMatchObject(refusal('invalid_request'));
      } finally {
        gateway.clock.advance(-3 * 86_400);
      }
    });
  });

  test('a token without jti is refused', async () => {
    await withSettings(gateway, withExchange(once), async () => {
      for (const jti of [undefined, '', 7])
        expect(await exchange(await issuers.cluster.sign({ jti }))).toMatchObject(refusal('invalid_request'));
    });
  });
});

describe('refresh', () => {
  const entry = { issuer: 'cluster', subject: 'system:serviceaccount:shop:*', refresh: true } as const;

  test('a refresh token is returned where the entry says so, and the entry is checked again', async () => {
    await withSettings(gateway, withExchange([entry]), async () => {
      const first = await exchange(await issuers.cluster.sign());
      expect(first.status, first.text).toBe(200);
      const refreshed = await oauth.refresh(String(first.json['refresh_token']), { client_id: 'jobs' });
      expect(refreshed.status, refreshed.text).toBe(200);
      const next = String(refreshed.json['refresh_token']);
      for (const entries of [
        [],
        [{ ...entry, refresh: false }],
        [{ ...entry, subject: 'system:serviceaccount:other:*' }],
        [{ ...entry, issuer: 'otherCluster' }],
      ])
        await withSettings(gateway, withExchange(entries), async () => {
          expect((await oauth.refresh(next, { client_id: 'jobs' })).status).toBe(400);
          expect((await gateway.refresh(next, { client_id: 'jobs' })).status).toBe(400);
        });
      await withSettings(gateway, withExchange([{ ...entry, scope: 'files:read' }]), async () => {
        expect(await oauth.refresh(next, { client_id: 'jobs' })).toMatchObject(refusal('invalid_scope'));
      });
      expect((await oauth.refresh(next, { client_id: 'jobs' })).status, 'nothing was changed').toBe(200);
    });
  });

  test('several entries must all allow it', async () => {
    await withSettings(
      gateway,
      withExchange([entry, { ...entry, refresh: false, scope: 'files:read' }]),
      async () => {
        expect((await exchange(await issuers.cluster.sign())).json).not.toHaveProperty('refresh_token');
      },
    );
  });
});

describe('revocation', () => {
  const revoke = (body: unknown): Promise<Response> =>
    fetch(`http://127.0.0.1:${gateway.adminPort}/admin/v1/revoke`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim()}`,
        'content-type': 'application/json',
      },
      body: JSON.stringify(body),
    });

  test('a revoked identity ends what was exchanged, and cannot be exchanged again until it has a new token', async () => {
    const token = await issuers.okta.sign();
    const access = getAccessToken(await exchange(token));
    expect((await gateway.api('/files/1', access)).status).toBe(200);
    expect((await revoke({ identity: 'okta:dave@example.test' })).status).toBe(200);
    expect((await gateway.api('/files/1', access)).status).toBe(401);
    expect(await exchange(token)).toMatchObject(refusal('invalid_request'));
    expect(await bear(token)).toMatchObject(refusal('invalid_grant'));
    // The revocation covers the whole second.
    gateway.clock.advance(2);
    const later = await issuers.okta.sign({ iat: Math.floor(gateway.clock.now()) });
    const returned = getAccessToken(await exchange(later));
    expect((await gateway.api('/files/1', returned)).status, 'with a new token').toBe(200);
    expect((await gateway.api('/files/1', access)).status).toBe(401);
    expect(await exchange(token)).toMatchObject(refusal('invalid_request'));
  });

  test.each(['jwt', 'opaque'] as const)(
    'a revoked client of the issuer ends what was exchanged from its tokens, with %s tokens',
    async (tokenFormat) => {
      await withSettings(
        gateway,
        withIntegration('jobs', {
          tokenFormat,
          exchange: [{ issuer: 'keycloak', subject: '**', refresh: true }],
        }),
        async () => {
          const azp = `cli-${tokenFormat}`;
          const reply = await exchange(await issuers.keycloak.sign({ azp }));
          const other = getAccessToken(await exchange(await issuers.keycloak.sign({ azp: 'web' })));
          expect((await revoke({ client: `keycloak/${azp}` })).status).toBe(200);
          expect((await gateway.api('/files/1', getAccessToken(reply))).status).toBe(401);
          const refreshed = await oauth.refresh(String(reply.json['refresh_token']), { client_id: 'jobs' });
          expect(refreshed).toMatchObject(refusal('invalid_grant'));
          expect((await gateway.api('/files/1', other)).status, 'of another client').toBe(200);
        },
      );
    },
  );

  test.each(['jwt', 'opaque'] as const)(
    'a revoked issuer ends what was exchanged from it, with %s tokens',
    async (tokenFormat) => {
      await withSettings(gateway, withIntegration('jobs', { tokenFormat }), async () => {
        const name = tokenFormat === 'jwt' ? 'gitlab' : 'keycloak';
        const token = await issuers[name].sign();
        const access = getAccessToken(await exchange(token));
        const others = getAccessToken(await exchange(await issuers.cluster.sign()));
        expect((await revoke({ issuer: name })).status).toBe(200);
        expect((await gateway.api('/files/1', access)).status).toBe(401);
        expect(await exchange(token)).toMatchObject(refusal('invalid_request'));
        expect((await gateway.api('/files/1', others)).status, 'of another issuer').toBe(200);
      });
    },
  );

  test('a revoked integration ends what was exchanged', async () => {
    const access = getAccessToken(await exchange(await issuers.entra.sign()));
    expect((await revoke({ client: 'jobs' })).status).toBe(200);
    expect((await gateway.api('/files/1', access)).status).toBe(401);
  });
});

describe('failures of ours', () => {
  test('an issuer whose keys cannot be fetched is 503, never an error of the client', async () => {
    live.isUp = false;
    try {
      await withSettings(
        gateway,
        (settings) => ({
          ...settings,
          trustedIssuers: {
            ...settings.trustedIssuers,
            live: { issuer: live.url, audience: 'files-api', label: 'live', maxStaleness: '0s' },
          },
        }),
        async () => {
          for (const send of [exchange, bear]) {
            const reply = await send(await live.sign());
            expect(reply).toMatchObject(refusal('temporarily_unavailable', 503));
            expect(reply.headers['retry-after']).toMatch(/^[1-9]/);
          }
        },
      );
    } finally {
      live.isUp = true;
    }
  });

  test('an unreachable store is 503', async () => {
    const token = await issuers.cluster.sign();
    const { grants } = gateway.server.store;
    const reply = await withFailure(grants, 'create', 'not executed', () => exchange(token));
    expect(reply).toMatchObject(refusal('temporarily_unavailable', 503));
  });
});

test('a grant can be bound to the certificate of the connection', async () => {
  // A revocation above covers its whole second.
  gateway.clock.advance(2);
  await withSettings(gateway, withIntegration('jobs', { bindToCertificate: true }), async () => {
    const token = await issuers.cluster.sign();
    expect(await exchange(token)).toMatchObject(refusal('invalid_client', 401));
    const bound = getAccessToken(await exchange(token, {}, { as: gateway.users.alice }));
    expect((await gateway.api('/files/1', bound)).status).toBe(401);
    expect((await gateway.api('/files/1', bound, { as: gateway.users.bob })).status).toBe(401);
    expect((await gateway.api('/files/1', bound, { as: gateway.users.alice })).status).toBe(200);
  });
});
