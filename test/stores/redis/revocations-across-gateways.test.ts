import { describe, expect, test } from 'vitest';
import { revokeAllGrants } from '../../../src/grants/revoke.ts';
import { call, eventually, gatewaysOnRedis, revoke } from '../../support/gateways-on-redis.ts';
import { createMemoryStore } from '../../support/memory-store.ts';
import { ALICE } from '../../support/test-gateway.ts';
import { openWebSocket, startWebSocketUpstream } from '../../support/websocket.ts';

const { closeLater, startTwoGateways } = gatewaysOnRedis();

test('V14 a WebSocket at one gateway ends when its grant is revoked at another', async () => {
  const sockets = await startWebSocketUpstream();
  closeLater(() => sockets.close());
  const [first, other] = await startTwoGateways((settings) => ({
    ...settings,
    upstreams: { ...settings.upstreams, sockets: { url: `http://127.0.0.1:${sockets.port}` } },
    routes: [
      { path: '/ws/**', requires: 'files:read', websocket: true, upstream: 'sockets' },
      ...(settings.routes ?? []),
    ],
  }));
  const [grant, otherGrant] = [await first.grant(), await first.grant()];
  const clients = await Promise.all(
    [grant, otherGrant].map(({ access_token: token }) =>
      openWebSocket({ port: first.port, ca: first.ca.pem, path: '/ws/a', token }),
    ),
  );
  closeLater(() => clients.forEach((client) => client.destroy()));
  expect(clients.map(({ status }) => status)).toEqual([101, 101]);
  expect((await revoke(other, grant)).status).toBe(200);
  await eventually(() => expect(clients[0]?.closed()?.code).toBe(1008));
  expect(clients[1]?.isClosed()).toBe(false);
});

describe('V13 the revocation of all grants of an identity', () => {
  test('applies at every gateway, including tokens of the same second; tokens of the next second are valid', async () => {
    const [first, other] = await startTwoGateways();
    const [alice, bob] = [await first.grant(), await first.grant({ user: 'bob' })];
    await revokeAllGrants(
      { store: other.server.store, now: () => other.clock.now() },
      { of: 'identity', identity: ALICE },
      86_400,
    );
    for (const gateway of [first, other]) {
      expect([await call(gateway, alice), await call(gateway, bob)]).toEqual([401, 200]);
      const { json } = await gateway.refresh(alice.refresh_token);
      expect(json['Error']).toBe('invalid_grant');
    }
    await eventually(async () => expect(await call(other, await first.grant())).toBe(200));
  });

  test.each([1_000, 1_000.001, 1_000.999])(
    'at %d is rounded up to the next second for tokens of trusted issuers',
    async (now) => {
      const store = createMemoryStore({ now: () => now });
      await revokeAllGrants({ store, now: () => now }, { of: 'identity', identity: 'i' }, 3_600);
      const isRevokedIfIssuedAt = (issuedAt: number): boolean =>
        store.revocations.isRevoked({
          grantId: 'g',
          generation: 1,
          clientId: 'c',
          identity: 'i',
          issuer: 'corp',
          issuedAt,
        });
      expect([isRevokedIfIssuedAt(999), isRevokedIfIssuedAt(1_000), isRevokedIfIssuedAt(1_001)]).toEqual([
        true,
        true,
        false,
      ]);
    },
  );
});
