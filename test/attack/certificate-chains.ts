import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { startChild } from '../support/child-process.ts';
import { createServeFolder, type ServeFolder, type ServeProcess, startServe } from '../support/serve-process.ts';
import { openObserver } from './shares/observer.ts';

const ATTACKER = join(import.meta.dirname, '../support/junk-chain-client.ts');

export interface ChainTarget {
  readonly folder: ServeFolder;
  readonly server: ServeProcess;
}

export async function startChainTarget(): Promise<ChainTarget> {
  const folder = await createServeFolder((settings) => ({
    ...settings,
    routes: [{ path: '/public/**', public: true }, ...(settings.routes ?? [])],
  }));
  return { folder, server: await startServe(folder) };
}

/** Starts the attacking program. Without `handshakes`, it runs until it is stopped. */
export const startChainFlood = (port: number, connections: number, certificates: number, handshakes?: number) =>
  startChild([process.execPath, ATTACKER, ...[port, connections, certificates, handshakes ?? 1e9].map(String)], {
    ready: (line) => line === 'ready',
  });

/** Processor time of a process so far, in milliseconds. */
export function readProcessorTime(pid: number): number {
  const [user = 0, system = 0] = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ')
    .slice(11, 13)
    .map(Number);
  // sysconf(_SC_CLK_TCK) is 100 on Linux.
  return (user + system) * 10;
}

export interface ObservedFigures {
  readonly statuses: Readonly<Record<string, number>>;
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
}

/** Requests from another network, one after the other, every tenth on a new connection. */
export async function observe({ folder, server }: ChainTarget, count: number): Promise<ObservedFigures> {
  const observer = openObserver(folder, server.port, '/public/x');
  for (let index = 0; index < count; index += 1) {
    await observer.request();
    await pause(5);
  }
  observer.close();
  return observer.getFigures();
}
