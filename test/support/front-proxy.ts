import { startChild } from './child-process.ts';
import { waitForPort } from './ports.ts';
import { type TempFolder, tempFolder } from './temp-folder.ts';

export { freePort } from './ports.ts';

export interface FrontProxy {
  readonly port: number;
  /** Its output, for failure messages. */
  readonly output: () => string;
  close(): Promise<void>;
}

export interface FrontProxyProgram {
  readonly program: string;
  /** Writes its files to the folder and returns the command-line arguments. */
  readonly arguments: (folder: string, write: TempFolder['write']) => readonly string[];
  readonly port: number;
}

/** A complete nginx.conf around these lines of the `http` block; nginx writes to the test's folder only. */
export function nginxArguments(folder: string, write: TempFolder['write'], http: readonly string[]): readonly string[] {
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  const main = write(
    'nginx.conf',
    [
      // If root starts nginx, its workers run as a user who may not write to the test's folder.
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

/** Runs a proxy in the foreground until `close`; resolves once its port accepts connections. */
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
