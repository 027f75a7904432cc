import type { Epoch } from '../domain/epoch.ts';

/** Counts the device requests that were let in and have not run out, so that strangers cannot fill the store. */
export interface WaitingRoom {
  /** False when the room is full: in all, for this client, or for this address at this client. */
  enter(clientId: string, from: string, until: Epoch, now: Epoch): boolean | Promise<boolean>;
}

export interface WaitingRoomLimits {
  readonly all: number;
  readonly perClient: number;
}

/** One address takes at most this part of a client's room: a few addresses cannot shut everybody else out. */
const PER_ADDRESS = 0.1;

/** Whose part of the room a request takes, and how large that part is. */
export const sharesOf = (
  { all, perClient }: WaitingRoomLimits,
  clientId: string,
  from: string,
): readonly (readonly [whose: string, most: number])[] => [
  ['all', all],
  [`client ${clientId}`, perClient],
  [`address ${from} client ${clientId}`, Math.max(1, Math.ceil(perClient * PER_ADDRESS))],
];

/** The room of one process. Requests leave by running out; they are counted by the second in which they do. */
export function waitingRoom(limits: WaitingRoomLimits): WaitingRoom {
  const leaving = new Map<number, Map<string, number>>();
  const inside = new Map<string, number>();
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
      const shares = sharesOf(limits, clientId, from);
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
