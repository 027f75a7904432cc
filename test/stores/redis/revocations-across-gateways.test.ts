import { describe, expect, test } from 'vitest';
import { revokeAllGrants } from '../../../src/grants/revoke.ts';
import { call, gatewaysOnRedis, revoke, soon } from '../../support/gateways-on-redis.ts';
import { createMemoryStore } from '../../support/memory-store.ts';
import { ALICE } from '../../support/test-gateway.ts';
import { openWebSocket, startWebSocketUpstream } from '../../support/websocket.ts';

const { closeLater, two } = gatewaysOnRedis();

test('V14 a WebSocket at one gateway ends when its grant is revoked at another', async () => {
  const sockets = await startWebSocketUpstream();
  closeLater(() => sockets.close());
  const [one, other] = await two((settings) => ({
    ...settings,
    upstreams: { ...settings.upstreams, sockets: { url: `http://127.0.0.1:${sockets.port}` } },
    routes: [
      { path: '/ws/**', requires: 'files:read', websocket: true, upstream: 'sockets' },
      ...(settings.routes ?? []),
    ],
  }));
  const [grant, spared] = [await one.grant(), await one.grant()];
  const clients = await Promise.all(
    [grant, spared].map(({ access_token: token }) =>
      openWebSocket({ port: one.port, ca: one.ca.pem, path: '/ws/a', token }),
    ),
  );
  closeLater(() => clients.forEach((client) => client.destroy()));
  expect(clients.map(({ status }) => status)).toEqual([101, 101]);
  expect((await revoke(other, grant)).status).toBe(200);
  await soon(() => expect(clients[0]?.closed()?.code).toBe(1008));
  expect(clients[1]?.isClosed()).toBe(false);
});

describe('V13 all of an identity', () => {
  test('ends at every gateway, including tokens of the same second; tokens of the next second are valid', async () => {
    const [one, other] = await two();
    const [alice, bob] = [await one.grant(), await one.grant({ user: 'bob' })];
    await revokeAllGrants(
      { store: other.server.store, now: () => other.clock.now() },
      { of: 'identity', identity: ALICE },
      86_400,
    );
    for (const gateway of [one, other]) {
      expect([await call(gateway, alice), await call(gateway, bob)]).toEqual([401, 200]);
      const { json } = await gateway.refresh(alice.refresh_token);
      expect(json['Error']).toBe('invalid_grant');
    }
    await soon(async () => expect(await call(other, await one.grant())).toBe(200));
  });

  test.each([1_000, 1_000.001, 1_000.999])('the end at %d rounds up', async (now) => {
    const store = createMemoryStore({ now: () => now });
    await revokeAllGrants({ store, now: () => now }, { of: 'identity', identity: 'i' }, 3_600);
    const revokedAt = (issuedAt: number): boolean =>
      store.revocations.isRevoked({
        grantId: 'g',
        generation: 1,
        clientId: 'c',
        identity: 'i',
        issuedAt,
      });
    expect([revokedAt(999), revokedAt(1_000), revokedAt(1_001)]).toEqual([true, true, false]);
  });
});
