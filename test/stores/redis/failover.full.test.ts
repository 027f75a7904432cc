import { expect, test } from 'vitest';
import { COMMAND_TIMEOUT_MS } from '../../../src/stores/redis/client.ts';
import { call, eventually, gatewaysOnRedis, redisUrl, revoke } from '../../support/gateways-on-redis.ts';
import type { Reply, TokenGrant } from '../../support/test-gateway.ts';

const { common, startServer, connectTo, startGatewayOn, startRelay, startPair } = gatewaysOnRedis();

test('S04 two gateways switch away from a demoted primary: the first refresh afterwards succeeds', async () => {
  const { primary, replica } = await startPair();
  const relays = [await startRelay(primary.port), await startRelay(primary.port)] as const;
  const [first, other] = [await startGatewayOn(redisUrl(relays[0])), await startGatewayOn(redisUrl(relays[1]))];
  const [validGrant, revokedGrant] = [await first.grant(), await first.grant()];
  expect((await revoke(other, revokedGrant)).status).toBe(200);
  await eventually(async () => {
    const [atPrimary, atReplica] = [await connectTo(primary.port).dbsize(), await connectTo(replica.port).dbsize()];
    expect(atReplica).toBe(atPrimary);
  });

  for (const relay of relays) relay.redirectNewConnections(replica.port);
  await connectTo(replica.port).replicaof('NO', 'ONE');
  await connectTo(primary.port).replicaof('127.0.0.1', replica.port);
  const next = (await first.refresh(validGrant.refresh_token)) as Reply & { json: TokenGrant };
  expect(next.status).toBe(200);
  const retried = await eventually(async () => {
    const reply = await other.refresh(next.json.refresh_token);
    expect(reply.status).toBe(200);
    return reply;
  });
  expect(await call(first, retried.json as unknown as TokenGrant)).toBe(200);
  const late = await first.grant();
  await eventually(async () => expect((await revoke(other, late)).status).toBe(200));
  expect([await call(first, late), await call(first, revokedGrant), await call(other, revokedGrant)]).toEqual([
    401, 401, 401,
  ]);
  expect(first.auditEvents('refresh_reuse')).toEqual([]);
});

test('S09 with two primaries the old one confirms no heartbeat: a gateway that still uses it accepts no token, and later catches up', async () => {
  const { primary, replica } = await startPair();
  const old = connectTo(primary.port);
  await old.config('SET', 'min-replicas-to-write', '1');
  await old.config('SET', 'min-replicas-max-lag', '1');
  const staleRelay = await startRelay(primary.port);
  const currentRelay = await startRelay(primary.port);
  const [staleGateway, currentGateway] = [
    await startGatewayOn(redisUrl(staleRelay), { maxStaleness: '3s' }),
    await startGatewayOn(redisUrl(currentRelay)),
  ];
  const [validGrant, revokedGrant] = [await staleGateway.grant(), await staleGateway.grant()];
  await eventually(async () => expect(await connectTo(replica.port).dbsize()).toBe(await old.dbsize()));
  await connectTo(replica.port).replicaof('NO', 'ONE');
  currentRelay.redirect(replica.port);
  const reply = await eventually(async () => {
    const response = await revoke(currentGateway, revokedGrant);
    expect(response.status).toBe(200);
    return response;
  });
  expect(reply.json).toEqual({});
  await eventually(async () => expect(await call(staleGateway, validGrant)).toBe(503));
  const refresh = await staleGateway.refresh(validGrant.refresh_token);
  expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
  expect(await call(currentGateway, validGrant)).toBe(200);
  staleRelay.redirect(replica.port);
  await eventually(async () => expect(await call(staleGateway, validGrant)).toBe(200));
  expect(await call(staleGateway, revokedGrant)).toBe(401);
});

test('S10 after Redis was flushed, no grant is reported as unknown before the loss is logged, and no revoked token is accepted', async () => {
  const server = await startServer();
  const [first, other] = [await startGatewayOn(redisUrl(server)), await startGatewayOn(redisUrl(server))];
  const [validGrant, revokedGrant] = [await first.grant(), await first.grant()];
  await revoke(first, revokedGrant);
  await connectTo(server.port).flushall();
  const hasAlert = (): boolean => first.log.some(({ event }) => event === 'store_alert');
  const refused = await eventually(async () => {
    const { status, json } = await first.refresh(validGrant.refresh_token);
    expect(status).toBe(400);
    if (!hasAlert()) expect(json['Error']).toBe('invalid_request');
    expect(json['Error']).toBe('invalid_grant');
    return json;
  });
  expect(refused['Error']).toBe('invalid_grant');
  expect(hasAlert()).toBe(true);
  expect([await call(first, validGrant), await call(other, validGrant)]).toEqual([200, 200]);
  expect([await call(first, revokedGrant), await call(other, revokedGrant)]).toEqual([401, 401]);
  const fresh = await eventually(() => other.grant());
  expect(await call(first, fresh)).toBe(200);
});

test('S13 a slow Redis delays grants, but not the verification of tokens', async () => {
  const relay = await startRelay(common().port);
  const store = { prefix: 'slow' };
  const withLongTimeout = await startGatewayOn(redisUrl(relay), store);
  const gateway = await startGatewayOn(redisUrl(relay), store, undefined, 250);
  const grant = await withLongTimeout.grant();
  relay.delayResponses(20, 40);
  const refreshed = await Promise.all(Array.from({ length: 20 }, () => withLongTimeout.refresh(grant.refresh_token)));
  expect(new Set(refreshed.map(({ status }) => status))).toEqual(new Set([200]));
  expect(new Set(refreshed.map(({ json }) => json['refresh_token'])).size).toBe(1);
  relay.set('black hole');
  const pending = gateway.refresh(grant.refresh_token);
  expect(await call(gateway, grant)).toBe(200);
  expect((await pending).json['Error']).toBe('invalid_request');
  relay.set('pass');
});

test('S13 a Redis that pauses for some hundred milliseconds delays a refresh, but does not fail it', async () => {
  const server = await startServer();
  const gateway = await startGatewayOn(redisUrl(server), {}, undefined, COMMAND_TIMEOUT_MS);
  const grant = await gateway.grant();
  // As when it forks, or gets no CPU.
  await connectTo(server.port).call('CLIENT', 'PAUSE', '400', 'ALL');
  const refreshed = await gateway.refresh(grant.refresh_token);
  expect(refreshed.status, refreshed.text).toBe(200);
});
