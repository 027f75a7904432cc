import { spawnSync } from 'node:child_process';
import { createServer } from 'node:net';
import { dirname, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Loaded, loadSettings, type Problems, writeProblems } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { openGateway } from '../gateway/gateway.ts';
import { createReloader } from '../gateway/reloader.ts';
import { StartError } from '../gateway/start-error.ts';
import { createLogger, type Logger, stdoutSink } from '../observability/logger.ts';
import { CONFIG_OPTIONS, type Command, type Context, EXIT } from './command.ts';
import { type DemoApi, openDemoApi } from './demo-api.ts';
import { type DemoFolder, prepareDemoFolder } from './demo-folder.ts';
import { demoLog } from './demo-log.ts';
import { quote, story } from './demo-story.ts';
import { packageVersion } from './version.ts';

/** Where the demo API listens when nothing else does. */
const API_PORT = 9080;
const API_URL = `http://127.0.0.1:${API_PORT}`;

export const command: Command = {
  name: 'demo',
  summary: 'runs everything needed to try it on this machine, and tells how to',
  usage: ['gatehouse demo [--folder FOLDER]', 'npm start'],
  options: {
    folder: { type: 'string', value: 'FOLDER', help: 'where its files are kept (default: .gatehouse)' },
    set: CONFIG_OPTIONS.set,
  },
  notes: [
    'A second start uses what the first one made. Delete the folder to begin again.',
    'Ports: --set listen.port=8444 and --set admin.port=9444; 0 takes a free one.',
  ],
  async run(context) {
    context.stderr(`gatehouse ${packageVersion()}: preparing the demo …\n`);
    const folder = resolve(context.cwd, context.option('folder') ?? '.gatehouse');
    const made = await prepareDemoFolder(folder, { api: API_PORT }, Date.now() / 1_000);
    const stop = onSignal();
    const api = await openDemoApi(API_PORT);
    try {
      return await runDemo(context, made, api, stop);
    } finally {
      await api.close();
    }
  },
};

async function runDemo(
  context: Context,
  made: DemoFolder,
  api: DemoApi,
  stop: Promise<void>,
): Promise<number> {
  const free = { listen: await freePort(), admin: await freePort() };
  const load = (): Loaded | Problems => loadDemo(context, made.configuration, api.port, free);
  const loaded = load();
  if (!loaded.ok) {
    context.stderr(writeProblems(loaded));
    return EXIT.configuration;
  }
  const { settings } = loaded;
  const sink = stdoutSink();
  const log = logFor(settings, sink.write);
  const opening = openGateway({ settings, log });
  const reloader = createReloader({ load, gateway: opening, settings, files: loaded.files, log });
  try {
    const gateway = await opening;
    sink.flush();
    context.stdout(story(factsOf(settings, made, api)));
    await stop;
    reloader.close();
    await gateway.drain();
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    return refuse(context, settings, error.problems);
  } finally {
    reloader.close();
    sink.flush();
  }
  context.stdout('gatehouse has ended.\n');
  return EXIT.ok;
}

/** The first Ctrl-C ends gently; a second one at once. */
function onSignal(): Promise<void> {
  return new Promise((resolve) => {
    let asked = false;
    for (const signal of ['SIGINT', 'SIGTERM'] as const)
      process.on(signal, () => {
        if (asked) process.exit(1);
        asked = true;
        resolve();
      });
  });
}

/**
 * The settings of the file, with what follows from the ports: the address clients use has the port that is
 * listened on, and the upstream is the demo API unless the file names another one.
 */
function loadDemo(
  context: Context,
  file: string,
  apiPort: number,
  free: { readonly listen: number; readonly admin: number },
): Loaded | Problems {
  const read = (more: readonly string[]): Loaded | Problems =>
    loadSettings({
      file,
      env: context.env,
      overrides: [...context.options('set'), ...more],
      cwd: context.cwd,
    });
  const first = read([]);
  if (!first.ok) return first;
  const { listen, admin, publicUrl, upstreams } = first.settings;
  const url = new URL(publicUrl);
  const port = listen.port === 0 ? free.listen : listen.port;
  const follows = [
    ...(listen.port === 0 ? [`listen.port=${port}`] : []),
    ...(admin.port === 0 ? [`admin.port=${free.admin}`] : []),
    ...(url.hostname === 'localhost' && url.port !== String(port)
      ? [`publicUrl=https://localhost:${port}`]
      : []),
    ...(isDemoApi(upstreams) ? [`upstreams.default.url=http://127.0.0.1:${apiPort}`] : []),
  ];
  return follows.length === 0 ? first : read(follows);
}

const isDemoApi = (upstreams: Settings['upstreams']): boolean => upstreams['default']?.url === API_URL;

const freePort = (): Promise<number> =>
  new Promise((resolve, reject) => {
    const probe = createServer().once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
    });
  });

/** Short lines beside the story; the usual log for whoever asks for it. */
function logFor(settings: Settings, write: (line: string) => void): Logger {
  const { level, format } = settings.log;
  if (format === 'json' || level === 'debug') return createLogger({ level, format, write });
  const names = new Map<string, string>(
    Object.values(settings.directories).flatMap(({ label, users }) =>
      users.map(({ id, name }) => [`${label}:${id}`, name] as const),
    ),
  );
  return demoLog(write, (identity) => names.get(identity) ?? identity);
}

const VARIABLES = { listen: 'GATEHOUSE_LISTEN__PORT', admin: 'GATEHOUSE_ADMIN__PORT' } as const;

/** Cannot start: what is wrong, and for a port that is taken the words to paste. */
function refuse(context: Context, settings: Settings, problems: readonly string[]): number {
  context.stderr(
    `gatehouse: cannot start, ${problems.length === 1 ? 'one problem' : `${problems.length} problems`}\n`,
  );
  for (const problem of problems) {
    context.stderr(`  ${problem}\n`);
    const setting = /^(listen|admin)\.port: /.exec(problem)?.[1] as keyof typeof VARIABLES | undefined;
    if (setting === undefined) continue;
    const other = settings[setting].port < 1_024 ? 8_443 : settings[setting].port + 1;
    context.stderr(
      `  such as: npm start -- --set ${setting}.port=${other}   or   ${VARIABLES[setting]}=${other} npm start\n`,
    );
  }
  return EXIT.configuration;
}

function factsOf(settings: Settings, made: DemoFolder, api: DemoApi) {
  const { publicUrl, admin, upstreams } = settings;
  const own = upstreams['default']?.url !== `http://127.0.0.1:${api.port}`;
  return {
    url: publicUrl,
    adminUrl: `http://${admin.host}:${admin.port}`,
    apiUrl: own ? undefined : `http://127.0.0.1:${api.port}`,
    folder: made.folder,
    curl: spawnSync('curl', ['--version'], { stdio: 'ignore', timeout: 5_000 }).status === 0,
    program: programFrom(made.folder),
    password: made.passwords['bob'],
    renewed: made.fresh ? '' : made.renewed.join(', '),
  };
}

/** `npx gatehouse` finds us from folders below the installation; from elsewhere the whole path does. */
function programFrom(folder: string): string {
  const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
  const way = relative(root, folder);
  if (way !== '..' && !way.startsWith(`..${sep}`)) return 'npx gatehouse';
  return `${quote(process.execPath)} ${quote(resolve(process.argv[1] ?? ''))}`;
}
