import { expect, test } from 'vitest';
import { useAttackGateway } from './attack-gateway.ts';
import { sendHeadsSlowly, stallHandshakes } from './stalled-connections.ts';

const attack = useAttackGateway();

test('X01 five hundred clients that send their head byte by byte are disconnected, and others are served meanwhile', {
  timeout: 300_000,
}, async () => {
  await sendHeadsSlowly(attack, 500);
  await attack.expectHealthy();
});

test('C20 two thousand connections that never finish their handshake are closed, and others are served meanwhile', {
  timeout: 300_000,
}, async () => {
  await stallHandshakes(attack, 2_000);
  await attack.expectHealthy();
  expect(attack.gateway.log.filter(({ event }) => event === 'connections_dropped')).toEqual([]);
});
