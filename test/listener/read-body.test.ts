import { expect, test } from 'vitest';
import { clientAccounts } from '../../src/listener/client-accounts.ts';
import { heapAfterCollection } from '../support/heap.ts';
import { until } from '../support/until.ts';
import { useListeners } from './open-listeners.ts';

const { connectPlain, listen } = useListeners();
const CONNECTIONS = 10;
const CHUNKS = 16_000;

test('a body in chunks of one byte occupies no more memory than its client is charged with', async () => {
  const listener = await listen({
    plain: true,
    async onRequest(context) {
      await context.readBody(16_384, 60);
      return { status: 200, headers: {} };
    },
  });
  const heapBefore = heapAfterCollection();
  const heldBefore = clientAccounts.bytes;
  for (let index = 0; index < CONNECTIONS; index += 1) {
    const socket = await connectPlain(listener.port);
    socket.write('POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n');
    socket.write('1\r\nx\r\n'.repeat(CHUNKS));
  }
  const getHeld = (): number => clientAccounts.bytes - heldBefore;
  await until('all chunks have arrived', () => getHeld() >= CONNECTIONS * CHUNKS);
  await new Promise((resolve) => setTimeout(resolve, 100));
  expect(heapAfterCollection() - heapBefore).toBeLessThan(4 * getHeld());
});
