import type { Epoch } from '../domain/epoch.ts';

/** Counts the device requests this process has let in and that have not run out, so that strangers cannot fill the store. */
export interface WaitingRoom {
  /** False when the room is full: in all, for this client, or for this address at this client. */
  enter(clientId: string, from: string, until: Epoch, now: Epoch): boolean;
}

export interface WaitingRoomLimits {
  readonly all: number;
  readonly perClient: number;
}

/** One address takes at most this part of a client's room: a few addresses cannot shut everybody else out. */
const PER_ADDRESS = 0.1;

/** Requests leave by running out; they are counted by the second in which they do. */
export function waitingRoom(limits: WaitingRoomLimits): WaitingRoom {
  const leaving = new Map<number, Map<string, number>>();
  const inside = new Map<string, number>();
  const perAddress = Math.max(1, Math.ceil(limits.perClient * PER_ADDRESS));
  let swept = 0;

  const sweep = (now: Epoch): void => {
    const second = Math.floor(now);
    if (second === swept) return;
    swept = second;
    for (const [at, counts] of leaving) {
      if (at > second) continue;
      leaving.delete(at);
      for (const [whose, count] of counts) {
        const left = (inside.get(whose) ?? 0) - count;
        if (left > 0) inside.set(whose, left);
        else inside.delete(whose);
      }
    }
  };

  return {
    enter(clientId, from, until, now) {
      sweep(now);
      const shares = [
        ['all', limits.all],
        [`client ${clientId}`, limits.perClient],
        [`address ${from} client ${clientId}`, perAddress],
      ] as const;
      if (shares.some(([whose, limit]) => (inside.get(whose) ?? 0) >= limit)) return false;
      const second = Math.ceil(until);
      const counts = leaving.get(second) ?? new Map<string, number>();
      leaving.set(second, counts);
      for (const [whose] of shares) {
        counts.set(whose, (counts.get(whose) ?? 0) + 1);
        inside.set(whose, (inside.get(whose) ?? 0) + 1);
      }
      return true;
    },
  };
}
