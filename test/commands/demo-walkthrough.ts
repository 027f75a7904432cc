import { readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { finish } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import {
  type Demo,
  openTerminal,
  pathWithOnly,
  spawnDemo,
  startDemo,
  type Terminal,
  temporaryFolder,
  until,
} from '../support/demo.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';

needs('curl');

const PORTS = ['--set', 'listen.port=0', '--set', 'admin.port=0'];

/** Pastes the commands that the demo prints into a shell one after another, as a reader does. */
export const walkThrough = (shell: string, curl: boolean): object =>
  describe(`the walkthrough of the demo, pasted into ${shell} (curl installed: ${curl})`, () => {
    let folder: string;
    let demo: Demo;
    let terminal: Terminal;
    beforeAll(async () => {
      folder = temporaryFolder();
      const env = curl ? {} : { PATH: pathWithOnly(folder, ['sed', 'sleep']) };
      demo = await startDemo(folder, { args: [...PORTS, '--set', 'device.interval=1s'], env });
      terminal = openTerminal(`/bin/${shell}`, env);
    });
    afterAll(async () => {
      terminal?.close();
      await demo?.stop();
      rmSync(folder, { recursive: true, force: true });
    });

    const paste = async (step: number): Promise<string[]> => {
      const printed: string[] = [];
      for (const command of demo.steps.get(step) ?? []) printed.push(await terminal.run(command));
      return printed;
    };

    test('a certificate gets a token for the URL the demo runs at, limited to its scope', async () => {
      expect(demo.printed().includes('curl -sS')).toBe(curl);
      // Terminals wrap longer lines, which breaks pasting. The length of paths cannot be limited.
      for (const line of demo
        .printed()
        .split('\n')
        .filter((text) => !/ cd | files {4}| ask\(\)/.test(text)))
        expect(line.length, line).toBeLessThan(96);
      expect((await paste(0)).join('')).toBe('');
      const [granted = ''] = await paste(1);
      expect(granted).toMatch(/^\{"access_token":"[^"]+".*"scope":"files:read"\} {2}\[200\]\n$/);
      expect(new URL(demo.url).port).not.toBe('8443');
      const token = (await terminal.run('echo $TOKEN')).trim();
      const claims = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as {
        readonly sub: string;
      };
      expect(claims).toMatchObject({ iss: demo.url, aud: demo.url });
      const [called = ''] = await paste(2);
      expect(called).toContain(`"file":"welcome.txt","caller":"${claims.sub}","client":"report-runner"`);
      expect(called).toMatch(/\[200\]\n$/);
      const [refused = ''] = await paste(3);
      expect(refused).toMatch(/"error":"insufficient_scope".*\[403\]\n$/);
      await until('the refusal is shown', () =>
        /request refused: POST \/reports \(403\): \S.*, alice, report-runner\n/.test(demo.printed()),
      );
    });

    test('a revocation invalidates the token', async () => {
      const [revoked, after] = await paste(4);
      expect(revoked).toBe('{}  [200]\n');
      expect(after).toMatch(/"error":"invalid_token".*revoked.*\[401\]\n$/);
    });

    test('a device gets its token once bob has approved on the page, and refreshes it', async () => {
      const [request = '', address = '', who = ''] = await paste(5);
      const [early = ''] = await paste(6);
      expect(request).toMatch(/"device_code":"[^"]+".*\[200\]\n$/);
      expect(early).toMatch(/"error":"authorization_pending".*\[400\]\n$/);

      const agent = createAgent({ ca: readFileSync(join(demo.folder, 'pki/ca.pem'), 'utf8') });
      onTestFinished(() => agent.destroy());
      const browser = new FormBrowser({ agent });
      const page = /Open (\S+)/.exec(address)?.[1] ?? '';
      expect(page.startsWith(`${demo.url}/authsvc/device?user_code=`)).toBe(true);
      expect((await browser.open(page)).text).toContain('user_code');
      expect((await browser.submit('/device')).text).toContain('current-password');
      const [, user_name = '', password = ''] = /sign in as (\w+), password (\S+)/.exec(who) ?? [];
      expect((await browser.submit('/sign-in', { user_name, password })).text).toContain('Report runner');
      expect((await browser.submit('/approve')).text).toContain('return to your device');

      const exchange = demo.steps.get(6)?.[0] ?? '';
      const exchanged = await until('the device has its token', async () => {
        // RFC 8628 §3.5: the interval between two requests; it grows with every slow_down.
        const output = await terminal.run(`sleep 1; ${exchange}`);
        return /authorization_pending|slow_down/.test(output) ? undefined : output;
      });
      expect(exchanged).toMatch(/"access_token":"[^"]+".*"scope":"files:read".*\[200\]\n$/);
      const [refreshed = ''] = await paste(7);
      expect(refreshed).toMatch(/"access_token":"[^"]+".*"refresh_token":"[^"]+".*\[200\]\n$/);
      expect(refreshed).not.toContain(/"refresh_token":"([^"]+)"/.exec(exchanged)?.[1]);
    });

    test('the token API issues tokens for the same certificate', async () => {
      const [granted = ''] = await paste(8);
      expect(granted).toMatch(/^\{"access_token":"[^"]+".*"identity":"local:\{[^}]+\}"\} {2}\[200\]\n$/);
    });

    test.runIf(curl)('no other user can read its folder, and a second demo does not start there', async () => {
      for (const entry of readdirSync(demo.folder, { recursive: true, withFileTypes: true })) {
        const mode = statSync(join(entry.parentPath, entry.name)).mode & 0o777;
        expect([entry.name, mode.toString(8)]).toEqual([entry.name, entry.isDirectory() ? '700' : '600']);
      }
      expect((statSync(demo.folder).mode & 0o777).toString(8)).toBe('700');
      const second = spawnDemo(folder, { args: PORTS });
      onTestFinished(() => second.signal('SIGKILL'));
      const { code, output } = await finish(second);
      expect(code, output).toBe(78);
      expect(output).toContain('is in use by another gatehouse');
    });

    test('its configuration has the ports that it uses, so that other commands reach it', async () => {
      const text = readFileSync(join(demo.folder, 'gatehouse.yaml'), 'utf8');
      expect(text).toContain(`publicUrl: ${demo.url} `);
      expect(text).toMatch(new RegExp(`^listen:\\n.*\\n  port: ${new URL(demo.url).port}$`, 'm'));
      const config = join(demo.folder, 'gatehouse.yaml');
      expect(await runCommand(['grants', 'list', '--config', config])).toMatchObject({ code: 0, stderr: '' });
    });

    test('every step is logged in a short line, and Ctrl-C stops the demo', async () => {
      const reported = demo.printed().split('logged below.')[1] ?? '';
      for (const line of [
        /^\d\d:\d\d:\d\d {2}token issued: alice, report-runner, files:read$/m,
        /grant revoked: alice/,
        /device confirmed: bob/,
        /token refreshed: bob/,
      ])
        expect(reported).toMatch(line);
      expect(Math.max(...reported.split('\n').map((line) => line.length))).toBeLessThan(120);
      expect(await demo.stop()).toBe(0);
      expect(demo.printed()).toMatch(/gatehouse has stopped\.\n$/);
    });

    test.runIf(curl)('a later start reuses the existing folder', async () => {
      const kept = ['gatehouse.yaml', 'passwords.txt', 'pki/ca.pem', 'pki/alice.pem', 'data/keys.json'];
      const read = (): string[] =>
        // Free ports are chosen at each start.
        kept.map((file) => readFileSync(join(demo.folder, file), 'utf8').replaceAll(/(?<=localhost:|port: )\d+/g, ''));
      const before = read();
      const again = await startDemo(folder, { args: PORTS });
      onTestFinished(async () => void (await again.stop()));
      expect(read()).toEqual(before);
      const password = (text: string) => /password ([a-z-]+)/.exec(text)?.[1];
      expect(password(again.printed())).toMatch(/^[a-z]{4}-[a-z]{4}-[a-z]{4}$/);
      expect(password(again.printed())).toBe(password(demo.printed()));
    });
  });
