import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { MEMORY_ENVIRONMENT } from '../../test/support/memory-environment.ts';

/** A program pinned to a core, with its output in a file. */
export interface Program {
  readonly pid: number;
  readonly port: number;
  readonly adminPort: number;
  /** From start to its `ready` line. */
  readonly readySeconds: number;
  stop(): Promise<void>;
}

const scriptPath = (name: string): string => join(import.meta.dirname, name);

/** All processes that were started and have not exited. */
const running = new Set<ChildProcess>();
process.once('exit', () => running.forEach((child) => child.kill('SIGKILL')));
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));

const pinToCore = (core: number | string | undefined, args: readonly string[]): string[] =>
  core === undefined ? [...args] : ['taskset', '-c', String(core), ...args];

export function launch(
  core: number | string | undefined,
  args: readonly string[],
  output: string,
  stderr: 'inherit' | 'output file' = 'inherit',
): ChildProcess {
  const [program = '', ...rest] = pinToCore(core, args);
  const out = openSync(output, 'w');
  const child = spawn(program, rest, { stdio: ['ignore', out, stderr === 'inherit' ? 'inherit' : out] });
  closeSync(out);
  running.add(child);
  child.once('exit', () => running.delete(child));
  return child;
}

export async function waitUntilReady(child: ChildProcess, output: string): Promise<Program> {
  const started = performance.now();
  for (;;) {
    const line = readFileSync(output, 'utf8')
      .split('\n')
      .find((text) => text.includes('"event":"ready"') && text.endsWith('}'));
    if (line !== undefined) {
      // `adminPort`: commits before it was renamed, for `bench:compare`.
      const ready = JSON.parse(line) as { port: number; admin_port?: number; adminPort?: number };
      const { port, admin_port: adminPort = ready.adminPort ?? 0 } = ready;
      return {
        pid: child.pid ?? 0,
        port,
        adminPort,
        readySeconds: (performance.now() - started) / 1_000,
        stop: () => stopProcess(child),
      };
    }
    if (child.exitCode !== null) throw new Error(`the program exited with ${child.exitCode}`);
    if (performance.now() - started > 60_000) throw new Error('the program was not ready in 60 s');
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

export async function stopProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once('exit', resolve));
  child.kill('SIGTERM');
  const killTimer = setTimeout(() => child.kill('SIGKILL'), 20_000);
  await ended;
  clearTimeout(killTimer);
}

export interface ServeOptions {
  readonly folder: string;
  /** `src/main.ts` or `dist/main.js`. */
  readonly entry: string;
  /** A core, or several in the syntax of `taskset`. */
  readonly core?: number | string;
  readonly nodeOptions?: readonly string[];
  /** Added to its environment. */
  readonly env?: Readonly<Record<string, string>>;
}

export const startGatehouse = ({ folder, entry, core, nodeOptions = [], env = {} }: ServeOptions): Promise<Program> => {
  const output = join(folder, 'serve.log');
  const args = [
    // As bin/gatehouse does.
    'env',
    ...Object.entries({ ...MEMORY_ENVIRONMENT, ...env }).map(([name, value]) => `${name}=${value}`),
    process.execPath,
    ...nodeOptions,
    entry,
    'serve',
    '--config',
    join(folder, 'gatehouse.yaml'),
  ];
  return waitUntilReady(launch(core, args, output), output);
};

export const startBaselineServer = (folder: string, core: number): Promise<Program> => {
  const output = join(folder, 'baseline-server.log');
  return waitUntilReady(launch(core, [process.execPath, scriptPath('baseline-server.ts'), folder], output), output);
};

/** Runs a script of this folder to completion and reads its result file. */
export async function measure<T>(core: number, script: string, args: readonly string[], folder: string): Promise<T> {
  const result = join(folder, 'result.json');
  const child = launch(core, [process.execPath, scriptPath(script), ...args, result], join(folder, `${script}.log`));
  const limit = setTimeout(() => child.kill('SIGKILL'), 180_000);
  const code = await new Promise((resolve) => child.once('exit', resolve));
  clearTimeout(limit);
  if (code !== 0) throw new Error(`${script} exited with ${String(code)}`);
  return JSON.parse(readFileSync(result, 'utf8')) as T;
}

/** Runs a load generator to completion, at most for `limitSeconds`; returns its output. */
export async function runToEnd(
  core: number | string,
  args: readonly string[],
  output: string,
  limitSeconds: number,
): Promise<string> {
  const child = launch(core, args, output, 'output file');
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const limit = setTimeout(() => void stopProcess(child), limitSeconds * 1_000);
  const code = await ended;
  clearTimeout(limit);
  const text = readFileSync(output, 'utf8');
  if (code !== 0) throw new Error(`${args[0]} exited with ${code}: ${text.slice(-300)}`);
  return text;
}
