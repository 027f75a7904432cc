import { expect, onTestFinished, test } from 'vitest';
import { startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { heapAfterCollection } from '../support/heap.ts';
import { sendJunkTokens, startFloodedGateway } from './junk-tokens.ts';

test('10,000 junk tokens over the wire do not grow the heap of the gateway', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const gateway = await startFloodedGateway(issuer);
  onTestFinished(() => gateway.close());
  const { access_token: own } = await gateway.grant();
  const flood = async (count: number): Promise<number> => {
    await sendJunkTokens(gateway, issuer, own, count);
    // What the test itself keeps.
    gateway.clearLog();
    gateway.upstream.requests.length = 0;
    return heapAfterCollection();
  };
  const before = await flood(5_000);
  // Kept tokens would be 5 MiB. The caches of valid tokens and header fields may still fill.
  expect((await flood(10_000)) - before).toBeLessThan(3 * 1_048_576);
});
