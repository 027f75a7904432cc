import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { formatProblems, type InvalidConfig, type LoadedConfig, loadSettings } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { readPackageVersion } from '../lib/package-version.ts';
import { StartError } from '../lib/start-error.ts';
import { createLogger, createStdoutSink, type Logger } from '../observability/logger.ts';
import { openGateway } from '../server/gateway.ts';
import { Reloader } from '../server/reloader.ts';
import { CONFIG_OPTIONS, type Command, type CommandContext, EXIT } from './command.ts';
import { type DemoApi, openDemoApi } from './demo/api.ts';
import { type DemoFolder, lockDemoFolder, prepareDemoFolder } from './demo/folder.ts';
import { createDemoLog } from './demo/log.ts';
import { type DemoPorts, findFreePort, isFreePort, replacePorts } from './demo/ports.ts';
import { renderWalkthrough } from './demo/walkthrough.ts';
import { writePrivateFile } from './pki/private-files.ts';
import { reportStartFailure } from './settings.ts';
import { onStopSignal } from './stop-signals.ts';
import { getErrorColumns, getLogFormat } from './style.ts';

const API_PORT = 9080;
const API_URL = `http://127.0.0.1:${API_PORT}`;

export const command: Command = {
  name: 'demo',
  summary: 'runs everything needed to try gatehouse on this machine, with instructions',
  usage: ['gatehouse demo [--folder FOLDER]', 'npm start'],
  options: {
    folder: { value: 'FOLDER', help: 'folder for its files (default: .gatehouse)' },
    set: CONFIG_OPTIONS.set,
  },
  notes: [
    'A second start reuses the files. Delete the folder to start over.',
    'Ports: --set listen.port=8444 and --set admin.port=9444; 0 picks a free one. They are written to gatehouse.yaml.',
    'While a demo runs, another one needs another --folder and other ports.',
  ],
  async run(context) {
    context.stderr(`gatehouse ${readPackageVersion()}: preparing the demo …\n`);
    const folder = resolve(context.cwd, context.option('folder') ?? '.gatehouse');
    const unlock = lockDemoFolder(folder);
    try {
      const demoFolder = await prepareDemoFolder(folder, API_PORT, Date.now() / 1_000);
      const stopped = waitForSignal();
      const api = await openDemoApi(API_PORT);
      try {
        return await runDemo(context, demoFolder, api, stopped);
      } finally {
        await api.close();
      }
    } finally {
      unlock();
    }
  },
};

/** Serves until `stopped` resolves. */
async function runDemo(
  context: CommandContext,
  demoFolder: DemoFolder,
  api: DemoApi,
  stopped: Promise<void>,
): Promise<number> {
  const freePorts = { listen: await findFreePort(), admin: await findFreePort() };
  const load = (port?: number): LoadedConfig | InvalidConfig => loadDemo(context, demoFolder, api, freePorts, port);
  const loaded = load();
  if (!loaded.ok) {
    context.stderr(formatProblems(loaded, getErrorColumns(context)));
    return EXIT.configuration;
  }
  const { settings } = loaded;
  await writePorts(settings, demoFolder.configuration);
  const sink = createStdoutSink();
  const log = createLog(settings, context, sink.write);
  const opening = openGateway({ settings, log });
  // Another listen.port applies after a restart: until then, publicUrl keeps the port that is in use.
  const reload = (): LoadedConfig | InvalidConfig => load(settings.listen.port);
  const reloader = new Reloader({ load: reload, gateway: opening, settings, files: loaded.files, log });
  try {
    const gateway = await opening;
    sink.flush();
    context.stdout(renderWalkthrough(settings, demoFolder, api));
    await stopped;
    reloader.close();
    await gateway.drain();
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    const exitCode = reportStartFailure(context, error.problems);
    if (error.problems.some((problem) => /^(?:listen|admin)\.port: /.test(problem)))
      context.stderr('  for other ports: gatehouse demo --set listen.port=8444 --set admin.port=9444\n');
    return exitCode;
  } finally {
    reloader.close();
    sink.flush();
  }
  context.stdout('gatehouse has stopped.\n');
  return EXIT.ok;
}

/**
 * Writes the ports into the configuration file, where other commands read them: `gatehouse grants` must not send the admin token
 * to another program on the default port. Not if they are in use: then the demo does not start.
 */
async function writePorts({ listen, admin }: Settings, file: string): Promise<void> {
  for (const { host, port } of [listen, admin]) if (!(await isFreePort(host, port))) return;
  const text = readFileSync(file, 'utf8');
  const replaced = replacePorts(text, { listen: listen.port, admin: admin.port });
  if (replaced !== text) writePrivateFile(file, replaced);
}

/** Resolves at the first signal; a second one exits at once. */
const waitForSignal = (): Promise<void> =>
  new Promise((resolve) =>
    onStopSignal(
      () => resolve(),
      () => process.exit(1),
    ),
  );

/**
 * The settings of the file, with values derived from the ports: publicUrl gets the port of the listener, and the upstream is
 * the demo API unless the file names another one.
 */
function loadDemo(
  context: CommandContext,
  demoFolder: DemoFolder,
  api: DemoApi,
  freePorts: DemoPorts,
  publicPort?: number,
): LoadedConfig | InvalidConfig {
  const read = (derived: readonly string[]): LoadedConfig | InvalidConfig =>
    loadSettings({
      file: demoFolder.configuration,
      env: context.env,
      overrides: [...context.options('set'), ...derived],
      cwd: context.cwd,
    });
  const first = read([]);
  if (!first.ok) return first;
  const { settings } = first;
  const [listenPort, adminPort] = [settings.listen.port || freePorts.listen, settings.admin.port || freePorts.admin];
  return read([
    `listen.port=${listenPort}`,
    `admin.port=${adminPort}`,
    ...(new URL(settings.publicUrl).hostname === 'localhost'
      ? [`publicUrl=https://localhost:${publicPort ?? listenPort}`]
      : []),
    ...(isDemoApi(settings.upstreams) ? [`upstreams.default.url=http://127.0.0.1:${api.port}`] : []),
    // The demo log shows refused requests only.
    ...(usesDemoLog(settings) ? ['log.access.enabled=true'] : []),
  ]);
}

const isDemoApi = (upstreams: Settings['upstreams']): boolean => upstreams['default']?.url === API_URL;

const usesDemoLog = ({ log: { level, format } }: Settings): boolean => format !== 'json' && level !== 'debug';

/** A short log beside the walkthrough; the normal one with `log.format: json` or `log.level: debug`. */
function createLog(settings: Settings, context: CommandContext, write: (line: string) => void): Logger {
  if (!usesDemoLog(settings)) return createLogger({ ...settings.log, ...getLogFormat(settings.log, context), write });
  const names = new Map<string, string>(
    Object.values(settings.directories).flatMap(({ label, users }) =>
      users.map(({ id, name }) => [`${label}:${id}`, name] as const),
    ),
  );
  return createDemoLog(write, (identity) => names.get(identity) ?? identity);
}
