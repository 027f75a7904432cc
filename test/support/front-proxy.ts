import { startChild } from './child-process.ts';
import { waitForPort } from './ports.ts';
import { type TempFolder, tempFolder } from './temp-folder.ts';

export { freePort } from './ports.ts';

export interface FrontProxy {
  readonly port: number;
  /** What it wrote, for the message of a failed test. */
  readonly output: () => string;
  close(): Promise<void>;
}

export interface FrontProxyProgram {
  readonly program: string;
  /** Given a folder of its own, writes what it needs there and tells the arguments. */
  readonly arguments: (folder: string, write: TempFolder['write']) => readonly string[];
  readonly port: number;
}

/** What a distribution's nginx.conf gives around these lines of its `http` part, all it writes in the test's folder. */
export function nginxArguments(
  folder: string,
  write: TempFolder['write'],
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

/** Runs a gateway in the foreground until `close`; resolves when its port accepts connections. */
export async function startFrontProxy(settings: FrontProxyProgram): Promise<FrontProxy> {
  const { program, port } = settings;
  const folder = tempFolder('gateway');
  const { path } = folder;
  const args = settings.arguments(path, folder.write);
  const env = { ...process.env, HOME: path, XDG_DATA_HOME: path, XDG_CONFIG_HOME: path };
  const child = await startChild([program, ...args], { cwd: path, env, outputLimit: 20_000 });
  const close = async (): Promise<void> => {
    await child.stop();
    folder.remove();
  };
  try {
    await waitForPort(port, child.isRunning);
  } catch (error) {
    await close();
    throw new Error(`${program} did not start:\n${child.output()}`, { cause: error });
  }
  return { port, output: child.output, close };
}
