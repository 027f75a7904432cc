import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { loadSettings } from '../../src/config/load.ts';
import { loadProblems, loadValid, MINIMAL_CONFIG, SAMPLE, testFolder } from '../support/configuration.ts';

test('flags override the environment, which overrides the file, which overrides defaults', () => {
  const file = 'listen: { behindTls: true, port: 2 }\n';
  const env = { GATEHOUSE_LISTEN__PORT: '3' };
  const overrides = ['listen.port=4'];
  expect(loadValid(MINIMAL_CONFIG).listen.port).toBe(8443);
  expect(loadValid(file).listen.port).toBe(2);
  expect(loadValid(file, { env }).listen.port).toBe(3);
  expect(loadValid(file, { env, overrides }).listen.port).toBe(4);
  expect(loadValid(file, { env, overrides: ['listen.port=4', 'listen.port=5'] }).listen.port).toBe(5);
});

describe('the environment', () => {
  test('sets camel-case names, list entries by index, and groups by name', () => {
    const settings = loadValid(SAMPLE, {
      env: {
        GATEHOUSE_LISTEN__TLS__MIN_VERSION: 'TLSv1.3',
        GATEHOUSE_PUBLIC_URL: 'https://api.example.test',
        GATEHOUSE_INTEGRATIONS__0__CLIENT_ID: 'renamed',
        GATEHOUSE_DIRECTORIES__STAFF__USERS__0__USER_PRINCIPAL_NAME: 'a@b.test',
        GATEHOUSE_UPSTREAMS__DEFAULT__URL: 'http://127.0.0.1:7',
        GATEHOUSE_UPSTREAMS__SECOND_ONE__URL: 'http://127.0.0.1:8',
        GATEHOUSE_DEVICE__ENABLED: 'false',
        GATEHOUSE_LIMITS__BODY: '2048',
        GATEHOUSE_LIMITS__HEADERS: '8KiB',
      },
    });
    expect(settings).toMatchObject({
      publicUrl: 'https://api.example.test',
      listen: { tls: { minVersion: 'TLSv1.3' } },
      upstreams: {
        default: { targets: ['http://127.0.0.1:7'] },
        secondOne: { targets: ['http://127.0.0.1:8'] },
      },
      device: { enabled: false },
      limits: { body: 2_048, headers: 8_192 },
    });
    expect(settings.integrations[0]?.clientId).toBe('renamed');
    expect(settings.directories['staff']?.users[0]?.userPrincipalName).toBe('a@b.test');
  });

  test('treats a wildcard as text, as a flag does', () => {
    const env = { GATEHOUSE_HOSTS__ALLOWED: '*.example.test, api.test' };
    expect(loadValid(MINIMAL_CONFIG, { env }).hosts.allowed).toEqual(['*.example.test', 'api.test']);
    expect(loadValid(MINIMAL_CONFIG, { overrides: ['hosts.allowed=*'] }).hosts.allowed).toEqual(['*']);
  });

  test('may contain variables that other commands read, as in a shell where a user has signed in', () => {
    const env = { GATEHOUSE_HOME: '/home/a/.signed-in', GATEHOUSE_PROFILE: 'robot', GATEHOUSE_TRACE: '1' };
    expect(loadValid(MINIMAL_CONFIG, { env }).listen.port).toBe(8443);
    expect(loadProblems(MINIMAL_CONFIG, { env: { GATEHOUSE_HOMES: 'x' } })).toMatchObject([
      { message: expect.stringContaining('did you mean GATEHOUSE_HOME?') },
    ]);
  });

  test('may contain every variable that a command reads or mentions', () => {
    const commands = join(import.meta.dirname, '../../src/commands');
    const sources = readdirSync(commands)
      .filter((name) => name.endsWith('.ts'))
      .map((name) => readFileSync(join(commands, name), 'utf8'));
    const names = new Set(sources.join('\n').match(/\bGATEHOUSE_[A-Z_]+/g));
    const others = [...names].filter((name) => !name.includes('__') && name !== 'GATEHOUSE_CONFIG');
    expect(others).toEqual(expect.arrayContaining(['GATEHOUSE_URL', 'GATEHOUSE_TOKEN_FILE']));
    const env = Object.fromEntries(others.map((name) => [name, 'x']));
    expect(loadValid(MINIMAL_CONFIG, { env }).listen.port).toBe(8443);
  });

  test('sets a group whose name contains a dash', () => {
    const text = `${MINIMAL_CONFIG}upstreams: { my-api: { url: http://a } }\n`;
    expect(
      loadValid(text, { env: { GATEHOUSE_UPSTREAMS__MY_API__URL: 'http://b' } }).upstreams['my-api']?.targets,
    ).toEqual(['http://b']);
  });

  test('sets lists as YAML or comma-separated, and entire groups as YAML', () => {
    const lists = loadValid(MINIMAL_CONFIG, {
      env: { GATEHOUSE_SERVICE__PATHS: '/authsvc,/auth', GATEHOUSE_TRUSTED_PROXIES: '[10.0.0.0/8, "::1"]' },
    });
    expect(lists.service.paths).toEqual(['/authsvc', '/auth']);
    expect(lists.trustedProxies.includes('10.1.2.3')).toBe(true);
    expect(lists.trustedProxies.includes('::1')).toBe(true);
    const group = loadValid('', {
      env: { GATEHOUSE_LISTEN: '{ behindTls: true, port: 1 }', GATEHOUSE_LISTEN__PORT: '2' },
    });
    expect(group.listen).toMatchObject({ behindTls: true, port: 2 });
  });

  test('keeps text verbatim: an id in braces is not parsed as YAML, digits not as a number', () => {
    const settings = loadValid(SAMPLE, {
      env: {
        GATEHOUSE_DIRECTORIES__STAFF__USERS__0__ID: '{00000000-0000-0000-0000-000000000001}',
        GATEHOUSE_DIRECTORIES__STAFF__USERS__0__NAME: '0123',
      },
    });
    expect(settings.directories['staff']?.users[0]).toMatchObject({
      id: '{00000000-0000-0000-0000-000000000001}',
      name: '0123',
    });
  });

  test('null removes the value from the file', () => {
    const env = { GATEHOUSE_LISTEN__TLS: 'null', GATEHOUSE_LISTEN__BEHIND_TLS: 'true' };
    expect(loadValid(SAMPLE, { env }).listen.tls).toBeUndefined();
  });

  test('a list can be extended by one entry, without gaps', () => {
    const entry = '{ clientId: new, scope: "f:read" }';
    expect(loadValid(SAMPLE, { env: { GATEHOUSE_INTEGRATIONS__1: entry } }).integrations).toHaveLength(2);
    expect(loadProblems(SAMPLE, { env: { GATEHOUSE_INTEGRATIONS__2: entry } })).toMatchObject([
      {
        path: 'integrations[2]',
        message: 'cannot be set: integrations has 1 entries',
        from: 'GATEHOUSE_INTEGRATIONS__2',
      },
    ]);
  });

  test('an unknown setting is a problem that names it', () => {
    const env = {
      GATEHOUSE_LISTEN__PROT: '1',
      GATEHOUSE_ZEBRA: '1',
      GATEHOUSE_LISTEN__PORT__X: '1',
      GATEHOUSE_PORT: '8443',
      HOME: '/',
    };
    const messages = loadProblems(MINIMAL_CONFIG, { env }).map(({ message }) => message);
    expect(messages).toHaveLength(4);
    expect(messages.join('\n')).toMatch(
      /GATEHOUSE_LISTEN__PROT names no setting; did you mean GATEHOUSE_LISTEN__PORT\?/,
    );
    expect(messages.join('\n')).toMatch(/GATEHOUSE_ZEBRA names no setting/);
    expect(messages.join('\n')).toMatch(/GATEHOUSE_LISTEN__PORT__X names no setting/);
  });

  test('service variables that Kubernetes sets for a service called gatehouse are not treated as settings', () => {
    const env = {
      GATEHOUSE_SERVICE_HOST: '10.0.0.1',
      GATEHOUSE_SERVICE_PORT: '8443',
      GATEHOUSE_SERVICE_PORT_HTTPS: '8443',
      GATEHOUSE_PORT: 'tcp://10.0.0.1:8443',
      GATEHOUSE_PORT_8443_TCP: 'tcp://10.0.0.1:8443',
      GATEHOUSE_PORT_8443_TCP_ADDR: '10.0.0.1',
      GATEHOUSE_ADMIN_SERVICE_HOST: '10.0.0.2',
      GATEHOUSE_ADMIN_SERVICE_PORT: '9443',
      GATEHOUSE_ADMIN_PORT_9443_TCP_PROTO: 'tcp',
    };
    expect(loadValid(MINIMAL_CONFIG, { env }).listen.port).toBe(8443);
  });

  test('an invalid value is reported with its variable', () => {
    expect(loadProblems(MINIMAL_CONFIG, { env: { GATEHOUSE_LOG__LEVEL: 'loud' } })).toEqual([
      {
        path: 'log.level',
        message: 'must be debug, info, warn or error, and is "loud"',
        from: 'GATEHOUSE_LOG__LEVEL',
      },
    ]);
  });
});

describe('--set', () => {
  test('accepts paths in the notation of problem messages', () => {
    const settings = loadValid(SAMPLE, {
      overrides: [
        'integrations[0].name=One',
        'routes.0.path=/live',
        'directories["staff"].label=people',
        'log.format=text',
        'integrations[0].access=[]',
      ],
    });
    expect(settings.integrations[0]?.name).toBe('One');
    expect(settings.routes[0]?.path).toBe('/live');
    expect(settings.directories['staff']?.label).toBe('people');
    expect(settings.log.format).toBe('text');
  });

  test.each([
    ['listen.prot=1', 'listen.prot', /did you mean "port"/],
    ['listen.port.x=1', 'listen.port.x', /not a known setting/],
    ['listen.port', '', /--set expects path=value/],
    ['=1', '', /--set expects path=value/],
    ['listen..port=1', '', /--set expects path=value/],
    ['routes[7].path=/x', 'routes[7].path', /cannot be set: routes has 0 entries|cannot be set: routes has no entries/],
    ['limits.rates={ token: 1/s, tokn: 2/s }', 'limits.rates.tokn', /did you mean "token"/],
  ])('%s is a problem', (flag, path, words) => {
    const problem = loadProblems(MINIMAL_CONFIG, { overrides: [flag] }).find((found) => found.path === path);
    expect(problem?.message).toMatch(words);
  });
});

describe('variables inside the file', () => {
  const log = (level: string): string => `${MINIMAL_CONFIG}log:\n  level: ${level}\n`;

  test('are expanded, with a default if unset or empty', () => {
    expect(loadValid(log('${LEVEL}'), { env: { LEVEL: 'warn' } }).log.level).toBe('warn');
    expect(loadValid(log('${LEVEL:-error}')).log.level).toBe('error');
    expect(loadValid(log('"${LEVEL:-error}"'), { env: { LEVEL: '' } }).log.level).toBe('error');
    expect(loadValid(log('de${A}${B:-g}'), { env: { A: 'bu' } }).log.level).toBe('debug');
  });

  test('are converted to numbers, booleans and lists where the setting needs it', () => {
    const text = 'listen:\n  behindTls: ${PLAIN}\n  port: ${PORT:-8080}\ntrustedProxies: ${PROXIES}\n';
    const settings = loadValid(text, { env: { PLAIN: 'true', PROXIES: '10.0.0.0/8, ::1' } });
    expect(settings.listen).toMatchObject({ behindTls: true, port: 8_080 });
    expect(settings.trustedProxies.includes('::1')).toBe(true);
  });

  test('$$ is a dollar sign, and a lone $ stays', () => {
    const name = (text: string): string | undefined =>
      loadValid(`${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, name: "${text}" }]`, {
        env: { A: 'x' },
      }).integrations[0]?.name;
    expect(name('$${A} $A ${A} $$ $')).toBe('${A} $A x $ $');
  });

  test('are not expanded recursively', () => {
    const env = { A: '${B}', B: 'no' };
    const text = `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, name: "\${A}" }]`;
    expect(loadValid(text, { env }).integrations[0]?.name).toBe('${B}');
  });
});

describe('where the configuration is read from', () => {
  test('GATEHOUSE_CONFIG names the file, GATEHOUSE_CONFIG_YAML contains it, a flag overrides both', () => {
    const cwd = testFolder();
    const yaml = 'listen: { tls: { certificate: a.pem, key: b.pem } }';
    const inEnv = loadSettings({ env: { GATEHOUSE_CONFIG_YAML: yaml }, cwd });
    expect(inEnv).toMatchObject({ ok: true, name: 'GATEHOUSE_CONFIG_YAML' });
    expect(inEnv.files).not.toContainEqual(expect.stringContaining('.yaml'));
    expect(inEnv.ok && inEnv.settings.listen.tls?.certificate).toBe(`${cwd}/a.pem`);
    expect(loadSettings({ env: { GATEHOUSE_CONFIG: 'x.yaml' }, cwd })).toMatchObject({
      ok: false,
      name: `${cwd}/x.yaml`,
    });
    expect(loadSettings({ env: {}, cwd })).toMatchObject({ name: '/etc/gatehouse/gatehouse.yaml' });
    expect(loadSettings({ env: { GATEHOUSE_CONFIG: 'x', GATEHOUSE_CONFIG_YAML: yaml }, cwd })).toMatchObject({
      problems: [{ message: expect.stringMatching(/both set/) }],
    });
    expect(loadValid(MINIMAL_CONFIG, { env: { GATEHOUSE_CONFIG_YAML: 'listen: 1' } }).listen.port).toBe(8443);
  });
});
