import fc from 'fast-check';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { Slot, Slots } from '../../../src/proxy/upstream/connection-slots.ts';

const target = () => ({ index: 0, url: 'http://127.0.0.1:1', pending: 0, streams: 0 });

interface User {
  readonly slot: Slot;
  readonly key: string;
  state: 'waiting' | 'granted' | 'refused' | 'evicted' | 'left';
}

function enter(slots: Slots, key: string, isUpload = false, unread = () => 0): User {
  const user: User = {
    slot: new Slot({
      isWaitingForClient: true,
      get unreadBytes() {
        return unread();
      },
      onSlotGranted: () => void (user.state = 'granted'),
      onEvicted: () => void (user.state = 'evicted'),
    }),
    key,
    state: 'waiting',
  };
  if (!user.slot.enter(slots, key, isUpload)) user.state = 'refused';
  return user;
}

function leave(user: User): void {
  user.slot.leave();
  user.state = 'left';
}

const runMicrotasks = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const getStates = (users: readonly User[]): string[] => users.map(({ state }) => state);

afterEach(() => void vi.useRealTimers());

describe('connection slots', () => {
  test('a client that reads slowly keeps its slot, one that reads nothing loses it', () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
    const slots = new Slots(target(), { connections: 4, maxPending: 10, eventStreams: 10 });
    let unread = 1_000_000;
    const reader = enter(slots, 'a', false, () => unread);
    const others = [enter(slots, 'b'), enter(slots, 'b'), enter(slots, 'a')];
    reader.slot.markStalled();
    others[0]?.slot.markStalled();
    others[1]?.slot.markStalled();
    enter(slots, 'c');
    for (let at = 0; at < 10; at += 1) {
      vi.advanceTimersByTime(500);
      unread -= 65_536;
    }
    expect(getStates([reader, ...others])).toEqual(['granted', 'evicted', 'evicted', 'granted']);
  });

  test('clients whose requests are refused are not remembered', () => {
    const slots = new Slots(target(), { connections: 1, maxPending: 0, eventStreams: 10 });
    enter(slots, 'x');
    for (let at = 0; at < 5_000; at += 1) enter(slots, `client ${at}`);
    expect(slots.knownClients).toBeLessThanOrEqual(1_001);
  });

  test('a freed slot goes to the client that holds the fewest, not to the one that waited longest', async () => {
    const slots = new Slots(target(), { connections: 2, maxPending: 10, eventStreams: 10 });
    const first = [enter(slots, 'a'), enter(slots, 'a')];
    const waiting = [enter(slots, 'a'), enter(slots, 'a'), enter(slots, 'b')];
    expect(getStates([...first, ...waiting])).toEqual(['granted', 'granted', 'waiting', 'waiting', 'waiting']);
    leave(first[0] as User);
    await runMicrotasks();
    expect(getStates(waiting)).toEqual(['waiting', 'waiting', 'granted']);
  });

  test('clients that hold equally many slots are served in turn', async () => {
    const slots = new Slots(target(), { connections: 1, maxPending: 10, eventStreams: 10 });
    let holder = enter(slots, 'x');
    const waiting = [enter(slots, 'a'), enter(slots, 'a'), enter(slots, 'b'), enter(slots, 'b')];
    const order: string[] = [];
    for (let at = 0; at < waiting.length; at += 1) {
      leave(holder);
      await runMicrotasks();
      holder = waiting.find(({ state }) => state === 'granted') as User;
      order.push(holder.key);
    }
    expect(order).toEqual(['a', 'b', 'a', 'b']);
  });

  test('one client cannot fill the queue', () => {
    const slots = new Slots(target(), { connections: 1, maxPending: 16, eventStreams: 10 });
    enter(slots, 'x');
    const flood = Array.from({ length: 30 }, () => enter(slots, 'a'));
    expect(flood.filter(({ state }) => state === 'waiting')).toHaveLength(14);
    expect(enter(slots, 'b').state).toBe('waiting');
  });

  test('an upload becomes an ordinary request when its body has arrived', async () => {
    const slots = new Slots(target(), { connections: 4, maxPending: 10, eventStreams: 10 });
    const uploads = [enter(slots, 'a', true), enter(slots, 'a', true), enter(slots, 'a', true)];
    expect(getStates(uploads)).toEqual(['granted', 'granted', 'waiting']);
    uploads[0]?.slot.markUploaded();
    await runMicrotasks();
    expect(getStates(uploads)).toEqual(['granted', 'granted', 'granted']);
  });

  test('an event stream frees its slot, and one client cannot open all event streams', async () => {
    const used = target();
    const slots = new Slots(used, { connections: 1, maxPending: 20, eventStreams: 8 });
    const streams: User[] = [];
    for (let at = 0; at < 7; at += 1) {
      const stream = enter(slots, 'a', at === 0);
      expect(stream.state).toBe('granted');
      expect(stream.slot.markEventStream()).toBe(true);
      streams.push(stream);
    }
    const refused = enter(slots, 'a');
    expect(refused.slot.markEventStream()).toBe(false);
    // It keeps its slot.
    const other = enter(slots, 'b');
    expect([used.pending, used.streams, other.state]).toEqual([9, 7, 'waiting']);
    leave(refused);
    await runMicrotasks();
    expect(other.state).toBe('granted');
    expect(other.slot.markEventStream()).toBe(true);
    expect(enter(slots, 'c').slot.markEventStream()).toBe(false);
    for (const stream of [...streams, other]) leave(stream);
    expect([used.pending, used.streams]).toEqual([1, 0]);
  });

  test('the connection of an ended event stream is counted until it can be used again', () => {
    const used = target();
    const slots = new Slots(used, { connections: 1, maxPending: 0, eventStreams: 8 });
    const stream = enter(slots, 'a');
    stream.slot.markEventStream();
    stream.slot.leave(true);
    expect([enter(slots, 'b').state, used.pending, used.streams]).toEqual(['refused', 1, 0]);
    slots.release();
    expect([enter(slots, 'b').state, used.pending]).toEqual(['granted', 1]);
  });

  test('the next request of a slot is no event stream', () => {
    const slots = new Slots(target(), { connections: 1, maxPending: 0, eventStreams: 8 });
    const { slot } = enter(slots, 'a');
    slot.markEventStream();
    slot.leave();
    expect(slot.enter(slots, 'a', false)).toBe(true);
    expect(enter(slots, 'b').state).toBe('refused');
  });

  test('ordinary requests do not wait behind uploads of the same client', () => {
    const slots = new Slots(target(), { connections: 4, maxPending: 10, eventStreams: 10 });
    for (let at = 0; at < 5; at += 1) enter(slots, 'a', true);
    expect(enter(slots, 'a').state).toBe('granted');
  });

  test('there are never more slots than connections, and each waiting request eventually gets one', async () => {
    const step = fc.record({
      kind: fc.constantFrom('enter', 'upload', 'leave', 'later', 'markUploaded', 'markStalled', 'clearStalled'),
      key: fc.constantFrom('a', 'b', 'c'),
      at: fc.nat(50),
    });
    const run = fc.asyncProperty(
      fc.integer({ min: 1, max: 12 }),
      fc.integer({ min: 0, max: 12 }),
      fc.array(step, { maxLength: 120 }),
      async (connections, maxPending, steps) => {
        const used = target();
        const slots = new Slots(used, { connections, maxPending, eventStreams: 10 });
        const users: User[] = [];
        let releases = 0;
        const getGranted = (): User[] => users.filter(({ state }) => state === 'granted');
        for (const { kind, key, at } of steps) {
          const alive = users.filter(({ state }) => state === 'granted' || state === 'waiting');
          const user = alive[at % Math.max(1, alive.length)];
          if (kind === 'enter' || kind === 'upload') users.push(enter(slots, key, kind === 'upload'));
          else if (user === undefined) continue;
          else if (kind === 'leave') leave(user);
          else if (kind === 'later') {
            if (user.state === 'granted') releases += 1;
            user.slot.leave(true);
            user.state = 'left';
          } else if (user.state === 'granted') user.slot[kind]();
          if (at % 3 === 0 && releases > 0) {
            releases -= 1;
            slots.release();
          }
          await runMicrotasks();
          expect(getGranted().length + releases).toBeLessThanOrEqual(connections);
        }
        while (releases > 0) {
          releases -= 1;
          slots.release();
        }
        for (let rounds = 0; rounds < users.length + 1; rounds += 1) {
          for (const user of getGranted()) leave(user);
          await runMicrotasks();
        }
        expect(users.filter(({ state }) => state === 'waiting')).toEqual([]);
        expect(used.pending).toBe(0);
      },
    );
    await fc.assert(run, { numRuns: 60 });
  });

  test('event streams leave no count behind, and none is ever negative', async () => {
    const step = fc.record({
      kind: fc.constantFrom('enter', 'upload', 'markEventStream', 'leave', 'later', 'release', 'markStalled'),
      key: fc.constantFrom('a', 'b', 'c'),
      at: fc.nat(50),
    });
    const run = fc.asyncProperty(
      fc.integer({ min: 1, max: 6 }),
      fc.integer({ min: 1, max: 9 }),
      fc.array(step, { maxLength: 120 }),
      async (connections, eventStreams, steps) => {
        const used = target();
        const slots = new Slots(used, { connections, maxPending: 8, eventStreams });
        const users: User[] = [];
        const streams = new Set<User>();
        let releases = 0;
        const getGranted = (): User[] => users.filter(({ state }) => state === 'granted');
        for (const { kind, key, at } of steps) {
          const granted = getGranted();
          const user = granted[at % Math.max(1, granted.length)];
          if (kind === 'enter' || kind === 'upload') users.push(enter(slots, key, kind === 'upload'));
          else if (kind === 'release') {
            if (releases > 0) slots.release();
            releases = Math.max(0, releases - 1);
          } else if (user === undefined) continue;
          else if (kind === 'markStalled') user.slot.markStalled();
          else if (kind === 'markEventStream') {
            // Once for each response, before any of it can be unread.
            user.slot.clearStalled();
            if (!streams.has(user) && user.slot.markEventStream()) streams.add(user);
          } else {
            if (kind === 'later') releases += 1;
            user.slot.leave(kind === 'later');
            user.state = 'left';
          }
          await runMicrotasks();
          const open = getGranted().filter((one) => streams.has(one)).length;
          const waiting = users.filter(({ state }) => state === 'waiting').length;
          expect([used.streams, used.pending]).toEqual([open, getGranted().length + waiting + releases]);
          expect(open).toBeLessThanOrEqual(eventStreams);
        }
        for (; releases > 0; releases -= 1) slots.release();
        for (let rounds = 0; rounds < users.length + 1; rounds += 1) {
          for (const user of getGranted()) leave(user);
          await runMicrotasks();
        }
        expect([used.pending, used.streams]).toEqual([0, 0]);
        // All connections and all streams are free again.
        const next = enter(slots, 'd');
        expect([next.state, next.slot.markEventStream()]).toEqual(['granted', true]);
      },
    );
    await fc.assert(run, { numRuns: 60 });
  });
});
