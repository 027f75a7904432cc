import { expect, test } from 'vitest';
import { useAttackGateway } from './attack-gateway.ts';
import { MAX_IDLE, MAX_LARGE, measureIdle, measureLarge } from './http2-header-memory.ts';

const attack = useAttackGateway((settings) => ({
  ...settings,
  upstreams: {
    default: { ...settings.upstreams?.['default'], timeouts: { headers: '600s', idle: '600s' } },
  },
}));

test('X04 thousands of idle connections keep little of the header sections that their clients have sent', async () => {
  expect(await measureIdle(attack, 2_000)).toBeLessThan(MAX_IDLE);
});

test('X04 a hundred busy connections do not cache header sections that decode to more than 4 KiB', async () => {
  expect(await measureLarge(attack, 100)).toBeLessThan(MAX_LARGE);
});
