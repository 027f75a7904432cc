import { expect, test } from 'vitest';
import { useAttackGateway } from './attack-gateway.ts';
import { MAX_IDLE, MAX_LARGE, measureIdle, measureLarge, measureMany } from './http2-header-memory.ts';

const attack = useAttackGateway((settings) => ({
  ...settings,
  upstreams: {
    default: { ...settings.upstreams?.['default'], timeouts: { headers: '120s', idle: '120s' } },
  },
}));

test('X04 header sections that decode to more than 4 KiB are not cached', async () => {
  expect(await measureLarge(attack, 10)).toBeLessThan(MAX_LARGE);
});

test('X04 a connection caches few header sections, however many different ones its client sends', async () => {
  expect(await measureMany(attack, 600)).toBeLessThan(1_048_576);
});

test('X04 idle connections keep little of the header sections that their clients have sent', async () => {
  expect(await measureIdle(attack, 40)).toBeLessThan(MAX_IDLE);
});
