import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ClientAccounts } from '../../src/listener/client-accounts.ts';
import { HandshakeGuard } from '../../src/listener/handshake-guard.ts';
import { LimitedHandshake } from '../../src/listener/limited-handshake.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** Starts handshakes of one network, and records how each began. */
function startMany(count: number) {
  const guard = new HandshakeGuard();
  const account = new ClientAccounts(1_000_000).get('192.0.2.0/24');
  const running: Socket[] = [];
  const kinds: string[] = [];
  for (let index = 0; index < count; index += 1) {
    const socket = Object.assign(new EventEmitter(), {
      remoteAddress: '192.0.2.1',
      remotePort: index,
      localAddress: '192.0.2.9',
      bytesRead: 500,
      destroyed: false,
    }) as unknown as Socket;
    guard.start(socket, account, (passed) => {
      kinds.push(passed instanceof LimitedHandshake ? 'limited' : 'unlimited');
      running.push(socket);
    });
  }
  return { kinds, endOne: () => running.shift()?.emit('close') };
}

test('many connections at once are not limited as long as handshakes of their network end, however long it takes', () => {
  const { kinds, endOne } = startMany(64);
  expect(kinds).toHaveLength(4);
  for (let elapsed = 0; elapsed < 64 * 100; elapsed += 100) {
    vi.advanceTimersByTime(100);
    endOne();
  }
  expect(kinds).toEqual(Array.from({ length: 64 }, () => 'unlimited'));
});

test('if none of them ends for a quarter of a second, those that wait begin as limited ones', () => {
  const { kinds } = startMany(10);
  vi.advanceTimersByTime(249);
  expect(kinds).toHaveLength(4);
  vi.advanceTimersByTime(2);
  expect(kinds.slice(4)).toEqual(Array.from({ length: 6 }, () => 'limited'));
});
