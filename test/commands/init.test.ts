import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { expect, onTestFinished, test } from 'vitest';
import { parse as parseYaml } from 'yaml';
import { run } from '../../src/commands/run.ts';
import { loadSettings } from '../../src/config/load.ts';
import type { SettingsInput } from '../../src/config/schema.ts';
import { runCommand } from '../support/command-in-process.ts';
import type { CommandResult } from '../support/command-line.ts';
import { testFolder } from '../support/configuration.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';
import { createHttpsClient } from '../support/https-client.ts';
import { freePort } from '../support/ports.ts';
import { startRedis } from '../support/redis-server.ts';
import { startServe } from '../support/serve-process.ts';
import { startUpstream } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { chooseVariants } from '../support/variants.ts';

interface Written {
  readonly file: string;
  readonly user?: string;
  readonly password?: string;
  readonly next: readonly string[];
}

async function init(cwd: string, ...args: readonly string[]): Promise<Written> {
  const { code, stdout, stderr } = await runCommand(['init', ...args, '--output', 'json'], { cwd });
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return JSON.parse(stdout) as Written;
}

/** The arguments of a printed command, which has no quoted words here. */
const parse = (command: string): string[] => {
  const [program, ...args] = command.split(' ');
  expect(program).toBe('gatehouse');
  return args;
};

/** Runs the printed commands up to `gatehouse serve`. */
async function prepare(cwd: string, { next }: Written): Promise<CommandResult | undefined> {
  let last: CommandResult | undefined;
  for (const command of next.slice(0, -2)) {
    last = await runCommand(parse(command), { cwd });
    expect([command, last.code, last.stderr]).toEqual([command, 0, '']);
  }
  expect(parse(next.at(-3) ?? '')[0]).toBe('check');
  expect(parse(next.at(-2) ?? '')[0]).toBe('serve');
  return last;
}

const COMBINATIONS = [
  ['--store', 'embedded'],
  ['--store', 'redis'],
].flatMap((store) =>
  [
    ['--tls', 'here'],
    ['--tls', 'proxy'],
  ].flatMap((tls) =>
    [
      ['--sign-in', 'certificate'],
      ['--sign-in', 'password'],
      ['--sign-in', 'password', '--client-type', 'code'],
      ['--sign-in', 'password', '--client-type', 'mcp'],
    ]
      .filter((signIn) => tls[1] === 'here' || signIn[1] !== 'certificate')
      .map((signIn) => [...store, ...tls, ...signIn]),
  ),
);

// One with certificates, and one with passwords on Redis.
const TESTED = chooseVariants(COMBINATIONS, [COMBINATIONS[0] ?? [], COMBINATIONS.at(-1) ?? []]);

test.each(TESTED.map((args) => ({ args })))(
  'check accepts what init writes for $args, without warnings, after the printed steps',
  async ({ args }) => {
    for (const url of ['https://localhost:8443', 'https://api.example.test']) {
      const cwd = testFolder();
      const written = await init(cwd, '--public-url', url, '--upstream', 'http://127.0.0.1:9000', ...args);
      expect(statSync(written.file).mode & 0o777).toBe(0o600);
      const checked = await prepare(cwd, written);
      expect(checked?.stdout).toContain(`${written.file}: valid\n`);
    }
  },
);

test('there is no combination that is not tested', async () => {
  const { command } = await import('../../src/commands/init.ts');
  const choices = Object.values(command.options).flatMap(({ value = '' }) =>
    value.includes('|') ? value.split('|') : [],
  );
  expect(choices.toSorted()).toEqual(
    'here proxy certificate password embedded redis device code mcp'.split(' ').toSorted(),
  );
  expect(COMBINATIONS).toHaveLength(14);
});

async function startApi() {
  const upstream = await startUpstream((request, response) =>
    response.end(`${request.method} ${request.url} by ${String(request.headers['x-forwarded-client-id'])}`),
  );
  onTestFinished(() => upstream.close());
  return `http://127.0.0.1:${upstream.port}`;
}

/** Starts what init wrote, and returns the arguments of the printed sign-in. */
async function serve(cwd: string, written: Written): Promise<string[]> {
  await prepare(cwd, written);
  const server = await startServe({ path: cwd }, { set: ['admin.port=0'] });
  onTestFinished(() => server.kill());
  return parse(written.next.at(-1) ?? '');
}

async function expectForwarded(cwd: string, port: number, env: Readonly<Record<string, string>>): Promise<void> {
  const { stdout: token } = await runCommand(['token'], { cwd, env });
  const https = createHttpsClient({ port, ca: readFileSync(join(cwd, 'pki/ca.pem'), 'utf8') });
  onTestFinished(() => https.close());
  const authorization = `Bearer ${token.trim()}`;
  expect(await https.request({ path: '/orders/7', headers: { authorization } })).toMatchObject({
    status: 200,
    text: 'GET /orders/7 by my-client',
  });
  // The printed sign-in asks for api:read.
  expect(await https.request({ method: 'DELETE', path: '/orders/7', headers: { authorization } })).toMatchObject({
    status: 403,
  });
  expect(await https.request({ path: '/orders/7' })).toMatchObject({ status: 401 });
}

test('a gateway that signs in with certificates forwards a request', async () => {
  const [cwd, port] = [testFolder(), await freePort()];
  const env = { GATEHOUSE_HOME: join(cwd, 'home') };
  const login = await serve(
    cwd,
    await init(cwd, '--public-url', `https://localhost:${port}`, '--upstream', await startApi()),
  );
  expect(await runCommand(login, { cwd, env })).toMatchObject({ code: 0, stderr: '' });
  await expectForwarded(cwd, port, env);
});

test.each(chooseVariants(['Redis'], []))(
  'a gateway on %s forwards a request after a user has confirmed with the printed password',
  async () => {
    const [cwd, port, redis] = [testFolder(), await freePort(), await startRedis()];
    onTestFinished(() => redis.stop());
    const env = { GATEHOUSE_HOME: join(cwd, 'home') };
    const base = ['--public-url', `https://localhost:${port}`, '--upstream', await startApi()];
    const written = await init(cwd, ...base, '--sign-in', 'password', '--store', 'redis', '--redis-url', redis.url);
    const { user = '', password = '' } = written;
    const login = await serve(cwd, written);
    let shown = '';
    const show = (text: string): void => void (shown += text);
    const signingIn = runCommand(login, { cwd, env, stdout: show, stderr: show });
    const page = await until('the URL is shown', () => /https:\S+user_code=\S+/.exec(shown)?.[0]);
    const agent = createAgent({ ca: readFileSync(join(cwd, 'pki/ca.pem'), 'utf8') });
    onTestFinished(() => agent.destroy());
    const browser = new FormBrowser({ agent });
    await browser.open(page);
    await browser.submit('/device');
    expect((await browser.submit('/sign-in', { user_name: user, password: `${password}x` })).text).not.toContain(
      '/approve',
    );
    await browser.submit('/sign-in', { user_name: user, password });
    await browser.submit('/approve');
    expect((await signingIn).code).toBe(0);
    await expectForwarded(cwd, port, env);
  },
);

test('an agent of the Model Context Protocol gets one scope for one path, and init prints its address', async () => {
  const args = ['init', '--yes', '--sign-in', 'password', '--client-type', 'mcp', '--client', 'my-agent'];
  const cwd = testFolder();
  const { code, stdout } = await runCommand(args, { cwd });
  expect(code).toBe(0);
  expect(stdout).toMatch(/--scope mcp:use /);
  expect(stdout).toMatch(/\nAgents connect to https:\/\/localhost:8443\/mcp with the client ID my-agent\.\n$/);
  const written = parseYaml(readFileSync(join(cwd, 'gatehouse.yaml'), 'utf8')) as SettingsInput;
  expect(written.integrations).toMatchObject([{ clientId: 'my-agent', scope: 'mcp:use' }]);
  expect(written.routes).toEqual([{ path: '/mcp', requires: 'mcp:use' }]);
});

test('the next steps of npx gatehouse init run gatehouse with npx', async () => {
  const args = ['init', '--yes', '--store', 'redis', '--output', 'json'];
  const { stdout } = await runCommand(args, { cwd: testFolder(), env: { npm_command: 'exec' } });
  const { next } = JSON.parse(stdout) as Written;
  expect(next.map((step) => step.split(' ').slice(0, 3).join(' '))).toEqual(
    ['dev-ca', 'keys', 'check', 'serve', 'login'].map((name) => `npx gatehouse ${name}`),
  );
});

test('an existing file is not overwritten, and is refused before any question', async () => {
  const cwd = testFolder();
  writeFileSync(join(cwd, 'gatehouse.yaml'), 'precious\n');
  const { code, stdout, stderr } = await runCommand(['init', '--yes'], { cwd });
  expect({ code, stdout }).toEqual({ code: 73, stdout: '' });
  expect(stderr).toMatch(/^gatehouse: gatehouse\.yaml exists already, and nothing is overwritten; [^\n]+\n$/);
  expect(readFileSync(join(cwd, 'gatehouse.yaml'), 'utf8')).toBe('precious\n');
  expect((await init(cwd, '--yes', 'conf/other.yaml')).next[0]).toBe('gatehouse dev-ca --client my-client conf/pki');
});

test.each([
  [[], /standard input is not a terminal, so --public-url and --upstream must be given, or --yes/],
  [['--upstream', 'http://127.0.0.1:1'], /so --public-url must be given/],
  [['--yes', '--public-url', 'http://localhost:8443'], /--public-url must be a URL that begins with https:/],
  [['--yes', '--public-url', 'https://a.example.test/api'], /--public-url must be a scheme, a host/],
  [['--yes', '--upstream', 'http://u:p@127.0.0.1'], /--upstream must not contain a user name or password/],
  [['--yes', '--upstream', 'localhost:9000'], /--upstream must be a URL/],
  [['--yes', '--store', 'postgres'], /--store must be embedded or redis/],
  [['--yes', '--tls', 'proxy', '--sign-in', 'certificate'], /--sign-in certificate needs --tls here/],
  [['--yes', '--redis-url', 'redis://127.0.0.1'], /--redis-url needs --store redis\n/],
  [['--yes', '--user', 'alice'], /--user needs --sign-in password\n/],
  [['--yes', '--sign-in', 'password', '--user', 'a b'], /--user must be a name/],
  [
    ['--yes', '--store', 'redis', '--redis-url', 'redis://:secret@127.0.0.1'],
    /--redis-url must not contain a password/,
  ],
  [['--yes', '--client', 'a: b'], /--client must be/],
  [['--yes', '--admin-port', '0'], /--admin-port must be a port from 1 to 65535/],
  [['--yes', '--admin-port', '65536'], /--admin-port must be a port from 1 to 65535/],
  [['--yes', '--upstream', 'http://127.0.0.1/$HOME'], /--upstream must be printable ASCII/],
  [['--yes', '--client', 'a\nlisten: {}'], /--client must be/],
])('%j is a usage error, and nothing is written', async (args, words) => {
  const cwd = testFolder();
  const { code, stdout, stderr } = await runCommand(['init', ...args], { cwd });
  expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
  expect(stderr).toMatch(words);
  expect(stderr).toMatch(/^gatehouse init: [^\n]+\n$/);
  expect(stderr).not.toContain('secret');
  expect(readdirSync(cwd)).toEqual([]);
});

test('the user who signs in with a password has exactly the name that was given', async () => {
  const { file } = await init(testFolder(), '--yes', '--sign-in', 'password', '--user', 'eve@example.com');
  const loaded = loadSettings({ file, env: {} });
  expect(loaded.ok && loaded.settings.directories['people']?.users[0]?.name).toBe('eve@example.com');
});

test('a folder with spaces and quotes is printed so that a shell reads it', async () => {
  const cwd = testFolder();
  const folder = `my "files" #1: it's`;
  const { next } = await init(cwd, '--yes', `${folder}/gatehouse.yaml`);
  const printed = spawnSync('sh', ['-c', `gatehouse() { printf '%s\\n' "$@"; }; ${next[0]}`], {
    encoding: 'utf8',
  });
  expect(printed.stdout.split('\n')).toEqual(['dev-ca', '--client', 'my-client', `${folder}/pki`, '']);
});

test.each([
  ['nightly-export', 'nightly-export'],
  // The CA, the server and keys have files of these names.
  ['server', 'server-client'],
  ['crl', 'crl-client'],
  [`${'a'.repeat(60)}-key`, `${'a'.repeat(57)}-client`],
])('the printed steps create and use a certificate for the client %s', async (client, name) => {
  const cwd = testFolder();
  const written = await init(cwd, '--yes', '--client', client);
  expect(written.next[0]).toBe(`gatehouse dev-ca --client ${name} pki`);
  await prepare(cwd, written);
  const login = parse(written.next.at(-1) ?? '');
  expect(login.slice(0, 5)).toEqual(['login', '--url', 'https://localhost:8443', '--client', client]);
  expect(login.slice(-4)).toEqual(['--cert', `pki/${name}.pem`, '--key', `pki/${name}-key.pem`]);
  expect(existsSync(join(cwd, `pki/${name}-key.pem`))).toBe(true);
});

test.each([
  [[], 9443],
  [['--admin-port', '9555'], 9555],
  // The default is the port of publicUrl here.
  [['--public-url', 'https://localhost:9443'], 9444],
])('with %j the admin listener uses port %i', async (args, port) => {
  const { file } = await init(testFolder(), '--yes', ...args);
  const loaded = loadSettings({ file, env: {} });
  expect(loaded.ok && loaded.settings.admin.port).toBe(port);
});

test('an admin port that the public listener uses is refused, and nothing is written', async () => {
  const cwd = testFolder();
  const { code, stderr } = await runCommand(['init', '--yes', '--admin-port', '8443'], { cwd });
  expect(code).toBe(78);
  expect(stderr).toContain('admin.port  is 8443, which is also listen.port');
  expect(readdirSync(cwd)).toEqual([]);
});

/** Runs init as if standard input were a terminal. */
async function answer(cwd: string, lines: readonly string[], ...args: readonly string[]) {
  let [stdout, stderr] = ['', ''];
  const stdin = Object.assign(Readable.from(lines.map((line) => `${line}\n`)), { isTTY: true });
  const code = await run(['init', ...args], {
    stdout: (text) => void (stdout += text),
    stderr: (text) => void (stderr += text),
    stdin,
    env: {},
    cwd,
    execArgv: [],
  });
  return { code, stdout, stderr };
}

test('on a terminal every question that applies is asked, and a wrong answer is asked again', async () => {
  const cwd = testFolder();
  const { code, stdout, stderr } = await answer(
    cwd,
    ['localhost', 'https://localhost:8443', '', '', 'magic', 'password', 'carol', '', 'code'],
    '--client',
    'my-app',
  );
  expect({ code, stderr }).toMatchObject({ code: 0 });
  expect(stderr).toContain('[https://localhost:8443] > This must be a URL that begins with https://.\n');
  expect(stderr).toContain('This must be certificate or password.\n');
  expect(stderr).not.toContain('client_id');
  expect(stdout).toMatch(
    /^Wrote gatehouse\.yaml\.\nThe password for carol is \S+\. It is not shown again\.\n\nNext:\n1\. /,
  );
  const loaded = loadSettings({ file: join(cwd, 'gatehouse.yaml'), env: {} });
  expect(loaded.ok && loaded.settings.integrations[0]).toMatchObject({
    clientId: 'my-app',
    grants: ['code', 'device'],
    redirectUris: ['http://127.0.0.1/callback', 'http://localhost/callback'],
  });
  expect(readFileSync(join(cwd, 'gatehouse.yaml'), 'utf8')).not.toContain(/is (\S+)\. It/.exec(stdout)?.[1]);
});

test('the end of the input cancels, and nothing is written', async () => {
  const cwd = testFolder();
  const { code, stderr } = await answer(cwd, ['']);
  expect(code).toBe(64);
  expect(stderr).toMatch(/gatehouse: cancelled; nothing was written\n$/);
  expect(readdirSync(cwd)).toEqual([]);
});

const SCRIPT = '/usr/bin/script';
const ENTRY = fileURLToPath(new URL('../../src/main.ts', import.meta.url));

test.runIf(existsSync(SCRIPT))('the process asks on a real terminal, and ends after the last answer', async () => {
  const cwd = testFolder();
  const program = `'${process.execPath}' '${ENTRY}' init`;
  const { stdout, status } = spawnSync(SCRIPT, ['-qec', program, '/dev/null'], {
    cwd,
    input: '\n'.repeat(20),
    encoding: 'utf8',
    timeout: 60_000,
  });
  expect(stdout).toContain('Wrote gatehouse.yaml.');
  expect(status).toBe(0);
  expect(readdirSync(cwd)).toEqual(['gatehouse.yaml']);
});
