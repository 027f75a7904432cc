import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, describe, expect, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { createServeFolder, type ServeFolder } from '../support/serve-process.ts';

needs('systemd-analyze');

const ROOT = join(import.meta.dirname, '../..');
const UNIT = readFileSync(join(ROOT, 'deploy/systemd/gatehouse.service'), 'utf8');
const setting = (name: string): string => UNIT.match(new RegExp(`^${name}=(.*)$`, 'm'))?.[1] ?? '';
/** Replaces /opt/gatehouse with the checkout. */
const withCheckoutPaths = (text: string): string =>
  text
    .replaceAll('/opt/gatehouse/node_modules/.bin/gatehouse', join(ROOT, 'bin/gatehouse'))
    .replaceAll('/opt/gatehouse/node_modules/gatehouse', ROOT);

const folders: string[] = [];
const gateways: ServeFolder[] = [];
afterEach(async () => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
  for (const gateway of gateways.splice(0)) await gateway.remove();
});
const createTempFolder = (): string => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-unit-'));
  folders.push(folder);
  return folder;
};

const analyze = (...args: readonly string[]) =>
  spawnSync('systemd-analyze', [...args], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, LC_ALL: 'C.UTF-8' },
  });
const works = analyze('--version').status === 0;

describe.skipIf(!works)('A11 the systemd unit', () => {
  test('systemd reports no problem', () => {
    const file = join(createTempFolder(), 'gatehouse.service');
    writeFileSync(file, withCheckoutPaths(UNIT));
    const { status, stdout, stderr } = analyze('verify', '--man=no', file);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '', stderr: '' });
  });

  test('systemd-analyze reports an invalid unit', () => {
    const file = join(createTempFolder(), 'gatehouse.service');
    writeFileSync(file, withCheckoutPaths(UNIT).replace('ProtectHome=yes', 'ProtectHomes=yes'));
    expect(analyze('verify', '--man=no', file).stderr).toContain('ProtectHomes');
  });

  test('its exposure level is at most 2.0', () => {
    const file = join(createTempFolder(), 'gatehouse.service');
    writeFileSync(file, UNIT);
    const { stdout } = analyze('security', '--offline=true', '--no-pager', '--threshold=20', file);
    const exposure = Number(stdout.match(/Overall exposure level for gatehouse\.service: ([\d.]+)/)?.[1]);
    expect(exposure).toBeGreaterThan(0);
    expect(exposure).toBeLessThanOrEqual(2);
  });
});

const SYSUSERS = readFileSync(join(ROOT, 'deploy/systemd/gatehouse.sysusers'), 'utf8');

test('A11 its user cannot log in', () => {
  expect(SYSUSERS).toMatch(new RegExp(`^u ${setting('User')} - "[^"]+" /var/lib/gatehouse /usr/sbin/nologin$`, 'm'));
});

test.skipIf(!existsSync('/usr/bin/systemd-sysusers'))('A11 systemd-sysusers creates its user', () => {
  const root = createTempFolder();
  const file = join(root, 'gatehouse.conf');
  writeFileSync(file, SYSUSERS);
  mkdirSync(join(root, 'etc'));
  const result = spawnSync('systemd-sysusers', [`--root=${root}`, file], { encoding: 'utf8' });
  expect(result.status, result.stderr).toBe(0);
  expect(readFileSync(join(root, 'etc/passwd'), 'utf8')).toContain('gatehouse:');
});

test('A11 ExecStart works, and an invalid configuration exits with the code that prevents a restart', async () => {
  const gateway = await createServeFolder((settings) => ({
    ...settings,
    shutdown: { preStop: '0s', drain: '5s' },
  }));
  gateways.push(gateway);
  const env = { PATH: process.env['PATH'] ?? '', GATEHOUSE_CONFIG: gateway.file('gatehouse.yaml') };
  const args = (name: string): [string, string[]] => {
    const [program = '', ...rest] = withCheckoutPaths(setting(name)).split(' ');
    return [program, rest];
  };
  const wrong = spawnSync(...args('ExecStart'), {
    env: { ...env, GATEHOUSE_LISTEN__PORT: 'none' },
    encoding: 'utf8',
    cwd: gateway.path,
  });
  expect([wrong.status, wrong.stderr]).toEqual([78, expect.stringContaining('listen.port')]);
  const child = spawn(...args('ExecStart'), { env, cwd: gateway.path, stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  try {
    for await (const line of createInterface({ input: child.stdout }))
      if ((JSON.parse(line) as { event: string }).event === 'ready') break;
    expect(setting('ExecReload')).toBe('/bin/kill -HUP $MAINPID');
    child.kill('SIGTERM');
    expect(await ended).toBe(0);
  } finally {
    child.kill('SIGKILL');
  }
});

test('A11 the stop timeout exceeds the shutdown time, and permanent failures do not cause a restart', () => {
  const seconds = (text: string): number => Number.parseInt(text, 10);
  // The defaults of shutdown.preStop and shutdown.drain.
  expect(seconds(setting('TimeoutStopSec'))).toBeGreaterThan(5 + 30);
  expect(setting('RestartPreventExitStatus')).toBe('78');
  // systemd.service(5): RestartPreventExitStatus has no effect on ExecStartPre.
  expect(UNIT).not.toMatch(/^ExecStartPre=/m);
  expect(setting('Type')).toBe('notify');
});
