import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { until } from './until.ts';

const run = promisify(execFile);

interface Node {
  readonly host: string;
  readonly port: number;
}

/** Moves slots of a Redis Cluster from one node to another. */
export interface Resharding {
  /** Moves the slots of the node that owns `{gh}:rev`, the key of the revocations; returns their number. */
  move(round: number): Promise<number>;
  close(): void;
}

interface SlotRange {
  readonly from: number;
  readonly to: number;
  readonly owner: string;
}

export async function createResharding(nodes: readonly Node[]): Promise<Resharding> {
  const admins = nodes.map(({ host, port }) => new Redis(port, host));
  const [first] = admins as [Redis];
  const [target] = nodes as [Node];
  const ids = await Promise.all(admins.map((admin) => admin.cluster('MYID')));
  const slot = await first.cluster('KEYSLOT', '{gh}:rev');

  const readRanges = async (admin: Redis): Promise<readonly SlotRange[]> =>
    (await admin.cluster('SLOTS')).map(([from, to, node]) => ({ from, to, owner: node?.[2] ?? '' }));
  const countSlots = (ranges: readonly SlotRange[], id: string): number =>
    ranges.filter(({ owner }) => owner === id).reduce((sum, { from, to }) => sum + to - from + 1, 0);
  const findOwner = (ranges: readonly SlotRange[]): string =>
    ranges.find(({ from, to }) => from <= slot && slot <= to)?.owner ?? '';

  return {
    async move(round) {
      const ranges = await readRanges(first);
      const from = findOwner(ranges);
      const to = ids.filter((id) => id !== from)[round % 2] as string;
      // A node without slots would become a replica.
      const slots = countSlots(ranges, from) - 10;
      const args = ['--cluster-from', from, '--cluster-to', to, '--cluster-slots', String(slots)];
      await run('redis-cli', ['--cluster', 'reshard', `${target.host}:${target.port}`, ...args, '--cluster-yes'], {
        maxBuffer: 64 * 1_024 * 1_024,
      }).catch((error: Error & { readonly stdout: string }) => {
        throw new Error(`redis-cli: ${error.stdout.slice(-500)}`);
      });
      await until('every node knows the new owner', async () =>
        (await Promise.all(admins.map(readRanges))).every((found) => findOwner(found) === to),
      );
      return slots;
    },
    close: () => admins.forEach((admin) => admin.disconnect()),
  };
}
