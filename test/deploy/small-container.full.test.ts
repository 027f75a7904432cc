import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { seedStore } from '../../bench/support/fill-store.ts';
import { createBenchFolder } from '../../bench/support/folder.ts';
import { type Connection, openConnections } from '../../bench/support/idle-connections.ts';
import { limitMemory } from '../attack/shares/memory-limit.ts';
import { anonymousMemory } from '../support/memory.ts';
import { scrape } from '../support/scrape.ts';
import { isAlive, startServe, until } from '../support/serve-process.ts';
import { startUpstream } from '../support/test-gateway.ts';

const MIB = 1_048_576;
const ENTRY = join(import.meta.dirname, '../../dist/main.js');
const BODY = 'x'.repeat(1_024);
const GRANTS = 100_000;
const SLOW_CLIENTS = 50;
/** As in src/listener/connection-registry.ts. */
const TRIM_INTERVAL_MS = 5_000;
/** As in the image. */
const IMAGE = { LD_PRELOAD: 'libjemalloc.so.2', MALLOC_CONF: 'narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0' };

/** O16: the connections that docs/sizing.md names for a container of this size. */
test.each([
  { memory: 192, kept: 1_000, burst: 500 },
  { memory: 128, kept: 250, burst: 400 },
])(
  'O16 a container of $memory MiB keeps $kept connections and serves $burst more at once, beside slow clients',
  async ({ memory, kept, burst }) => {
    const upstream = await startUpstream((request, response) => {
      request.resume().on('end', () => response.end(BODY));
    });
    onTestFinished(() => upstream.close());
    const folder = await createBenchFolder((settings) => ({
      ...settings,
      upstreams: { default: { url: `http://127.0.0.1:${upstream.port}` } },
      routes: [{ path: '/files/**', requires: 'files:read' }],
    }));
    onTestFinished(() => folder.remove());
    await seedStore(folder.path, { grants: GRANTS, revocations: 0, tokens: 1 });
    // Its pages are charged to the container that reads them first, so the container gets a program of its own.
    const node = folder.file('node');
    copyFileSync(process.execPath, node);
    execFileSync('chmod', ['755', node]);
    execFileSync('sync', [node]);
    execFileSync('dd', [`if=${node}`, 'iflag=nocache', 'count=0'], { stdio: 'ignore' });
    const limit = limitMemory(memory * MIB);
    const { pid, port, adminPort } = await startServe(folder, {
      wrapper: limit.wrapper,
      node,
      nodeOptions: ['--max-semi-space-size=8'],
      entry: ENTRY,
      env: IMAGE,
    });
    onTestFinished(async () => {
      if (isAlive(pid)) process.kill(pid, 'SIGKILL');
      await until('the gateway has ended', () => !isAlive(pid));
      limit.remove();
    });
    const target = { front: { port }, tokens: folder.file('tokens') };
    const slow = Array.from({ length: SLOW_CLIENTS }, () => openSlowClient(port));
    onTestFinished(() => slow.forEach((socket) => socket.destroy()));
    const faults = readMajorFaults(pid);
    const keptConnections = await openConnections(target, kept);
    onTestFinished(() => closeAll(keptConnections));
    const figures = [{ after: `${kept} kept`, ...readFigures(pid, faults) }];
    let longestBurst = 0;
    for (let round = 1; round <= 2; round += 1) {
      const begun = Date.now();
      // Throws if a response is not the expected one.
      closeAll(await openConnections(target, burst));
      await until('their end is known', async () => (await countConnections(adminPort)) <= kept + SLOW_CLIENTS);
      longestBurst = Math.max(longestBurst, Date.now() - begun);
      figures.push({ after: `burst ${round}`, ...readFigures(pid, faults) });
    }
    // Longer than it takes until connections beyond the number that may be kept are closed.
    await pause(15_000);
    expect(isAlive(pid)).toBe(true);
    console.log(JSON.stringify({ memory, figures, longestBurst }));
    // On a busy machine a burst can last so long that the idle connections beyond the number that may be kept are closed.
    const open = keptConnections.filter((connection) => connection.isOpen()).length;
    if (longestBurst < TRIM_INTERVAL_MS) expect(open).toBe(kept);
    else expect(open).toBeGreaterThan(0);
  },
);

test.skipIf(!existsSync('/sys/fs/cgroup'))('O16 a limit of the container is in effect', async () => {
  const limit = limitMemory(64 * MIB);
  onTestFinished(() => limit.remove());
  const [program = '', ...args] = limit.wrapper;
  const script = 'const held = []; for (;;) held.push(Buffer.alloc(1_048_576, 1));';
  expect(() => execFileSync(program, [...args, process.execPath, '-e', script], { stdio: 'ignore' })).toThrow();
});

const countConnections = async (port: number): Promise<number> => (await scrape(port)).value('gatehouse_connections');

const closeAll = (connections: readonly Connection[]): void => {
  for (const connection of connections) connection.close();
};

/** Sends a byte of a TLS handshake, and nothing more. */
function openSlowClient(port: number): Socket {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  socket.write('\x16');
  return socket;
}

/** Pages that had to be read from the disk: many of them mean that the code does not fit in the memory. */
const readMajorFaults = (pid: number): number =>
  Number((readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1) ?? '').split(' ')[9]);

const readFigures = (pid: number, faultsBefore: number) => ({
  anonymousMiB: Math.round(anonymousMemory(pid) / MIB),
  majorFaults: readMajorFaults(pid) - faultsBefore,
});
