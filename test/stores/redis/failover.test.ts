import { expect, test } from 'vitest';
import { call, gatewaysOnRedis, revoke, soon, through } from '../../support/gateways-on-redis.ts';
import type { Reply, TokenGrant } from '../../support/test-gateway.ts';

const { common, serve, at, startGatewayOn, startRelay, startReplicatedPair } = gatewaysOnRedis();

test('S04 two gateways leave a primary that was demoted: the first refresh afterwards succeeds', async () => {
  const { primary, replica } = await startReplicatedPair();
  const relays = [await startRelay(primary.port), await startRelay(primary.port)] as const;
  const [one, other] = [await startGatewayOn(through(relays[0])), await startGatewayOn(through(relays[1]))];
  const [kept, ended] = [await one.grant(), await one.grant()];
  expect((await revoke(other, ended)).status).toBe(200);
  await soon(async () => {
    const [here, there] = [await at(primary.port).dbsize(), await at(replica.port).dbsize()];
    expect(there).toBe(here);
  });

  for (const relay of relays) relay.redirectNewConnections(replica.port);
  await at(replica.port).replicaof('NO', 'ONE');
  await at(primary.port).replicaof('127.0.0.1', replica.port);
  const next = (await one.refresh(kept.refresh_token)) as Reply & { json: TokenGrant };
  expect(next.status).toBe(200);
  const again = await soon(async () => {
    const reply = await other.refresh(next.json.refresh_token);
    expect(reply.status).toBe(200);
    return reply;
  });
  expect(await call(one, again.json as unknown as TokenGrant)).toBe(200);
  const late = await one.grant();
  await soon(async () => expect((await revoke(other, late)).status).toBe(200));
  expect([await call(one, late), await call(one, ended), await call(other, ended)]).toEqual([401, 401, 401]);
  expect(one.auditEvents('refresh_reuse')).toEqual([]);
});

test('S09 of two primaries the old one confirms no beat: a gateway that still uses it accepts no token, and later learns what it missed', async () => {
  const { primary, replica } = await startReplicatedPair();
  const old = at(primary.port);
  await old.config('SET', 'min-replicas-to-write', '1');
  await old.config('SET', 'min-replicas-max-lag', '1');
  const relayA = await startRelay(primary.port);
  const relayB = await startRelay(primary.port);
  const [a, b] = [
    await startGatewayOn(through(relayA), { maxStaleness: '3s' }),
    await startGatewayOn(through(relayB)),
  ];
  const [kept, ended] = [await a.grant(), await a.grant()];
  await soon(async () => expect(await at(replica.port).dbsize()).toBe(await old.dbsize()));
  await at(replica.port).replicaof('NO', 'ONE');
  relayB.redirect(replica.port);
  const reply = await soon(async () => {
    const response = await revoke(b, ended);
    expect(response.status).toBe(200);
    return response;
  });
  expect(reply.json).toEqual({});
  await soon(async () => expect(await call(a, kept)).toBe(503));
  const refresh = await a.refresh(kept.refresh_token);
  expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
  expect(await call(b, kept)).toBe(200);
  relayA.redirect(replica.port);
  await soon(async () => expect(await call(a, kept)).toBe(200));
  expect(await call(a, ended)).toBe(401);
});

test('S10 after Redis was emptied no grant is reported as unknown before the loss is logged, and no revoked token is accepted', async () => {
  const own = await serve();
  const [one, other] = [await startGatewayOn(through(own)), await startGatewayOn(through(own))];
  const [kept, ended] = [await one.grant(), await one.grant()];
  await revoke(one, ended);
  await at(own.port).flushall();
  const alarmed = (): boolean => one.log.some(({ event }) => event === 'store_alert');
  const refused = await soon(async () => {
    const { status, json } = await one.refresh(kept.refresh_token);
    expect(status).toBe(400);
    if (!alarmed()) expect(json['Error']).toBe('invalid_request');
    expect(json['Error']).toBe('invalid_grant');
    return json;
  });
  expect(refused['Error']).toBe('invalid_grant');
  expect(alarmed()).toBe(true);
  expect([await call(one, kept), await call(other, kept)]).toEqual([200, 200]);
  expect([await call(one, ended), await call(other, ended)]).toEqual([401, 401]);
  const fresh = await soon(() => other.grant());
  expect(await call(one, fresh)).toBe(200);
});

test('S13 a slow Redis delays grants, but no bearer check', async () => {
  const relay = await startRelay(common().port);
  const store = { prefix: 'slow' };
  const patient = await startGatewayOn(through(relay), store);
  const gateway = await startGatewayOn(through(relay), store, undefined, 250);
  const grant = await patient.grant();
  relay.delayResponses(20, 40);
  const refreshed = await Promise.all(Array.from({ length: 20 }, () => patient.refresh(grant.refresh_token)));
  expect(new Set(refreshed.map(({ status }) => status))).toEqual(new Set([200]));
  expect(new Set(refreshed.map(({ json }) => json['refresh_token'])).size).toBe(1);
  relay.set('black hole');
  const pending = gateway.refresh(grant.refresh_token);
  expect(await call(gateway, grant)).toBe(200);
  expect((await pending).json['Error']).toBe('invalid_request');
  relay.set('pass');
});
