import { expect } from 'vitest';
import type { Figures } from '../support/figures.ts';
import type { Reply } from '../support/https-client.ts';
import { until } from '../support/serve-process.ts';
import { type Caller, type Fleet, isTemporary } from './fleet.ts';
import { isTooLateToRetry, pick, runConcurrently } from './support.ts';

/** The state of a client: its newest refresh token, and whether the revocation of its grant was acknowledged. */
export interface ClientState {
  refreshToken: string;
  readonly accessToken: string;
  /** When the refresh token was presented without a final response, by `performance.now()`. */
  presentedAt: number | undefined;
  state: 'valid' | 'revoked' | 'maybe revoked';
}

export interface WriteCounts {
  grants: number;
  rotations: number;
  revocations: number;
  /** Rejected as a temporary error. */
  refused: number;
  /** Refreshes with an unknown outcome that were not retried, because the machine was too slow. */
  tooLate: number;
}

/** Clients that create, refresh and revoke grants continuously, and know what was acknowledged. */
export interface AcknowledgedWrites {
  readonly total: Readonly<WriteCounts>;
  readonly lost: readonly string[];
  /** Runs `disturb` while the clients work. Returns the grants made meanwhile. */
  during(disturb: () => Promise<void>): Promise<readonly ClientState[]>;
  /** Waits, while the clients work, until this many more operations are acknowledged. */
  untilMore(operations: number): Promise<void>;
  /** Every acknowledged grant is as it was acknowledged, on every replica. */
  check(states: readonly ClientState[], when: string): Promise<void>;
  /** For `recordFigures`. */
  describe(): Figures;
  /** Grants revoked in any round are still revoked. */
  checkRevoked(): Promise<void>;
}

export function createAcknowledgedWrites(
  fleet: Fleet,
  { clients, random }: { readonly clients: number; readonly random: () => number },
): AcknowledgedWrites {
  const total: WriteCounts = { grants: 0, rotations: 0, revocations: 0, refused: 0, tooLate: 0 };
  const wronglyRefused: string[] = [];
  const lost: string[] = [];
  const all: ClientState[] = [];
  const pickCaller = (): Caller => pick(random, fleet.replicas).caller;
  const recordRefusal = (what: string, response: Reply): void => {
    total.refused += 1;
    if (!isTemporary(response)) wronglyRefused.push(`${what}: ${response.status} ${JSON.stringify(response.json)}`);
  };

  /** One client: obtains a grant, refreshes it twice, and revokes it with a probability of 0.5. */
  const runClient = async (states: ClientState[]): Promise<void> => {
    const created = await pickCaller().post('/Authorize/Certificate', {
      client_id: 'report-runner',
      scope: 'files:read',
    });
    if (created.status !== 200) return recordRefusal('grant', created);
    const state: ClientState = {
      refreshToken: String(created.json['refresh_token']),
      accessToken: String(created.json['access_token']),
      presentedAt: undefined,
      state: 'valid',
    };
    states.push(state);
    total.grants += 1;
    for (let attempt = 0; attempt < 2; attempt += 1) {
      state.presentedAt = performance.now();
      const response = await pickCaller().refresh(state.refreshToken);
      if (response.status !== 200) return recordRefusal('refresh', response);
      state.refreshToken = String(response.json['refresh_token']);
      state.presentedAt = undefined;
      total.rotations += 1;
    }
    if (random() < 0.5) return;
    state.state = 'maybe revoked';
    const response = await pickCaller().revoke(state.accessToken);
    if (response.status !== 200) return recordRefusal('revocation', response);
    state.state = 'revoked';
    total.revocations += 1;
  };

  return {
    total,
    lost,
    async during(disturb) {
      const states: ClientState[] = [];
      const halt = new AbortController();
      const load = Array.from({ length: clients }, async () => {
        while (!halt.signal.aborted) await runClient(states);
      });
      try {
        await disturb();
      } finally {
        halt.abort();
        await Promise.all(load);
      }
      all.push(...states);
      return states;
    },
    async untilMore(operations) {
      const countAcknowledged = (): number => total.grants + total.rotations + total.revocations;
      const wanted = countAcknowledged() + operations;
      await until('more writes are acknowledged', () => countAcknowledged() >= wanted, 120);
    },
    async check(states, when) {
      // Those with an unknown outcome first, while they can be retried.
      const ordered = states.toSorted((one, other) => getPresentedAt(one) - getPresentedAt(other));
      await runConcurrently(ordered, 8, async (state) => {
        const statuses = await Promise.all(fleet.replicas.map((replica) => replica.caller.call(state.accessToken)));
        if (isTooLateToRetry(state.presentedAt)) {
          total.tooLate += 1;
          return;
        }
        const response = await until('the response is not temporary', async () => {
          const found = await pickCaller().refresh(state.refreshToken);
          return !isTemporary(found) && found;
        });
        const seen = `${when}, ${state.state}: ${statuses.join(' ')}, refresh ${response.status}`;
        if (state.state === 'valid' && (statuses.some((status) => status !== 200) || response.status !== 200))
          lost.push(seen);
        if (state.state === 'revoked' && (statuses.some((status) => status !== 401) || response.status !== 400))
          lost.push(seen);
        if (response.status === 200) state.refreshToken = String(response.json['refresh_token']);
        state.presentedAt = undefined;
      });
      expect(total.tooLate).toBeLessThan(Math.max(10, total.grants / 10));
      expect(lost).toEqual([]);
      expect(wronglyRefused).toEqual([]);
    },
    describe: () => ({
      'grants acknowledged': total.grants,
      'rotations acknowledged': total.rotations,
      'revocations acknowledged': total.revocations,
      'refused as temporary': total.refused,
      'acknowledged and lost': lost.length,
      ...(total.tooLate > 0 && { 'not retried, because the machine was too slow': total.tooLate }),
    }),
    async checkRevoked() {
      await runConcurrently(all, 8, async ({ state, accessToken }) => {
        if (state !== 'revoked') return;
        for (const { caller } of fleet.replicas)
          if ((await caller.call(accessToken)) !== 401) lost.push('a revoked grant is accepted again');
      });
      expect(lost).toEqual([]);
      expect(fleet.countAudits('refresh_reuse')).toBe(0);
    },
  };
}

const getPresentedAt = ({ presentedAt = Number.MAX_SAFE_INTEGER }: ClientState): number => presentedAt;
