import { expect, test } from 'vitest';
import { heapAfterCollection } from '../support/heap.ts';
import { FRAME, type FrameClient, frame, frameClient, requestFields, uint32 } from '../support/http2-frames.ts';
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

test('X04 frames that arrive byte by byte use little more memory than their bytes', {
  timeout: 300_000,
}, async () => {
  const { gateway } = attack;
  const clients = await Promise.all(Array.from({ length: 4 }, () => frameClient(gateway.port, { ca: gateway.ca.pem })));
  for (const client of clients)
    expect((await client.waitForEnd(client.request(requestFields('/public/1'))))?.status).toBe(200);
  const unfinished = frame(0x40, 0, 0, Buffer.alloc(16_384));
  /** Each byte is a TLS record, which the gateway reads separately. */
  const sendBytes = async (client: FrameClient, from: number, to: number): Promise<void> => {
    for (let at = from; at < to; at += 1)
      await new Promise<void>((resolve) => {
        client.socket.write(unfinished.subarray(at, at + 1), () => resolve());
      });
  };
  await Promise.all(clients.map((client) => sendBytes(client, 0, 100)));
  const before = heapAfterCollection();
  await Promise.all(clients.map((client) => sendBytes(client, 100, 16_300)));
  // 64 KB in total.
  expect(heapAfterCollection() - before).toBeLessThan(3 * MiB);
  for (const client of clients) {
    client.send(unfinished.subarray(16_300));
    await client.waitForPong();
    expect(client.isOver()).toBe(false);
    client.destroy();
  }
});
