import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ChainTarget, observe, startChainFlood, startChainTarget } from './certificate-chains.ts';

const REQUESTS = Number(process.env['CHAIN_REQUESTS'] ?? 1_000);

let target: ChainTarget;
beforeAll(async () => {
  target = await startChainTarget();
  await observe(target, 200);
});
afterAll(() => target.folder.remove());

test.each([22, 3])(
  'C19 during a flood of chains of %i certificates with the largest keys, all requests of other networks are served',
  async (certificates) => {
    const flood = await startChainFlood(target.server.port, 30, certificates);
    const { statuses, ...figures } = await observe(target, REQUESTS);
    await flood.stop('SIGKILL');
    console.log(JSON.stringify({ certificates, ...figures }));
    expect(statuses).toEqual({ 200: REQUESTS });
  },
);
