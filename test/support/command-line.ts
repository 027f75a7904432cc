import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

export interface Finished {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly input?: string;
  /** Another runtime than the one of the tests. */
  readonly node?: string;
  readonly nodeArgs?: readonly string[];
  /** Ended after this time. */
  readonly withinMs?: number;
}

const ENTRY = fileURLToPath(new URL('../../bin/gatehouse.js', import.meta.url));

/** Where Node keeps what it made of the sources (set-up.ts): nothing that a command could see. */
const { NODE_COMPILE_CACHE = '' } = process.env;

/** `gatehouse …` as a real process, with an environment of its own, ended after 30 s unless told otherwise. */
export function gatehouse(args: readonly string[], options: RunOptions = {}): Promise<Finished> {
  const { env = {}, cwd, input = '', node = process.execPath, nodeArgs = [], withinMs = 30_000 } = options;
  return new Promise((resolve, reject) => {
    const child = spawn(node, [...nodeArgs, ENTRY, ...args], {
      env: { PATH: process.env['PATH'] ?? '', NODE_COMPILE_CACHE, ...env },
      timeout: withinMs,
      ...(cwd !== undefined && { cwd }),
    });
    let [stdout, stderr] = ['', ''];
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, stdout, stderr }));
    child.stdin.on('error', () => {});
    child.stdin.end(input);
  });
}
