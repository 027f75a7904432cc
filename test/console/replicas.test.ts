import { hostname } from 'node:os';
import { expect, test } from 'vitest';
import { describeReplicas } from '../../src/stores/redis/revocations.ts';
import { eventually, gatewaysOnRedis } from '../support/gateways-on-redis.ts';

const redis = gatewaysOnRedis();

test('the processes on one Redis are listed with their names and their lag', async () => {
  const [first] = await redis.startTwoGateways();
  const replicas = await eventually(async () => {
    const found = (await first.server.store.listReplicas?.()) ?? [];
    expect(found).toHaveLength(2);
    return found;
  });
  expect(replicas.filter(({ isSelf }) => isSelf)).toHaveLength(1);
  for (const { name, lag } of replicas) {
    expect(name.startsWith(`${hostname().slice(0, 63)}.${process.pid}.`)).toBe(true);
    expect(Number.isFinite(lag)).toBe(true);
  }
});

test('a replica that has not applied the last entry lags behind since that entry', () => {
  const status = {
    lastId: '90000-1',
    now: 100_000,
    peers: [
      { id: 'a.1.x', applied: '90000-1', heartbeatAt: 99_800, lease: 60_000 },
      { id: 'b.1.y', applied: '80000-0', heartbeatAt: 99_900, lease: 60_000 },
      { id: 'stray', applied: 'x', heartbeatAt: Number.NaN, lease: Number.NaN },
    ],
  };
  expect(describeReplicas('a.1.x', status)).toEqual([
    { name: 'a.1.x', isSelf: true, heartbeatAge: 0.2, lag: 0.2 },
    { name: 'b.1.y', isSelf: false, heartbeatAge: 0.1, lag: 10 },
  ]);
});
