import type { Epoch } from '../domain/epoch.ts';

/** Counts the device requests this process has let in and that have not run out, so that strangers cannot fill the store. */
export interface WaitingRoom {
  /** False when the room is full, in all or for this client. */
  enter(clientId: string, until: Epoch, now: Epoch): boolean;
}

export interface WaitingRoomLimits {
  readonly all: number;
  readonly perClient: number;
}

/** Requests leave by running out; they are counted by the second in which they do. */
export function waitingRoom(limits: WaitingRoomLimits): WaitingRoom {
  const leaving = new Map<number, Map<string, number>>();
  const inside = new Map<string, number>();
  let all = 0;
  let swept = 0;

  const sweep = (now: Epoch): void => {
    const second = Math.floor(now);
    if (second === swept) return;
    swept = second;
    for (const [at, clients] of leaving) {
      if (at > second) continue;
      leaving.delete(at);
      for (const [client, count] of clients) {
        all -= count;
        const left = (inside.get(client) ?? 0) - count;
        if (left > 0) inside.set(client, left);
        else inside.delete(client);
      }
    }
  };

  return {
    enter(clientId, until, now) {
      sweep(now);
      const own = inside.get(clientId) ?? 0;
      if (all >= limits.all || own >= limits.perClient) return false;
      const second = Math.ceil(until);
      const clients = leaving.get(second) ?? new Map<string, number>();
      leaving.set(second, clients.set(clientId, (clients.get(clientId) ?? 0) + 1));
      inside.set(clientId, own + 1);
      all += 1;
      return true;
    },
  };
}
