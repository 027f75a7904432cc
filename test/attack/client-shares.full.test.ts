import { expect, test } from 'vitest';
import { measureShares } from './shares/measure.ts';

/**
 * X07: what the clients of one network can make a gateway hold and do, in the default container of a sidecar (256 MiB): 400
 * connections from 127.0.0.0/24 attack, and a client in another network uses it meanwhile.
 */
const CONNECTIONS = Number(process.env['SHARE_CONNECTIONS'] ?? 400);
const SECONDS = Number(process.env['SHARE_SECONDS'] ?? 8);
const MAX_GROWTH = 64 * 1_048_576;

const ALL = [
  'unread-documents',
  'unread-responses',
  'unread-connections',
  'unfinished-requests',
  'pipelined-responses',
  'long-paths',
  'pages',
  'held-connections',
];

test.each([
  ['unread documents of the gateway', ['unread-documents']],
  ['unread responses of the upstream', ['unread-responses']],
  ['unfinished requests', ['unfinished-requests']],
  ['kept connections', ['held-connections']],
  ['all of these at once, and floods of short requests', ALL],
])(
  `X07 ${CONNECTIONS} connections of one network with %s neither end the process nor make it grow by more than 64 MiB, and another network is served`,
  async (_name, shapes) => {
    const { isAlive, memoryBefore, memoryPeak, statuses, milliseconds } = await measureShares(
      shapes,
      CONNECTIONS,
      SECONDS,
    );
    const growth = memoryPeak - memoryBefore;
    console.log(JSON.stringify({ shapes: shapes.length, growth: Math.round(growth / 1_048_576), milliseconds }));
    expect(isAlive).toBe(true);
    expect(growth).toBeLessThanOrEqual(MAX_GROWTH);
    // A busy machine may delay a handshake; the gateway refuses none.
    expect(Object.keys(statuses).filter((status) => /^[45]/.test(status))).toEqual([]);
    expect(statuses['200']).toBeGreaterThan(0);
  },
);

test.each(['pages', 'long-paths'])('X07 a flood of %s does not end the process', async (shape) => {
  const { isAlive, statuses } = await measureShares([shape], CONNECTIONS, SECONDS);
  expect(isAlive).toBe(true);
  expect(statuses['200']).toBeGreaterThan(0);
});
