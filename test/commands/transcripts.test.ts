import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { COMMAND_GROUPS, COMMANDS } from '../../src/commands/registry.ts';
import { runCommand } from '../support/command-in-process.ts';
import { runGatehouse } from '../support/command-line.ts';
import { MINIMAL_CONFIG, SAMPLE, testFolder } from '../support/configuration.ts';

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  readonly version: string;
};

const ENTRY = fileURLToPath(new URL('../../src/main.ts', import.meta.url));

/** Writes a configuration file in a new folder. */
function writeConfiguration(text: string): string {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(file, text);
  return file;
}

/** One line, no stack trace. */
const ONE_LINE = /^[^\n]+\n$/;

const SUBCOMMANDS = (await Promise.all(Object.values(COMMANDS).map((load) => load()))).flatMap(({ command }) =>
  Object.entries(command.subcommands ?? {}).map(([name, of]) => ({ command, name, of })),
);

describe('version and help', () => {
  test('gatehouse version', async () => {
    // As a process, to test its arguments, exit code and streams.
    const { code, stdout, stderr } = await runGatehouse(['version']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(new RegExp(`^gatehouse ${version} \\(Node 26\\.`));
    expect((await runCommand(['--version'])).stdout).toBe(stdout);
    expect(JSON.parse((await runCommand(['version', '--output', 'json'])).stdout)).toMatchObject({
      gatehouse: version,
    });
  });

  test('gatehouse help names every command and every exit code', async () => {
    const { code, stdout } = await runCommand(['help']);
    expect(code).toBe(0);
    expect(stdout.split('\n').filter((line) => line.length > 80)).toEqual([]);
    for (const name of Object.keys(COMMANDS)) expect(stdout).toMatch(new RegExp(`^  ${name} +\\S`, 'm'));
    for (const exitCode of ['0', '64', '69', '70', '78'])
      expect(stdout).toMatch(new RegExp(`^ +${exitCode}  \\S`, 'm'));
  });

  test.each(Object.keys(COMMANDS))('gatehouse %s --help shows its usage', async (name) => {
    const { code, stdout, stderr } = await runCommand([name, '--help']);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toContain(`usage: gatehouse ${name}`);
    expect(stdout).toContain('--output text|json');
    expect(stdout.split('\n').filter((line) => line.length > 80)).toEqual([]);
    expect((await runCommand(['help', name])).stdout).toBe(stdout);
  });

  test.each(SUBCOMMANDS)(
    'gatehouse $command.name $name --help shows its usage and its options only',
    async ({ command, name, of }) => {
      const { code, stdout, stderr } = await runCommand([command.name, name, '--help']);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toContain(`usage: gatehouse ${command.name} ${name}`);
      expect(stdout.split('\n').filter((line) => line.length > 80)).toEqual([]);
      const shown = [...stdout.matchAll(/^ {2}(?:-\w, | {4})--([\w-]+)/gm)].map(([, option = '']) => option);
      expect(shown.toSorted()).toEqual([...of.options, 'help', 'output', 'trace'].toSorted());
      expect(Object.keys(command.options)).toEqual(expect.arrayContaining([...of.options]));
      expect((await runCommand(['help', command.name, name])).stdout).toBe(stdout);
      expect((await runCommand([command.name, '--help'])).stdout).toMatch(new RegExp(`^  ${name} +\\S`, 'm'));
    },
  );

  test('the commands are grouped by what they are for', async () => {
    const { stdout } = await runCommand(['help']);
    const groups = [...stdout.matchAll(/^(\S.*):\n((?: {2,}\S.*\n)+)/gm)].map(([, title]) => title);
    expect(groups).toEqual([...COMMAND_GROUPS.map(({ title }) => title), 'exit codes']);
  });

  test('the help of an option wraps and keeps its indentation', async () => {
    const { stdout } = await runCommand(['keys', '--help']);
    expect(stdout).toMatch(/^ {6}--keep DURATION {10,}rotate: how long [^\n]+\n {20,}\S[^\n]+\n {20,}\S/m);
    expect(stdout).toContain('gatehouse keys rotate FILE --config CONFIGURATION\n');
  });

  test('without a command the help is printed on standard error', async () => {
    const { code, stdout, stderr } = await runCommand([]);
    expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
    expect(stderr).toContain('usage: gatehouse COMMAND');
  });
});

describe('a usage error is one line on standard error and exit code 64', () => {
  test.each([
    [['chek'], /^gatehouse: unknown command "chek"; did you mean check\?/],
    [['constructor'], /^gatehouse: unknown command "constructor"/],
    [['--config', 'x'], /^gatehouse: the command comes before its options/],
    [['check', '--confg', 'x'], /^gatehouse check: unknown option --confg; did you mean --config\?/],
    [['check', '-x'], /^gatehouse check: unknown option -x; see gatehouse check --help/],
    [['check', '-config', 'x'], /^gatehouse check: write --config, with two dashes/],
    [['grants', 'revoke', '--identiy', 'x'], /^gatehouse grants: unknown option --identiy; did you mean --identity\?/],
    [['grants', 'list', '--yes'], /^gatehouse grants list: --yes is for revoke/],
    [['keys', 'list', 'x', '--keep', '1d'], /^gatehouse keys list: --keep is for rotate/],
    [['check', '--config'], /^gatehouse check: option (?:-c|--config) needs a value/],
    [['check', '--trace=1'], /^gatehouse check: option --trace takes no value/],
    [['check', 'a'], /^gatehouse check: unexpected argument "a"; usage: gatehouse check/],
    [['check', '--output', 'xml'], /^gatehouse check: --output must be text or json, not "xml"/],
    [['keys', 'new'], /^gatehouse keys: missing argument; usage: gatehouse keys new\|rotate\|list FILE/],
    [['keys', 'make', 'x'], /^gatehouse keys: expected new, rotate or list, not "make"\n/],
    [['keys', 'rotat', 'x'], /^gatehouse keys: expected new, rotate or list, not "rotat"; did you mean rotate\?/],
    [['keys', 'rotat', '--help'], /^gatehouse keys: expected new, .*; did you mean rotate\?/],
    [['keys', 'constructor', '--help'], /^gatehouse keys: expected new, rotate or list, not "constructor"/],
    [
      ['grants', 'revok', '--yes'],
      /^gatehouse grants: expected list, show or revoke, not "revok"; did you mean revoke\?/,
    ],
    [['help', 'chek'], /^gatehouse: unknown command "chek"; did you mean check\?/],
    [['keys', 'new', 'x', '--algorithm', 'RS256'], /^gatehouse keys: --algorithm must be EdDSA or ES256, not "RS256"/],
    [['sleep', 'long'], /^gatehouse sleep: N must be a number of seconds/],
    [['sleep', '3601'], /^gatehouse sleep: N must be a number of seconds/],
    [['drain', '3601'], /^gatehouse drain: N must be a number of seconds/],
    [['drain', '0', '--pid', '0'], /^gatehouse drain: --pid must be a process id/],
    [['health', '--url', 'nowhere'], /^gatehouse health: --url must be an http or https URL/],
    [['hash-password'], /^gatehouse hash-password: the password is empty/],
    [
      ['call', '-H', 'expect: 100-continue', 'http://127.0.0.1:1'],
      /^gatehouse call: -H expect: this header cannot be set/,
    ],
    [
      ['call', '-H', 'Keep-Alive: 5', 'http://127.0.0.1:1'],
      /^gatehouse call: -H Keep-Alive: this header cannot be set/,
    ],
    [['call', '-H', 'upgrade: h2c', 'http://127.0.0.1:1'], /^gatehouse call: -H upgrade: this header cannot be set/],
    [
      ['call', '-H', 'transfer-encoding: chunked', 'http://127.0.0.1:1'],
      /^gatehouse call: -H transfer-encoding: this header cannot be set/,
    ],
    [
      ['call', '-H', 'content-length: 7', '-d', 'äö', 'http://127.0.0.1:1'],
      /^gatehouse call: -H content-length: must be the length of the body, 4; omit it/,
    ],
    [
      ['call', '-H', 'content-length: 7', 'http://127.0.0.1:1'],
      /^gatehouse call: -H content-length: must be the length of the body, 0; omit it/,
    ],
    [
      ['call', '-H', 'connection: a b', 'http://127.0.0.1:1'],
      /^gatehouse call: -H connection: must be a list of connection options/,
    ],
    [
      ['keys', 'rotate', 'x', '--keep', 'long'],
      /^gatehouse keys: --keep must be a duration such as 5m or 90d, not "long"/,
    ],
  ])('gatehouse %j', async (args, words) => {
    const { code, stdout, stderr } = await runCommand(args);
    expect({ code, stdout }).toEqual({ code: 64, stdout: '' });
    expect(stderr).toMatch(words);
    expect(stderr).toMatch(ONE_LINE);
  });

  test('the process exits with that code', async () => {
    expect(await runGatehouse(['chek'])).toEqual({
      code: 64,
      stdout: '',
      stderr: 'gatehouse: unknown command "chek"; did you mean check?\n',
    });
  });
});

describe('gatehouse check', () => {
  test('a configuration with problems: all are reported, exit code 78', async () => {
    const file = writeConfiguration('listen: { prot: 1 }\nlog: { level: loud }\n');
    const { code, stdout, stderr } = await runCommand(['check', '-c', file]);
    expect({ code, stdout }).toEqual({ code: 78, stdout: '' });
    expect(stderr).toBe(
      [
        `gatehouse: 3 problems in ${file}`,
        '  listen.prot  is not a known setting; did you mean "port"? (line 1)',
        '  listen.tls   is missing; without it, set listen.behindTls: true and terminate TLS in front of gatehouse (line 1)',
        '  log.level    must be debug, info, warn or error, and is "loud" (line 2)',
        '',
      ].join('\n'),
    );
  });

  test('--output json', async () => {
    const file = writeConfiguration('listen: { behindTls: true, prot: 1 }\n');
    const { code, stdout, stderr } = await runCommand(['check', '-c', file, '--output', 'json']);
    expect({ code, stderr }).toEqual({ code: 78, stderr: '' });
    expect(JSON.parse(stdout)).toEqual({
      ok: false,
      configuration: file,
      problems: [{ path: 'listen.prot', message: 'is not a known setting; did you mean "port"?', line: 1 }],
      warnings: [],
      unchecked: [],
    });
  });

  test('a valid configuration: exit code 0, with warnings', async () => {
    const file = writeConfiguration(`${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f }]\n`);
    const { code, stdout, stderr } = await runCommand(['check', '--config', file]);
    expect(code).toBe(0);
    expect(stdout).toBe(`${file}: valid\n`);
    expect(stderr).toBe(
      'warning: integrations[0].access: is empty, so this integration cannot be used (line 2)\nwarning: routes: is empty, so every request is denied\n',
    );
  });

  test('GATEHOUSE_CONFIG names the file, environment variables and --set apply', async () => {
    const env = { GATEHOUSE_CONFIG: writeConfiguration(MINIMAL_CONFIG), GATEHOUSE_LISTEN__PORT: 'x' };
    expect((await runCommand(['check'], { env })).stderr).toContain('(from GATEHOUSE_LISTEN__PORT)');
    expect((await runCommand(['check', '--set', 'listen.port=1'], { env })).code).toBe(0);
  });

  test('a missing file is reported without a stack trace', async () => {
    const { code, stderr } = await runCommand(['check', '-c', 'nowhere.yaml'], { cwd: testFolder() });
    expect(code).toBe(78);
    expect(stderr).toMatch(/nowhere\.yaml does not exist/);
    expect(stderr).not.toMatch(/\bat .*:\d+/);
  });

  test('no secret of a configuration is printed', async () => {
    const secret = 'correct-horse-battery';
    const file = writeConfiguration(
      `${MINIMAL_CONFIG}directories: { a: { label: a, users: [{ id: 00ff00ff, name: x, passwordHash: ${secret} }] } }\nupstreams: { default: { url: "ftp://u:${secret}@h" } }\n`,
    );
    for (const output of ['text', 'json']) {
      const { code, stdout, stderr } = await runCommand(['check', '-c', file, '--output', output]);
      expect(code).toBe(78);
      expect(stdout + stderr).not.toContain(secret);
    }
  });
});

describe('gatehouse explain', () => {
  const explain = (...args: string[]) => runCommand(['explain', '-c', writeConfiguration(SAMPLE), ...args]);

  test('lists the rules that were tried, the one that matches, and the decision', async () => {
    const { code, stdout } = await explain('GET', '/reports/x', '--scope', 'files:read');
    expect(code).toBe(0);
    expect(stdout).toBe(
      [
        'GET /reports/x',
        '  routes[0] /health: the path differs',
        '  routes[1] /files/**: the path differs',
        '  routes[2] /reports/**: matches; it needs a token with reports:write',
        '  accepts tokens issued by gatehouse for https://localhost:8443',
        'rejected (403): the token lacks reports:write',
        '',
      ].join('\n'),
    );
  });

  test.each([
    [['GET', '/health'], /^forwarded without a token: /m],
    [['GET', '/files/a'], /^requires a token \(401 without one\): the rule requires files:read/m],
    [['GET', '/files/a', '--scope', 'files:read'], /^forwarded: /m],
    [['GET', '/files/a', '--scope', 'reports:read files:read'], /^forwarded: /m],
    [['GET', '/files/a', '--client', 'report-runner'], /^forwarded: /m],
    [
      ['POST', '/files/a', '--scope', 'files:read'],
      /^rejected \(404; 401 without a valid token issued by gatehouse\): no rule matches/m,
    ],
    [['GET', '/files/../health'], /^rejected \(400\): /m],
  ])('%j', async (args, words) => {
    expect((await explain(...args)).stdout).toMatch(words);
  });

  test('--output json', async () => {
    const { stdout } = await explain('GET', '/files/a', '--scope', 'files:read', '--output', 'json');
    expect(JSON.parse(stdout)).toMatchObject({
      verdict: 'allowed',
      rule: 'routes[1] /files/**',
      upstream: 'default',
      requirement: 'files:read',
    });
  });

  test('shows whose tokens the route accepts, and for which audiences', async () => {
    const file = writeConfiguration(
      `${MINIMAL_CONFIG}upstreams: { default: { url: "http://127.0.0.1:8080" } }
trustedIssuers: { corp: { issuer: "https://id.example.test", audience: [files-api, mail-api] } }
routes:
  - { path: /both/**, requires: any-token, issuers: [own, corp], audience: files-api }
  - { path: /own/**, requires: any-token }
  - { path: /open, public: true }
`,
    );
    const run = async (path: string, ...more: string[]): Promise<string> =>
      (await runCommand(['explain', '-c', file, 'GET', path, ...more])).stdout;
    const text = await run('/both/1');
    expect(text).toContain('  accepts tokens issued by gatehouse for files-api\n');
    expect(text).toContain(
      '  accepts tokens issued by corp (https://id.example.test) for files-api or mail-api; the route also requires files-api\n',
    );
    expect(await run('/open')).not.toContain('accepts');
    const publicUrl = 'https://localhost:8443';
    expect(JSON.parse(await run('/own/1', '--output', 'json'))).toMatchObject({
      accepts: [{ issuer: 'own', url: publicUrl, audiences: [publicUrl] }],
    });
    expect(JSON.parse(await run('/both/1', '--output', 'json'))).toMatchObject({
      accepts: [
        { issuer: 'own', audiences: ['files-api'] },
        {
          issuer: 'corp',
          url: 'https://id.example.test',
          audiences: ['files-api', 'mail-api'],
          routeAudiences: ['files-api'],
        },
      ],
    });
  });

  test('a scope or client that does not exist is a usage error', async () => {
    expect((await explain('GET', '/a', '--scope', ';;')).code).toBe(64);
    expect((await explain('GET', '/a', '--client', 'nobody')).code).toBe(64);
    expect((await explain('get', '/a')).code).toBe(64);
  });
});

describe('gatehouse keys', () => {
  test('rotate: new keys are used after five minutes, or after --publish-before', async () => {
    const cwd = testFolder();
    const rotate = async (...options: readonly string[]): Promise<number> => {
      await runCommand(['keys', 'new', 'keys.json'], { cwd });
      const args = ['keys', 'rotate', 'keys.json', ...options, '--output', 'json'];
      const { keys } = JSON.parse((await runCommand(args, { cwd })).stdout) as {
        readonly keys: readonly { readonly activeFrom: number }[];
      };
      rmSync(join(cwd, 'keys.json'));
      return Math.max(...keys.map(({ activeFrom }) => activeFrom)) - Date.now() / 1_000;
    };
    expect(Math.abs((await rotate()) - 300)).toBeLessThan(60);
    expect(Math.abs((await rotate('--publish-before', '10m')) - 600)).toBeLessThan(60);
  });

  test('new and rotate use the algorithm of the configuration, unless one is given', async () => {
    const cwd = testFolder();
    const config = writeConfiguration(`${MINIMAL_CONFIG}keys: { algorithm: ES256 }\n`);
    const run = async (...args: string[]): Promise<unknown[]> => {
      const { stdout } = await runCommand(['keys', ...args, '-c', config, '--output', 'json'], { cwd });
      const { keys } = JSON.parse(stdout) as { readonly keys: readonly Record<string, unknown>[] };
      return keys.filter(({ use }) => use === 'signing').map(({ algorithm }) => algorithm);
    };
    expect(await run('new', 'keys.json')).toEqual(['ES256']);
    expect(await run('rotate', 'keys.json')).toEqual(['ES256', 'ES256']);
    expect(await run('rotate', 'keys.json', '--algorithm', 'EdDSA')).toEqual(['ES256', 'ES256', 'EdDSA']);
  });

  test('new, rotate and list never print the keys themselves', async () => {
    const cwd = testFolder();
    const created = await runCommand(['keys', 'new', 'keys.json'], { cwd });
    expect(created).toMatchObject({ code: 0, stderr: '' });
    expect(statSync(join(cwd, 'keys.json')).mode & 0o777).toBe(0o600);
    expect(created.stdout).toMatch(
      /^key +use +algorithm +state +used from +retires\n\S+ +signing +EdDSA +active .* -\n\S+ +sealing +HMAC-SHA-256 +active .* -\n$/,
    );

    const again = await runCommand(['keys', 'new', 'keys.json'], { cwd });
    expect(again.code).toBe(73);
    expect(again.stderr).toMatch(/^gatehouse: .*exists already; `gatehouse keys rotate` adds new keys to it\n$/);

    const rotated = await runCommand(['keys', 'rotate', 'keys.json', '--algorithm', 'ES256', '--output', 'json'], {
      cwd,
    });
    const { keys } = JSON.parse(rotated.stdout) as { readonly keys: readonly Record<string, unknown>[] };
    expect(keys.map(({ use, algorithm, state }) => [use, algorithm, state])).toEqual([
      ['signing', 'EdDSA', 'active'],
      ['signing', 'ES256', 'published'],
      ['sealing', 'HMAC-SHA-256', 'active'],
      ['sealing', 'HMAC-SHA-256', 'published'],
    ]);
    expect(keys.every((key) => key['retireAt'] === undefined)).toBe(true);
    const longer = writeConfiguration('listen: { behindTls: true }\ntokens: { grantLifetime: 400d }\n');
    const retiring = await runCommand(['keys', 'rotate', 'keys.json', '-c', longer, '--output', 'json'], {
      cwd,
    });
    const times = (JSON.parse(retiring.stdout) as { keys: { activeFrom: number; retireAt?: number }[] }).keys;
    expect((times[1]?.retireAt ?? 0) - (times[2]?.activeFrom ?? 0)).toBe(400 * 86_400);
    const listed = await runCommand(['keys', 'list', 'keys.json'], { cwd });
    const file = JSON.parse(readFileSync(join(cwd, 'keys.json'), 'utf8')) as {
      readonly signing: readonly { readonly jwk: { readonly d: string } }[];
      readonly sealing: readonly { readonly secret: string }[];
    };
    const printed = created.stdout + rotated.stdout + listed.stdout;
    for (const secret of [...file.signing.map(({ jwk }) => jwk.d), ...file.sealing.map((key) => key.secret)])
      expect(printed).not.toContain(secret);
  });

  test('a missing or damaged file is reported in one line with exit code 65 or 66', async () => {
    const cwd = testFolder();
    writeFileSync(join(cwd, 'bad.json'), '{"secret":"abc"', { mode: 0o600 });
    for (const file of ['none.json', 'bad.json', '.']) {
      const { code, stdout, stderr } = await runCommand(['keys', 'list', file], { cwd });
      expect({ code, stdout }).toEqual({ code: file === 'none.json' ? 66 : 65, stdout: '' });
      expect(stderr).toMatch(ONE_LINE);
      expect(stderr).not.toContain('abc');
    }
  });
});

describe('gatehouse hash-password', () => {
  test('reads a pipe and prints a hash that the configuration accepts', async () => {
    const { code, stdout, stderr } = await runGatehouse(['hash-password'], { input: 'correct horse\n' });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(/^\$argon2id\$v=19\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+\n$/);
    const file = writeConfiguration(
      `${MINIMAL_CONFIG}directories: { a: { label: a, users: [{ id: 00ff00ff, name: x, passwordHash: "${stdout.trim()}" }] } }\n`,
    );
    expect((await runCommand(['check', '-c', file])).code).toBe(0);
  });

  test.each([
    ['two lines', 'a\nb\n', /the password must be a single line/],
    ['too much', 'x'.repeat(2_000), /longer than 1024 bytes/],
  ])('%s are rejected', async (_name, input, words) => {
    const { code, stderr } = await runCommand(['hash-password'], { input });
    expect(code).toBe(64);
    expect(stderr).toMatch(words);
  });

  test.runIf(existsSync('/usr/bin/script'))('does not echo the password on a terminal', () => {
    const typed = spawnSync(
      '/usr/bin/script',
      ['-qec', `'${process.execPath}' '${ENTRY}' hash-password`, '/dev/null'],
      {
        input: 'hunter2x\u007f\r',
        encoding: 'utf8',
        timeout: 30_000,
      },
    );
    // The terminal may echo input before the program disables echo, so only the output after the prompt is checked.
    const shown = typed.stdout.slice(typed.stdout.indexOf('Password:'));
    expect(shown).toMatch(/^Password: \r?\n\$argon2id\$/);
    expect(shown).not.toContain('hunter2');
  });
});

describe('gatehouse schema and sleep', () => {
  test('schema prints the committed JSON Schema', async () => {
    const { code, stdout } = await runCommand(['schema']);
    expect(code).toBe(0);
    expect(stdout).toBe(readFileSync(new URL('../../docs/configuration.schema.json', import.meta.url), 'utf8'));
  });

  test('a closed pipe on standard output is not an error', () => {
    const piped = spawnSync('/bin/sh', ['-c', `'${process.execPath}' '${ENTRY}' schema | head -c 10`], {
      encoding: 'utf8',
    });
    expect({ stdout: piped.stdout, stderr: piped.stderr }).toEqual({ stdout: '{\n  "title', stderr: '' });
  });

  test('sleep waits for the given number of seconds', async () => {
    const seconds = 0.05;
    const started = performance.now();
    expect((await runCommand(['sleep', String(seconds)])).code).toBe(0);
    // Node timers may fire up to a millisecond early.
    expect(performance.now() - started).toBeGreaterThan(seconds * 1_000 - 1);
  });
});
