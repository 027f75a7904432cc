import { readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import {
  type Demo,
  openDemo,
  openTerminal,
  pathWithOnly,
  startDemo,
  type Terminal,
  temporaryFolder,
  until,
} from '../support/demo.ts';
import { connectionsOf, FormBrowser } from '../support/form-browser.ts';

const ends: (() => unknown)[] = [];
const tidy = async (): Promise<void> => {
  while (ends.length > 0) await ends.pop()?.();
};

function newFolder(): string {
  const folder = temporaryFolder();
  ends.push(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

describe.each([
  { shell: 'sh', curl: true },
  { shell: 'bash', curl: true },
  { shell: 'sh', curl: false },
])('the story, pasted into $shell (curl installed: $curl)', ({ shell, curl }) => {
  let demo: Demo;
  let terminal: Terminal;

  beforeAll(async () => {
    const folder = newFolder();
    const env = curl ? {} : { PATH: pathWithOnly(folder, ['sed']) };
    demo = await openDemo(folder, { env });
    ends.push(() => demo.stop());
    terminal = openTerminal(`/bin/${shell}`, env);
    ends.push(() => terminal.close());
  });
  afterAll(tidy);

  const paste = async (step: number): Promise<string[]> => {
    const commands = demo.steps.get(step) ?? [];
    const printed: string[] = [];
    for (const command of commands) printed.push(await terminal.run(command));
    return printed;
  };

  test('a certificate buys a token that opens the API, and only what its scope says', async () => {
    expect(demo.printed().includes('curl -sS')).toBe(curl);
    // Wider lines are broken by terminals, and then also where they are pasted. Paths are as long as they are.
    for (const line of demo
      .printed()
      .split('\n')
      .filter((text) => !/ cd | files {4}| ask\(\)/.test(text)))
      expect(line.length, line).toBeLessThan(96);
    expect((await paste(0)).join('')).toBe('');
    const [granted = ''] = await paste(1);
    expect(granted).toMatch(/^\{"access_token":"[^"]+".*"identity":"local:\{[^}]+\}"\} {2}\[200\]\n$/);
    const [called = ''] = await paste(2);
    const identity = /"identity":"([^"]+)"/.exec(granted)?.[1];
    expect(called).toContain(`"file":"welcome.txt","caller":"${identity}","client":"report-runner"`);
    expect(called).toMatch(/\[200\]\n$/);
    const [refused = ''] = await paste(3);
    expect(refused).toMatch(/"error":"insufficient_scope".*\[403\]\n$/);
  });

  test('a refresh gives a new pair, a revocation ends it', async () => {
    const [refreshed = ''] = await paste(4);
    expect(refreshed).toMatch(/"access_token":"[^"]+","refresh_token":"[^"]+".*\[200\]\n$/);
    const [revoked, after] = await paste(5);
    expect(revoked).toBe('{}  [200]\n');
    expect(after).toMatch(/"error":"invalid_token".*revoked.*\[401\]\n$/);
  });

  test('a device gets its token once bob has said yes on the page', async () => {
    const [asked = '', address = '', who = ''] = await paste(6);
    const [early = ''] = await paste(7);
    expect(asked).toMatch(/"device_code":"[^"]+".*\[200\]\n$/);
    expect(early).toMatch(/"Error":"authorization_pending".*\[400\]\n$/);

    const connections = connectionsOf({ ca: readFileSync(join(demo.folder, 'pki/ca.pem'), 'utf8') });
    onTestFinished(() => connections.destroy());
    const browser = new FormBrowser({ connections });
    const page = /Open (\S+)/.exec(address)?.[1] ?? '';
    expect(page.startsWith(`${demo.url}/authsvc/device?user_code=`)).toBe(true);
    expect((await browser.open(page)).text).toContain('user_code');
    expect((await browser.submit('/device')).text).toContain('current-password');
    const [, user_name = '', password = ''] = /sign in as (\w+), password (\S+)/.exec(who) ?? [];
    expect((await browser.submit('/sign-in', { user_name, password })).text).toContain('Report runner');
    expect((await browser.submit('/approve')).text).toContain('return to your device');

    const exchange = demo.steps.get(7)?.[0] ?? '';
    const exchanged = await until('the token of the device', async () => {
      const said = await terminal.run(exchange);
      return said.includes('authorization_pending') ? undefined : said;
    });
    expect(exchanged).toMatch(/"access_token":"[^"]+".*"scope":"files:read".*\[200\]\n$/);
  });

  test('what happened is told in short lines, and Ctrl-C ends it all', async () => {
    const told = demo.printed().split('told below.')[1] ?? '';
    for (const line of [
      /^\d\d:\d\d:\d\d {2}token issued: alice, report-runner, files:read$/m,
      /token refreshed: alice/,
      /grant revoked: alice/,
      /device confirmed: bob/,
    ])
      expect(told).toMatch(line);
    expect(Math.max(...told.split('\n').map((line) => line.length))).toBeLessThan(120);
    expect(await demo.stop()).toBe(0);
    expect(demo.printed()).toMatch(/gatehouse has ended\.\n$/);
  });
});

describe('the folder of the demo', () => {
  afterEach(tidy);

  test('is closed to others, and a second start uses it as it is', async () => {
    const folder = newFolder();
    const first = await openDemo(folder);
    ends.push(() => first.stop());
    for (const entry of readdirSync(first.folder, { recursive: true, withFileTypes: true })) {
      const mode = statSync(join(entry.parentPath, entry.name)).mode & 0o777;
      expect([entry.name, mode.toString(8)]).toEqual([entry.name, entry.isDirectory() ? '700' : '600']);
    }
    expect((statSync(first.folder).mode & 0o777).toString(8)).toBe('700');
    await first.stop();

    const kept = ['gatehouse.yaml', 'passwords.txt', 'pki/ca.pem', 'pki/alice.pem', 'data/keys.json'];
    const before = kept.map((file) => readFileSync(join(first.folder, file), 'utf8'));
    const second = await openDemo(folder);
    ends.push(() => second.stop());
    expect(kept.map((file) => readFileSync(join(first.folder, file), 'utf8'))).toEqual(before);
    const password = (text: string) => /password ([a-z-]+)/.exec(text)?.[1];
    expect(password(second.printed())).toMatch(/^[a-z]{4}-[a-z]{4}-[a-z]{4}$/);
    expect(password(second.printed())).toBe(password(first.printed()));
  });

  test('cannot be used by two demos at once', async () => {
    const folder = newFolder();
    const first = await openDemo(folder);
    ends.push(() => first.stop());
    const second = startDemo(folder, { args: ['--set', 'listen.port=0', '--set', 'admin.port=0'] });
    await until('the second demo to end', () => second.child.exitCode !== null);
    expect(second.child.exitCode).toBe(78);
    expect(second.printed()).toContain('is in use by another gatehouse');
  });
});

describe('a port that is taken', () => {
  afterEach(tidy);

  test.each([
    { setting: 'listen.port', variable: 'GATEHOUSE_LISTEN__PORT' },
    { setting: 'admin.port', variable: 'GATEHOUSE_ADMIN__PORT' },
  ])('$setting: is said plainly, with what to write instead', async ({ setting, variable }) => {
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
    ends.push(() => taken.close());
    const { port } = taken.address() as { readonly port: number };
    const zero = ['listen.port', 'admin.port'].filter((other) => other !== setting);
    const { child, printed } = startDemo(newFolder(), {
      args: zero.flatMap((other) => ['--set', `${other}=0`]),
      env: { [variable]: String(port) },
    });
    await until('the demo to end', () => child.exitCode !== null);
    expect(child.exitCode).toBe(78);
    expect(printed()).toContain(`${setting}: 127.0.0.1:${port} is taken by another program`);
    expect(printed()).toContain(`--set ${setting}=${port + 1}`);
    expect(printed()).toContain(`${variable}=${port + 1} npm start`);
  });

  test('the address clients use has the port that was chosen', async () => {
    const demo = await openDemo(newFolder());
    ends.push(() => demo.stop());
    const port = new URL(demo.url).port;
    expect(port).not.toBe('8443');
    const terminal = openTerminal('/bin/sh');
    ends.push(() => terminal.close());
    for (const command of [...(demo.steps.get(0) ?? []), ...(demo.steps.get(1) ?? [])])
      await terminal.run(command);
    const token = (await terminal.run('echo $TOKEN')).trim();
    const claims: unknown = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString());
    expect(claims).toMatchObject({ iss: demo.url, aud: demo.url });
  });
});
