import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:tls';
import { expect } from 'vitest';
import { heapAfterCollection } from '../support/heap.ts';
import { indexed, literal, NEWEST_ENTRY } from '../support/hpack.ts';
import {
  createFrameReader,
  FLAG,
  FRAME,
  headerBlock,
  headersFrame,
  PREFACE,
  repeat,
  requestFields,
  settingsFrame,
} from '../support/http2-frames.ts';
import { createEventWaiter } from '../support/until.ts';
import type { AttackGateway } from './attack-gateway.ts';

/** A field of 2.8 KB, which a later header section repeats with one byte. */
const ENTRY_SIZE = 2_800;
/** As many as the gateway caches for a connection. */
const CACHED_SECTIONS = 16;

interface Client {
  /** Sends requests, and waits for all responses. The stream ids increase. */
  request(blocks: readonly Buffer[]): Promise<void>;
  /** Sends a request whose response does not come. */
  hold(block: Buffer): void;
  destroy(): void;
}

/** A client that keeps nothing of what it receives. */
async function openClient({ gateway }: AttackGateway): Promise<Client> {
  const socket = connect({
    port: gateway.port,
    host: '127.0.0.1',
    servername: 'localhost',
    ca: gateway.ca.pem,
    ALPNProtocols: ['h2'],
  }).on('error', () => {});
  await once(socket, 'secureConnect');
  let isClosed = false;
  let ended = 0;
  const { wake, until } = createEventWaiter(() => `${ended} responses, closed: ${isClosed}`);
  socket.on('close', () => {
    isClosed = true;
    wake();
  });
  const readFrames = createFrameReader(({ type, flags }) => {
    if ((type === FRAME.headers || type === FRAME.data) && (flags & FLAG.endStream) !== 0) ended += 1;
  });
  socket.on('data', (part: Buffer) => {
    readFrames(part);
    wake();
  });
  socket.write(Buffer.concat([PREFACE, settingsFrame()]));
  let next = 1;
  const send = (blocks: readonly Buffer[]): void => {
    const frames = blocks.map((block) => {
      const frame = headersFrame(next, block);
      next += 2;
      return frame;
    });
    socket.write(Buffer.concat(frames));
  };
  return {
    async request(blocks) {
      const expected = ended + blocks.length;
      send(blocks);
      await until(() => ended === expected || isClosed);
      expect([ended, isClosed]).toEqual([expected, false]);
    },
    hold: (block) => send([block]),
    destroy: () => void socket.destroy(),
  };
}

/** A request without a token, which is refused at once. The response has no body, which the window could delay. */
const request = (path: string, ...more: readonly Buffer[]): Buffer =>
  Buffer.concat([headerBlock(requestFields(`/files/${path}`, 'HEAD')), ...more]);
const INSERT = request('first', literal('x-large', 'a'.repeat(ENTRY_SIZE), 'incremental'));
/** Header sections with `times` times the large field. They differ so much that the cache of all connections ignores them. */
const sections = (count: number, times: number): Buffer[] =>
  Array.from({ length: count }, () =>
    request('1', repeat(indexed(NEWEST_ENTRY), times), literal('x-distinct', randomBytes(510).toString('base64url'))),
  );

interface Attack {
  readonly connections: number;
  /** Whether another request of each connection is being served meanwhile. */
  readonly isBusy: boolean;
  readonly getBlocks: () => readonly Buffer[];
}

/** The bytes of heap by which each connection has grown after its requests. */
async function measureGrowth(attack: AttackGateway, { connections, isBusy, getBlocks }: Attack): Promise<number> {
  attack.upstream.respondWith(() => {});
  const clients: Client[] = [];
  try {
    while (clients.length < connections) {
      const client = await openClient(attack);
      clients.push(client);
      if (isBusy) client.hold(headerBlock(requestFields('/public/held')));
      await client.request([INSERT]);
    }
    // What the process keeps from the first requests is not counted.
    await clients[0]?.request(getBlocks().slice(0, CACHED_SECTIONS));
    attack.gateway.clearLog();
    const before = heapAfterCollection();
    for (const client of clients) {
      await client.request(getBlocks());
      attack.gateway.clearLog();
    }
    return (heapAfterCollection() - before) / connections;
  } finally {
    for (const client of clients) client.destroy();
    attack.upstream.reset();
  }
}

const KiB = 1_024;

/** Idle connections whose clients have sent as many large header sections as are cached. */
export const measureIdle = (attack: AttackGateway, connections: number): Promise<number> =>
  measureGrowth(attack, { connections, isBusy: false, getBlocks: () => sections(CACHED_SECTIONS, 1) });
/** A section of at most 4 KiB, with its objects; all sections would be 96 KiB. */
export const MAX_IDLE = 56 * KiB;

/** Busy connections with sections of almost `limits.headers` each. */
export const measureLarge = (attack: AttackGateway, connections: number): Promise<number> =>
  measureGrowth(attack, { connections, isBusy: true, getBlocks: () => sections(CACHED_SECTIONS, 5) });
/** They are not cached; otherwise they would be 256 KiB. */
export const MAX_LARGE = 64 * KiB;

/** One busy connection that has sent many different sections. */
export const measureMany = (attack: AttackGateway, count: number): Promise<number> =>
  measureGrowth(attack, { connections: 1, isBusy: true, getBlocks: () => sections(count, 1) });
