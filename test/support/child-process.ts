import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** A running program. */
export interface Child {
  readonly process: ChildProcessWithoutNullStreams;
  readonly pid: number;
  /** Output so far, stdout and stderr combined. */
  readonly output: () => string;
  readonly stdout: () => string;
  readonly stderr: () => string;
  readonly write: (text: string) => void;
  readonly isRunning: () => boolean;
  /** Resolves after exit, once all output has been read. */
  readonly ended: Promise<Exit>;
  readonly signal: (signal: NodeJS.Signals) => void;
  /** Sends the signal and waits for the exit; sends SIGKILL after the deadline. */
  readonly stop: (signal?: NodeJS.Signals, seconds?: number) => Promise<Exit>;
}

export interface ChildOptions {
  readonly cwd?: string | undefined;
  /** Replaces the environment of the test process. */
  readonly env?: NodeJS.ProcessEnv | undefined;
  /** Recognizes the output line that means ready. Default: ready once spawned. */
  readonly ready?: ((line: string) => boolean) | undefined;
  readonly onLine?: ((line: string) => void) | undefined;
  /** Deadline for becoming ready. */
  readonly seconds?: number;
  /** Keeps only the last bytes of the output. Default: all. */
  readonly outputLimit?: number;
}

const START_SECONDS = 120;
const STOP_SECONDS = 30;

/** Starts a program and waits until it is ready. On failure, the process has exited before this rejects. */
export async function startChild(command: readonly string[], options: ChildOptions = {}): Promise<Child> {
  const { ready, seconds = START_SECONDS } = options;
  const isReady = Promise.withResolvers<void>();
  const [program = ''] = command;
  const fail = (reason: string): void =>
    isReady.reject(new Error(`${program} ${reason} before it was ready:\n${child.output()}`));
  const child = spawnChild(command, options, (line) => void (ready?.(line) === true && isReady.resolve()));
  if (ready === undefined) child.process.once('spawn', isReady.resolve);
  void child.ended.then(({ code, signal }) => fail(`ended with ${code ?? signal}`));
  const startTimeout = setTimeout(() => fail(`ran for ${seconds} s`), seconds * 1_000);
  try {
    await isReady.promise;
    return child;
  } catch (error) {
    await child.stop('SIGKILL');
    throw error;
  } finally {
    clearTimeout(startTimeout);
  }
}

/** Starts a program without waiting until it is ready. */
export function spawnChild(
  [program = '', ...args]: readonly string[],
  { cwd, env = process.env, onLine, outputLimit }: ChildOptions = {},
  onAnyLine?: (line: string) => void,
): Child {
  const child = spawn(program, args, { cwd, env, stdio: 'pipe' });
  const texts = { stdout: '', stderr: '', output: '' };
  const collect = (name: 'stdout' | 'stderr', text: string): void => {
    for (const stream of [name, 'output'] as const)
      texts[stream] = outputLimit === undefined ? texts[stream] + text : (texts[stream] + text).slice(-outputLimit);
  };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => collect(name, text));
    if (onLine !== undefined || onAnyLine !== undefined)
      createInterface({ input: child[name] }).on('line', (line) => {
        if (name === 'stdout') onLine?.(line);
        onAnyLine?.(line);
      });
  }
  child.stdin.on('error', () => {});
  let isRunning = true;
  const ended = new Promise<Exit>((resolve) => {
    child.once('error', (error) => {
      collect('stderr', error.message);
      isRunning = false;
      resolve({ code: null, signal: null });
    });
    child.once('exit', () => (isRunning = false));
    child.once('close', (code, signal) => resolve({ code, signal }));
  });
  return {
    process: child,
    pid: child.pid ?? 0,
    output: () => texts.output,
    stdout: () => texts.stdout,
    stderr: () => texts.stderr,
    write: (text) => void child.stdin.write(text),
    isRunning: () => isRunning,
    ended,
    signal: (signal) => void child.kill(signal),
    async stop(signal = 'SIGTERM', seconds = STOP_SECONDS) {
      child.kill(signal);
      const force = setTimeout(() => {
        child.kill('SIGKILL');
        // Its child processes may hold the output pipes open.
        child.stdout.destroy();
        child.stderr.destroy();
      }, seconds * 1_000);
      const exit = await ended;
      clearTimeout(force);
      return exit;
    },
  };
}

export interface ProcessResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  /** stdout and stderr combined. */
  readonly output: string;
}

/** Waits until a program exits; sends SIGTERM at the deadline. */
export async function finish(child: Child, seconds = START_SECONDS): Promise<ProcessResult> {
  const limit = setTimeout(() => child.signal('SIGTERM'), seconds * 1_000);
  const { code } = await child.ended;
  clearTimeout(limit);
  return { code, stdout: child.stdout(), stderr: child.stderr(), output: child.output() };
}

/** Runs a program to completion with `input` on stdin. */
export function runChild(
  command: readonly string[],
  { input, seconds, ...options }: Omit<ChildOptions, 'ready'> & { readonly input?: string } = {},
): Promise<ProcessResult> {
  const child = spawnChild(command, options);
  child.process.stdin.end(input);
  return finish(child, seconds);
}
