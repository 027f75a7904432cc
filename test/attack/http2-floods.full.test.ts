import { expect, test } from 'vitest';
import { heapAfterCollection } from '../support/heap.ts';
import { FRAME, frame, frameClient, uint32 } from '../support/http2-frames.ts';
import { useAttackGateway } from './attack-gateway.ts';

const attack = useAttackGateway((settings) => ({ ...settings, log: { level: 'info' } }));
const MiB = 1_048_576;

test('X07 each of a thousand connections is closed when its window overflows, and its memory is freed', {
  timeout: 300_000,
}, async () => {
  const { gateway } = attack;
  const overflowHundredWindows = async (): Promise<void> => {
    for (let count = 0; count < 100; count += 1) {
      const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
      client.send(frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff_ffff)));
      await client.until(() => client.closed());
    }
    gateway.clearLog();
  };
  await overflowHundredWindows();
  const before = heapAfterCollection();
  for (let rounds = 1; rounds < 10; rounds += 1) await overflowHundredWindows();
  expect(heapAfterCollection() - before).toBeLessThan(20 * MiB);
  expect((await gateway.api('/files/next', attack.token)).status).toBe(200);
});
