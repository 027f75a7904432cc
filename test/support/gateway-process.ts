import { spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** The one snippet of docs/forward-auth.md in this language, as an operator would paste it. */
export function documented(language: string): string {
  const page = readFileSync(join(ROOT, 'docs/forward-auth.md'), 'utf8');
  const found = [...page.matchAll(/^```(\S+)\n([\s\S]*?)^```$/gm)].filter(([, name]) => name === language);
  const [snippet, ...more] = found;
  if (snippet?.[2] === undefined || more.length > 0)
    throw new Error(`${found.length} snippets of ${language} in docs/forward-auth.md`);
  return snippet[2];
}

/** Puts this test's ports and files where the page has its examples; fails when the page has them no more. */
export function filledIn(snippet: string, places: Readonly<Record<string, string>>): string {
  let text = snippet;
  for (const [example, here] of Object.entries(places)) {
    if (!text.includes(example)) throw new Error(`the snippet does not mention ${example}`);
    text = text.replaceAll(example, here);
  }
  return text;
}

export const luaScript = join(ROOT, 'deploy/haproxy/gatehouse-check.lua');

/** Below the range from which the kernel takes ports itself, so that no other socket gets it before its listener. */
export async function freePort(): Promise<number> {
  const port = randomInt(16_384, 32_768);
  const server = createServer();
  try {
    await once(server.listen(port, '127.0.0.1'), 'listening');
  } catch {
    return freePort();
  }
  server.close();
  await once(server, 'close');
  return port;
}

export interface GatewayProcess {
  readonly port: number;
  /** What it wrote, for the message of a failed test. */
  output(): string;
  close(): Promise<void>;
}

export interface GatewayProgram {
  readonly program: string;
  /** Given a folder of its own, writes what it needs there and tells the arguments. */
  readonly arguments: (folder: string, write: (name: string, text: string) => string) => readonly string[];
  readonly port: number;
}

/** What a distribution's nginx.conf gives around these lines of its `http` part, all it writes in the test's folder. */
export function nginxArguments(
  folder: string,
  write: (name: string, text: string) => string,
  http: readonly string[],
): readonly string[] {
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  const main = write(
    'nginx.conf',
    [
      // Started by root, it would work as somebody who may not write in the test's folder.
      ...(process.geteuid?.() === 0 ? ['user root;'] : []),
      'daemon off;',
      'worker_processes 1;',
      `pid ${folder}/nginx.pid;`,
      'error_log stderr warn;',
      'events { worker_connections 256; }',
      'http {',
      ...kinds.map((kind) => `  ${kind}_temp_path ${folder}/${kind};`),
      ...http,
      '}',
    ].join('\n'),
  );
  return ['-p', folder, '-e', 'stderr', '-c', main];
}

const START_MS = 15_000;
const END_MS = 5_000;

/** Runs a gateway in the foreground until `close`; resolves when its port answers. */
export async function startGateway(settings: GatewayProgram): Promise<GatewayProcess> {
  const { program, port } = settings;
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-gateway-'));
  const write = (name: string, text: string): string => {
    const file = join(folder, name);
    writeFileSync(file, text);
    return file;
  };
  const child = spawn(program, settings.arguments(folder, write), {
    cwd: folder,
    env: { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  let ended = false;
  const done = new Promise<void>((resolve) => {
    const finish = (): void => {
      ended = true;
      resolve();
    };
    child.once('exit', finish).once('error', (error) => {
      output += error.message;
      finish();
    });
  });
  const keep = (part: Buffer): void => {
    output = (output + part.toString()).slice(-20_000);
  };
  child.stdout.on('data', keep);
  child.stderr.on('data', keep);

  const close = async (): Promise<void> => {
    if (!ended) {
      child.kill('SIGTERM');
      const force = setTimeout(() => child.kill('SIGKILL'), END_MS);
      await done;
      clearTimeout(force);
    }
    rmSync(folder, { recursive: true, force: true });
  };
  const until = Date.now() + START_MS;
  while (!(await answers(port))) {
    if (ended || Date.now() > until) {
      await close();
      throw new Error(`${program} did not start:\n${output}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return { port, output: () => output, close };
}

async function answers(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
