import { once } from 'node:events';
import { connect, createServer, type Server } from 'node:net';
import { until } from './until.ts';

/**
 * Ports for programs that cannot bind port 0 and report the result. They are below the ephemeral range (32768 on Linux, 49152
 * on macOS), so the kernel never uses one for an outgoing connection. Each process reserves whole blocks: it listens on the
 * first port of a block as a lock, which the kernel releases when the process exits.
 */
const FIRST = 20_000;
const LAST = 30_000;
const BLOCK_SIZE = 100;

interface Block {
  readonly lock: Server;
  next: number;
  readonly end: number;
}

// Bench programs and tests may load this module from two places in one process.
const shared = globalThis as { testPorts?: Block };

export async function freePort(): Promise<number> {
  for (;;) {
    const block = shared.testPorts;
    if (block === undefined || block.next === block.end) {
      shared.testPorts = await reserveBlock();
      continue;
    }
    const port = block.next;
    block.next += 1;
    const probe = await listen(port);
    if (probe === undefined) continue;
    await new Promise((resolve) => probe.close(resolve));
    return port;
  }
}

async function reserveBlock(): Promise<Block> {
  const blocks = (LAST - FIRST) / BLOCK_SIZE;
  for (let tries = 0; tries < blocks; tries += 1) {
    const first = FIRST + ((process.pid + tries) % blocks) * BLOCK_SIZE;
    const lock = await listen(first);
    if (lock !== undefined) return { lock: lock.unref(), next: first + 1, end: first + BLOCK_SIZE };
  }
  throw new Error(`all ports from ${FIRST} to ${LAST} are in use`);
}

async function listen(port: number): Promise<Server | undefined> {
  const server = createServer().listen(port, '127.0.0.1');
  try {
    await once(server, 'listening');
    return server;
  } catch {
    return undefined;
  }
}

/** For programs that do not report when they are ready. */
export const waitForPort = (port: number, isRunning: () => boolean): Promise<true> =>
  until(`port ${port} accepts connections`, async () => {
    if (!isRunning()) throw new Error('the process has ended');
    const socket = connect(port, '127.0.0.1');
    try {
      await once(socket, 'connect');
      return true;
    } catch {
      return false;
    } finally {
      socket.destroy();
    }
  });
