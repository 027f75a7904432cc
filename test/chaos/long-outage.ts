import { setTimeout as pause } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { startRedis } from '../support/redis-server.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { until } from '../support/until.ts';
import { isTemporary, type Replica, retryWhileTemporary, startFleet } from './fleet.ts';

export interface LongOutage {
  readonly seconds: number;
  readonly maxStalenessSeconds: number;
}

/** Redis is down for longer than replicas may accept tokens without it. */
export function testLongOutage({ seconds, maxStalenessSeconds }: LongOutage): void {
  test(
    `S02 Redis down for ${seconds} s with \`maxStaleness: ${maxStalenessSeconds}s\`: 200, then 503, never 401, and 200 again without a restart`,
    async () => {
      const data = tempFolder('outage');
      onTestFinished(() => data.remove());
      const persistence = ['--dir', data.path, '--appendonly', 'yes', '--appendfsync', 'always'];
      let server = await startRedis(persistence);
      onTestFinished(() => server.stop());
      const fleet = await startFleet({
        redis: server.port,
        size: 2,
        store: { maxStaleness: `${maxStalenessSeconds}s` },
      });
      onTestFinished(() => fleet.close());
      const [one, other] = fleet.replicas as readonly [Replica, Replica];
      const kept = await one.caller.grant();
      const revoked = await one.caller.grant();
      expect((await retryWhileTemporary(() => one.caller.revoke(revoked.access_token))).status).toBe(200);
      for (const { caller } of fleet.replicas)
        await until('the token is accepted', async () => (await caller.call(kept.access_token)) === 200);

      const { port } = server;
      await server.stop();
      const killedAt = performance.now();
      const elapsed = (): number => (performance.now() - killedAt) / 1_000;
      const statuses: { readonly at: number; readonly kept: number; readonly revoked: number }[] = [];
      while (elapsed() < seconds) {
        for (const { caller } of fleet.replicas)
          statuses.push({
            at: elapsed(),
            kept: await caller.call(kept.access_token),
            revoked: await caller.call(revoked.access_token),
          });
        expect(isTemporary(await other.caller.refresh(kept.refresh_token))).toBe(true);
        await pause(100);
      }
      // The token is valid, so it is never reported as invalid; the revoked one is never accepted.
      expect(statuses.filter((found) => found.kept !== 200 && found.kept !== 503)).toEqual([]);
      expect(statuses.filter((found) => found.revoked === 200)).toEqual([]);
      const late = statuses.filter(({ at }) => at > maxStalenessSeconds + 1);
      expect(late.length).toBeGreaterThan(0);
      expect(late.filter((found) => found.kept !== 503)).toEqual([]);
      expect(statuses[0]?.kept).toBe(200);

      server = await startRedis(persistence, { port });
      const backAt = performance.now();
      await fleet.allReady();
      const recovered = performance.now() - backAt;
      for (const { caller } of fleet.replicas) {
        expect(await caller.call(kept.access_token)).toBe(200);
        expect(await caller.call(revoked.access_token)).toBe(401);
      }
      expect((await retryWhileTemporary(() => other.caller.refresh(kept.refresh_token))).status).toBe(200);
      expect(fleet.replicas.map(({ startCount }) => startCount)).toEqual([1, 1]);
      recordFigures('long-outage', {
        'seconds without Redis': seconds,
        'maxStaleness, s': maxStalenessSeconds,
        'requests accepted': statuses.filter((found) => found.kept === 200).length,
        'requests rejected with 503': statuses.filter((found) => found.kept === 503).length,
        'other responses': 0,
        'revoked tokens accepted': 0,
        'ready again after, ms': Math.round(recovered),
        restarts: 0,
      });
    },
    (seconds + 300) * 1_000,
  );
}
