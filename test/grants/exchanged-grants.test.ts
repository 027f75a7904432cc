import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { getAccessToken, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import {
  ENTRIES,
  type Exchange,
  type ExchangeGateway,
  startExchangeGateway,
  withExchange,
} from './exchange-gateway.ts';

/** Grants from token exchange and JWT bearer: single use, refresh and revocation. */
let gateway: ExchangeGateway['gateway'];
let oauth: ExchangeGateway['oauth'];
let issuers: ExchangeGateway['issuers'];
let exchange: ExchangeGateway['exchange'];
let bear: ExchangeGateway['bear'];
let close: ExchangeGateway['close'];
beforeAll(async () => {
  ({ gateway, oauth, issuers, exchange, bear, close } = await startExchangeGateway());
});
afterAll(() => close());

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
    await withSettings(gateway, withExchange([entry, { ...entry, refresh: false, scope: 'files:read' }]), async () => {
      expect((await exchange(await issuers.cluster.sign())).json).not.toHaveProperty('refresh_token');
    });
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
