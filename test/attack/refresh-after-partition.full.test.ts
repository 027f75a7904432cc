import { expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { gatewaysOnRedis, through } from '../support/gateways-on-redis.ts';
import { until } from '../support/until.ts';

const { startGatewayOn, serve, startRelay } = gatewaysOnRedis();

const WINDOW_MS = 1_000;
const change = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  tokens: { ...settings.tokens, refresh: { retryWindow: `${WINDOW_MS / 1_000}s` } },
});
const passed = async (ms: number): Promise<void> => {
  const began = performance.now();
  await until(`${ms} ms have passed`, () => performance.now() - began > ms);
};

test('a refresh token that was spent at one replica does not work at another one that was cut off from Redis meanwhile', async () => {
  const redis = await serve();
  const relay = await startRelay(redis.port);
  const cutOff = await startGatewayOn(through(relay), {}, change);
  const other = await startGatewayOn(through(redis), {}, change);
  const grant = await other.grant();
  relay.set('black hole');
  await passed(WINDOW_MS);
  expect((await other.refresh(grant.refresh_token)).status).toBe(200);
  await passed(2 * WINDOW_MS);
  // Connections that were silent are given up.
  relay.set('refuse');
  relay.set('pass');
  let reply = await cutOff.refresh(grant.refresh_token);
  await until('it responds', async () => {
    if (!/temporar/i.test(reply.text)) return true;
    reply = await cutOff.refresh(grant.refresh_token);
    return false;
  });
  expect([reply.status, reply.json['Error'], reply.json['refresh_token']]).toEqual([
    400,
    'invalid_grant',
    undefined,
  ]);
  expect(other.auditEvents('refresh_retried')).toEqual([]);
  expect(cutOff.auditEvents('refresh_reuse')).toHaveLength(1);
});
