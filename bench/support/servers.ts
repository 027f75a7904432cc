import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { launch, stopProcess } from './programs.ts';

/** A measured server: its port, and the processes whose CPU time is measured. */
export interface BenchServer {
  readonly port: number;
  readonly pids: readonly number[];
  stop(): Promise<void>;
}

/** Common to all servers. */
export interface BenchEnvironment {
  /** Contains the certificates, configurations and logs. */
  readonly folder: string;
  readonly serverCore: number | string;
  readonly loadCore: number | string;
  readonly nginx: string;
  readonly haproxy?: string;
}

const START_SECONDS = 20;

/** Starts a program and waits until its port is open. */
export async function startServer(
  core: number | string,
  args: readonly string[],
  port: number,
  output: string,
): Promise<BenchServer> {
  const child = launch(core, args, output, 'output file');
  const until = performance.now() + START_SECONDS * 1_000;
  while (!(await isListening(port))) {
    if (child.exitCode !== null || performance.now() > until) {
      await stopProcess(child);
      throw new Error(`${args[0]} did not start: ${readFileSync(output, 'utf8').slice(-400)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return { port, pids: [child.pid ?? 0], stop: () => stopProcess(child) };
}

const isListening = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
    socket.once('connect', () => socket.destroy());
  });
