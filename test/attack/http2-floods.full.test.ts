import { expect, test } from 'vitest';
import { heapAfterCollection } from '../support/heap.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { FRAME, frame, frameClient, uint32 } from './h2-frames.ts';

const attack = useAttackGateway((settings) => ({ ...settings, log: { level: 'info' } }));
const MiB = 1_048_576;

test('X07 a window beyond its limit ends each of a thousand connections, and none of them is kept', {
  timeout: 300_000,
}, async () => {
  const { gateway } = attack;
  const hundred = async (): Promise<void> => {
    for (let count = 0; count < 100; count += 1) {
      const one = await frameClient(gateway.port, { ca: gateway.ca.pem });
      one.send(frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff_ffff)));
      await one.until(() => one.closed());
    }
    gateway.clearLog();
  };
  await hundred();
  const before = heapAfterCollection();
  for (let rounds = 1; rounds < 10; rounds += 1) await hundred();
  expect(heapAfterCollection() - before).toBeLessThan(20 * MiB);
  expect((await gateway.api('/files/next', attack.token)).status).toBe(200);
});
