import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { formatProblems, type InvalidConfig, type LoadedConfig, loadSettings } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { PACKAGE_ROOT } from '../lib/package-root.ts';
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
import { quoteForShell } from './quote.ts';
import { reportStartFailure } from './settings.ts';
import { onStopSignal } from './stop-signals.ts';
import { getLogFormat, getProblemStyle } from './style.ts';

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
    'While a demo runs, another one uses .gatehouse-2 and free ports, unless you choose them.',
  ],
  async run(context) {
    context.stderr(`gatehouse ${readPackageVersion()}: preparing the demo …\n`);
    const chosen = context.option('folder');
    const locked = lockDemoFolder(resolve(context.cwd, chosen ?? '.gatehouse'), chosen !== undefined);
    try {
      const demoFolder = await prepareDemoFolder(locked.folder, API_PORT, Date.now() / 1_000);
      const stopped = waitForSignal();
      const api = await openDemoApi(API_PORT);
      try {
        return await runDemo({ context, demoFolder, api, stopped, usesFreePorts: locked.isAlternative });
      } finally {
        await api.close();
      }
    } finally {
      locked.unlock();
    }
  },
};

interface DemoOptions {
  readonly context: CommandContext;
  readonly demoFolder: DemoFolder;
  readonly api: DemoApi;
  /** Resolves when the demo is to end. */
  readonly stopped: Promise<void>;
  /** Instead of the default ports, which another demo uses. */
  readonly usesFreePorts: boolean;
}

async function runDemo(options: DemoOptions): Promise<number> {
  const { context, demoFolder, api, stopped } = options;
  const freePorts = { listen: await findFreePort(), admin: await findFreePort() };
  await writePorts(options, freePorts);
  const load = (): LoadedConfig | InvalidConfig => loadDemo(options, freePorts);
  const loaded = load();
  if (!loaded.ok) {
    context.stderr(formatProblems(loaded, getProblemStyle(context)));
    return EXIT.configuration;
  }
  const { settings } = loaded;
  const sink = createStdoutSink();
  const log = createLog(settings, context, sink.write);
  const opening = openGateway({ settings, log });
  const reloader = new Reloader({ load, gateway: opening, settings, files: loaded.files, log });
  try {
    const gateway = await opening;
    sink.flush();
    context.stdout(renderWalkthrough(createWalkthroughOptions(settings, demoFolder, api)));
    await stopped;
    reloader.close();
    await gateway.drain();
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    return reportStartFailure(context, error.problems, (problem) => suggestPort(settings, context.env, problem));
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
async function writePorts(options: DemoOptions, freePorts: DemoPorts): Promise<void> {
  const { context, demoFolder, usesFreePorts } = options;
  const loaded = loadDemo(options, freePorts);
  if (!loaded.ok) return;
  const choose = async (listener: keyof DemoPorts): Promise<number | undefined> => {
    const { host, port } = loaded.settings[listener];
    if (await isFreePort(host, port)) return port;
    const isChosen =
      context.options('set').some((setting) => setting.startsWith(`${listener}.port=`)) ||
      context.env[PORT_VARIABLES[listener]] !== undefined;
    // The free port of an earlier run may be in use by now.
    return usesFreePorts && !isChosen ? freePorts[listener] : undefined;
  };
  const [listen, admin] = [await choose('listen'), await choose('admin')];
  if (listen === undefined || admin === undefined) return;
  const text = readFileSync(demoFolder.configuration, 'utf8');
  const replaced = replacePorts(text, { listen, admin });
  if (replaced !== text) writePrivateFile(demoFolder.configuration, replaced);
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
  { context, demoFolder, api, usesFreePorts }: DemoOptions,
  freePorts: DemoPorts,
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
  const choosePort = (listener: keyof typeof DEFAULT_PORTS): number => {
    const { port } = settings[listener];
    const isTaken = usesFreePorts && port === DEFAULT_PORTS[listener];
    return port === 0 || isTaken ? freePorts[listener] : port;
  };
  const ports = { listen: choosePort('listen'), admin: choosePort('admin') };
  const url = new URL(settings.publicUrl);
  const derivedOverrides = [
    ...(['listen', 'admin'] as const).flatMap((listener) =>
      ports[listener] === settings[listener].port ? [] : [`${listener}.port=${ports[listener]}`],
    ),
    ...(url.hostname === 'localhost' && url.port !== String(ports.listen)
      ? [`publicUrl=https://localhost:${ports.listen}`]
      : []),
    ...(isDemoApi(settings.upstreams) ? [`upstreams.default.url=http://127.0.0.1:${api.port}`] : []),
    // The demo log shows refused requests only.
    ...(usesDemoLog(settings) ? ['log.access.enabled=true'] : []),
  ];
  return derivedOverrides.length === 0 ? first : read(derivedOverrides);
}

const DEFAULT_PORTS = { listen: 8_443, admin: 9_443 } as const;

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

const PORT_VARIABLES = { listen: 'GATEHOUSE_LISTEN__PORT', admin: 'GATEHOUSE_ADMIN__PORT' } as const;

/** A command that avoids a port in use. */
function suggestPort(settings: Settings, env: CommandContext['env'], problem: string): string | undefined {
  const setting = /^(listen|admin)\.port: /.exec(problem)?.[1] as keyof typeof PORT_VARIABLES | undefined;
  if (setting === undefined) return undefined;
  const port = settings[setting].port < 1_024 ? 8_443 : settings[setting].port + 1;
  const other = setting === 'listen' ? 'admin' : 'listen';
  // Most likely another demo uses both.
  const both = settings[other].port === DEFAULT_PORTS[other] ? ` --set ${other}.port=${DEFAULT_PORTS[other] + 1}` : '';
  const { command: name, separator } = getStartCommand(env);
  return `such as: ${name}${separator} --set ${setting}.port=${port}${both}   or   ${PORT_VARIABLES[setting]}=${port} ${name}`;
}

/** As the demo was started; npm sets these variables. */
function getStartCommand(env: CommandContext['env']): {
  readonly command: string;
  readonly separator: string;
} {
  if (env['npm_lifecycle_event'] === 'start') return { command: 'npm start', separator: ' --' };
  return { command: `${env['npm_command'] === 'exec' ? 'npx ' : ''}gatehouse demo`, separator: '' };
}

function createWalkthroughOptions(settings: Settings, demoFolder: DemoFolder, api: DemoApi) {
  const { publicUrl, admin, upstreams } = settings;
  const hasOwnUpstream = upstreams['default']?.url !== `http://127.0.0.1:${api.port}`;
  return {
    url: publicUrl,
    adminUrl: `http://${admin.host}:${admin.port}`,
    apiUrl: hasOwnUpstream ? undefined : `http://127.0.0.1:${api.port}`,
    folder: demoFolder.folder,
    hasCurl: spawnSync('curl', ['--version'], { stdio: 'ignore', timeout: 5_000 }).status === 0,
    program: getProgramCommand(demoFolder.folder),
    password: demoFolder.passwords['bob'],
    renewed: demoFolder.isNew ? '' : demoFolder.renewed.join(', '),
  };
}

/** `npx gatehouse` works in folders below the installation; elsewhere the absolute path of the program is needed. */
function getProgramCommand(folder: string): string {
  const relativePath = relative(fileURLToPath(PACKAGE_ROOT), folder);
  if (relativePath !== '..' && !relativePath.startsWith(`..${sep}`)) return 'npx gatehouse';
  return `${quoteForShell(process.execPath)} ${quoteForShell(resolve(process.argv[1] ?? ''))}`;
}
