import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import readQr from 'qr/decode.js';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { renderTerminalQr } from '../../src/commands/terminal-qr.ts';
import { runCommand } from '../support/command-in-process.ts';
import type { CommandResult } from '../support/command-line.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { renewInShells } from './concurrent-token-renewal.ts';

let gateway: TestGateway;
let home: string;
const file = (name: string): string => join(home, name);

beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    device: { interval: '1s' },
    tokens: { ...settings.tokens, claims: ['name', 'email'] },
  }));
  home = mkdtempSync(join(tmpdir(), 'gatehouse-home-'));
  const { alice } = gateway.users;
  writeFileSync(file('ca.pem'), gateway.ca.pem);
  writeFileSync(file('alice.pem'), alice.pem);
  writeFileSync(file('alice-key.pem'), alice.keyPem, { mode: 0o600 });
});
afterAll(async () => {
  await gateway.close();
  rmSync(home, { recursive: true, force: true });
});

const runClient = (...args: readonly string[]): Promise<CommandResult> =>
  runCommand(args, { env: { GATEHOUSE_HOME: file('kept') }, cwd: home });

const connectionArgs = (): string[] => [
  '--url',
  `https://localhost:${gateway.port}`,
  '--client',
  'report-runner',
  '--scope',
  'files:read',
  '--cacert',
  'ca.pem',
];
const certificate = ['--cert', 'alice.pem', '--key', 'alice-key.pem'];

test('without a sign-in the commands fail with exit code 77', async () => {
  for (const command of ['token', 'whoami', 'logout']) {
    const { code, stdout, stderr } = await runClient(command, '--profile', 'nobody');
    expect({ command, code, stdout }).toEqual({ command, code: 77, stdout: '' });
    expect(stderr).toMatch(/^gatehouse: not signed in with profile nobody; run gatehouse login [^\n]+\n$/);
  }
});

test('the items of --scope may be separated by spaces', async () => {
  const args = connectionArgs().with(5, 'reports:read files:read');
  const signedIn = await runClient('login', ...args, ...certificate, '--profile', 'spaces');
  expect(signedIn).toMatchObject({ code: 0, stderr: '' });
  expect(signedIn.stdout).toContain(' for reports:read;files:read, until ');
});

test('login with a certificate, token, whoami, logout', async () => {
  const signedIn = await runClient('login', ...connectionArgs(), ...certificate, '--profile', 'robot');
  expect(signedIn).toMatchObject({ code: 0, stderr: '' });
  expect(signedIn.stdout).toMatch(
    /^Signed in as alice \(alice@example\.test\) for files:read, until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\.\n$/,
  );
  for (const name of ['robot.json', 'robot.token.json'])
    expect(statSync(file(`kept/${name}`)).mode & 0o777).toBe(0o600);

  const printed = await runClient('token', '-p', 'robot');
  expect(printed).toMatchObject({ code: 0, stderr: '' });
  const token = printed.stdout.trim();
  expect((await gateway.api('/files/a', token)).status).toBe(200);
  expect(JSON.parse((await runClient('token', '-p', 'robot', '--output', 'json')).stdout)).toMatchObject({
    access_token: token,
    token_type: 'Bearer',
    scope: 'files:read',
  });

  const identityOutput = await runClient('whoami', '-p', 'robot');
  expect(identityOutput.stdout).toMatch(new RegExp(`^identity +${ALICE.replaceAll(/[{}]/g, String.raw`\$&`)}$`, 'm'));
  expect(identityOutput.stdout).toMatch(/^client +report-runner$/m);

  const out = await runClient('logout', '-p', 'robot');
  expect(out).toMatchObject({ code: 0, stdout: 'Signed out. The grant is revoked.\n' });
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect(existsSync(file('kept/robot.token.json'))).toBe(false);
  expect((await runClient('token', '-p', 'robot')).code).toBe(77);
});

test('device login prints code and URL on standard error, and stores the grant once it is approved', async () => {
  const child = spawn(
    process.execPath,
    [join(import.meta.dirname, '../../src/main.ts'), 'login', ...connectionArgs(), '--output', 'json'],
    { cwd: home, env: { PATH: process.env['PATH'] ?? '', GATEHOUSE_HOME: file('kept') } },
  );
  onTestFinished(() => void child.kill('SIGKILL'));
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (part: Buffer) => void (stdout += part.toString()));
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  const codes = await new Promise<{ complete: string; user: string }>((resolve, reject) => {
    child.once('close', () => reject(new Error(`exited too early: ${stderr}`)));
    child.stderr.on('data', (part: Buffer) => {
      stderr += part.toString();
      const complete = /Open +(\S+)/.exec(stderr)?.[1];
      const user = /or enter (\S+) at/.exec(stderr)?.[1];
      if (complete !== undefined && user !== undefined) resolve({ complete, user });
    });
  });
  await createDeviceClient(gateway).decideInBrowser({
    device_code: '',
    user_code: codes.user,
    verification_uri: codes.complete,
    verification_uri_complete: codes.complete,
    expires_in: 300,
    interval: 1,
    expires: 0,
  });
  expect(await ended).toBe(0);
  expect(JSON.parse(stdout)).toMatchObject({
    profile: 'default',
    scope: 'files:read',
    identity: ALICE,
    username: 'alice',
    email: 'alice@example.test',
  });
  // Without a terminal, there is no QR code.
  expect(stderr).not.toContain('\u001b');
  expect((await runClient('whoami')).stdout).toContain(ALICE);
});

test('of five shells that request a token shortly before it expires, one renews it and all print the same', () =>
  renewInShells(5));

test('an unreachable server: exit code 69, and the tokens are kept', async () => {
  await runClient('login', ...connectionArgs(), ...certificate, '--profile', 'away');
  const profile = file('kept/away.json');
  const text = readFileSync(profile, 'utf8');
  writeFileSync(profile, text.replace(/localhost:\d+/, 'localhost:1'));
  const token = JSON.parse(readFileSync(file('kept/away.token.json'), 'utf8')) as {
    grant: { service: string };
  };
  const moved = { ...token, grant: { ...token.grant, service: 'https://localhost:1/authsvc/' } };
  writeFileSync(file('kept/away.token.json'), JSON.stringify(moved), { mode: 0o600 });
  const out = await runClient('logout', '-p', 'away');
  expect(out.code).toBe(69);
  expect(out.stderr).toMatch(/^gatehouse: https:\/\/localhost:1 cannot be reached: [^\n]+\n$/);
  expect(existsSync(file('kept/away.token.json'))).toBe(true);
  expect(await runClient('logout', '-p', 'away', '--forget')).toMatchObject({
    code: 0,
    stdout: 'The tokens are removed from this machine.\n',
  });
  expect(existsSync(file('kept/away.token.json'))).toBe(false);
});

test('a rejected login is reported with the error of the service', async () => {
  const rejected = await runClient('login', ...connectionArgs(), ...certificate, '--scope', 'admin:all', '-p', 'wide');
  expect(rejected.code).toBe(77);
  expect(rejected.stderr).toMatch(/^gatehouse: [^\n]*admin:all[^\n]* \(invalid_scope\)\n$/);
  expect(existsSync(file('kept/wide.json'))).toBe(false);
});

test('a missing or invalid argument is reported in one line', async () => {
  for (const [args, argv] of [
    [['login', '--url', 'https://x.test'], '--url, --client and --scope are required'],
    [['login', ...connectionArgs(), '--cert', 'alice.pem'], '--cert and --key go together'],
    [['login', ...connectionArgs(), '--url', 'nonsense'], '--url must be a URL'],
    [['token', '--valid-for', 'long'], '--valid-for must be a number of seconds'],
    [['token', '--profile', '../up'], 'a profile name consists of letters'],
  ] as const) {
    const { code, stderr } = await runClient(...args);
    expect({ args, code }).toEqual({ args, code: 64 });
    expect(stderr).toContain(argv);
  }
});

test('the QR code in the terminal encodes the URL', () => {
  const address = 'https://api.example.test:8443/authsvc/device?user_code=BCDF-GHJK';
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the colours around each line
  const lines = renderTerminalQr(address)
    .split('\n')
    .map((line) => line.replaceAll(/\u001b\[[0-9;]*m/g, ''));
  const scale = 4;
  const side = (lines[0]?.length ?? 0) * scale;
  const data = new Uint8Array(side * side * 4).fill(255);
  for (let y = 0; y < side; y += 1)
    for (let x = 0; x < side; x += 1) {
      const row = Math.floor(y / scale);
      const sign = lines[Math.floor(row / 2)]?.[Math.floor(x / scale)];
      const dark = sign === '█' || sign === (row % 2 === 0 ? '▀' : '▄');
      if (dark) data.fill(0, (y * side + x) * 4, (y * side + x) * 4 + 3);
    }
  expect(readQr({ width: side, height: side, data })).toBe(address);
});
