import { execFile } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, onTestFinished, type TestContext, test } from 'vitest';
import { installPythonTools } from '../clients/python.ts';
import { needs } from '../set-up/programs.ts';
import { spawnChild } from '../support/child-process.ts';
import { openChromium, openWindow } from '../support/chromium.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';
import { freePort, waitForPort } from '../support/ports.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { until } from '../support/until.ts';
import { readPage } from './pages.ts';
import { followTutorial, type Reader } from './tutorial.ts';

needs('curl', 'nginx', 'redis-server');

const run = promisify(execFile);
const NPM_CACHE = join(import.meta.dirname, '../../node_modules/.cache/npm');

/** For `npm install` in a tutorial: the registry of this machine, and a cache for all runs. */
const NPM: Readonly<Record<string, string>> = {
  npm_config_userconfig: process.env['npm_config_userconfig'] ?? join(homedir(), '.npmrc'),
  npm_config_cache: NPM_CACHE,
  npm_config_prefer_offline: 'true',
  npm_config_audit: 'false',
  npm_config_fund: 'false',
  npm_config_update_notifier: 'false',
  ...(process.env['NODE_EXTRA_CA_CERTS'] !== undefined && {
    NODE_EXTRA_CA_CERTS: process.env['NODE_EXTRA_CA_CERTS'],
  }),
};

/** Installs a package into npm's cache; skips the test without a registry. */
async function requirePackage(context: TestContext, name: string): Promise<void> {
  const folder = tempFolder('npm');
  try {
    await run('npm', ['install', '--prefix', folder.path, name], {
      env: { ...process.env, ...NPM },
      timeout: 240_000,
    });
  } catch (error) {
    context.skip(`npm cannot install ${name} (is a registry reachable?): ${(error as Error).message}`);
  } finally {
    folder.remove();
  }
}

/** Opens the URL that was printed last, signs in as alice if asked to, and approves. */
async function confirmInBrowser({ folder, screen, toTest }: Reader): Promise<void> {
  const [, password = ''] = /The password for alice is (\S+)\. /.exec(screen()) ?? [];
  const url =
    screen()
      .match(/https:\S+user_code=[^"\s]+/g)
      ?.at(-1) ?? '';
  const agent = createAgent({ ca: readFileSync(join(folder, 'pki/ca.pem'), 'utf8') });
  onTestFinished(() => agent.destroy());
  const browser = new FormBrowser({ agent });
  await browser.open(toTest(url));
  expect((await browser.submit('/device')).text).toContain('current-password');
  expect((await browser.submit('/sign-in', { user_name: 'alice', password })).text).toContain('my-cli');
  expect((await browser.submit('/approve')).text).toContain('return to your device');
}

async function waitForReload({ screen }: Reader): Promise<void> {
  await until('gatehouse logs reloaded', () => / reloaded cause=/.test(screen()));
}

test('certificate login for a service', () =>
  followTutorial('docs/tutorials/certificate-login.md', {
    actions: { 'wait for the reload': waitForReload },
  }));

test('device login for a command-line program', () =>
  followTutorial('docs/tutorials/device-login.md', {
    actions: { 'confirm in the browser': confirmInBrowser, 'wait for the reload': waitForReload },
  }));

test('in front of an Express API', async (context) => {
  await requirePackage(context, 'express@5');
  await followTutorial('docs/tutorials/express.md', { env: NPM });
});

test('in front of a Flask API', async () => {
  await followTutorial('docs/tutorials/flask.md', { path: [await installPythonTools()] });
});

type Decision = 'approve' | 'deny';

/** Opens the authorization URL that was printed last, signs in as alice and decides; returns to the program that printed it. */
async function decideInBrowser({ folder, toTest }: Reader, shown: string, decision: Decision): Promise<void> {
  const url = shown.match(/(?<=Open )https:\S+/g)?.at(-1) ?? '';
  const agent = createAgent({ ca: readFileSync(join(folder, 'pki/ca.pem'), 'utf8') });
  onTestFinished(() => agent.destroy());
  const browser = new FormBrowser({ agent, base: new URL(toTest(url)).origin });
  await browser.open(toTest(url));
  const password = 'correct horse battery staple';
  const review = await browser.submit('/sign-in', { user_name: 'alice', password });
  expect(review.text).toContain('My agent');
  expect(review.text).toContain('Use the tools of the greetings server');
  const { redirectTo = '' } = await browser.post(`/authsvc/device/${decision}`);
  expect(await (await fetch(redirectTo)).text()).toBe('You can close this page.');
}

/** Starts the client of the tutorial once more, decides in the browser, and returns the last line that the client prints. */
async function runClient(reader: Reader, decision: Decision): Promise<string> {
  const client = spawnChild([process.execPath, 'client.mjs'], {
    cwd: reader.folder,
    env: { NODE_EXTRA_CA_CERTS: join(reader.folder, 'pki/ca.pem') },
  });
  try {
    await until('the client prints a URL', () => /^Open https:\S+\n/m.test(client.output()));
    await decideInBrowser(reader, client.output(), decision);
    await client.ended;
    return client.output().trimEnd().split('\n').at(-1) ?? '';
  } finally {
    await client.stop('SIGKILL');
  }
}

/** The client ends, and prints the reason; so do others that fail for another reason. */
async function seeClientEnd(reader: Reader): Promise<void> {
  const revoked = '401: access was revoked or has expired. Start the client again to sign in.';
  expect(readPage('docs/tutorials/mcp-server.md')).toContain(`\n${revoked}\n`);
  await until('the client prints that it was revoked', () => reader.screen().includes(revoked));
  expect(await runClient(reader, 'deny')).toBe('access_denied: The user denied the request.');

  const path = join(reader.folder, 'gatehouse.yaml');
  const unusedPort = await freePort();
  writeFileSync(path, readFileSync(path, 'utf8').replace(reader.toTest('127.0.0.1:9000'), `127.0.0.1:${unusedPort}`));
  await waitForReload(reader);
  expect(await runClient(reader, 'approve')).toMatch(/^502: .*"bad_gateway"/);
}

test('protect an MCP server', async (context) => {
  await requirePackage(context, '@modelcontextprotocol/sdk@1');
  await followTutorial('docs/tutorials/mcp-server.md', {
    env: NPM,
    actions: {
      'approve in the browser': (reader) => decideInBrowser(reader, reader.screen(), 'approve'),
      'see the client end': seeClientEnd,
    },
  });
});

/** As described in the step, in Chromium. */
async function useApp({ toTest }: Reader): Promise<void> {
  const chromium = await openChromium();
  onTestFinished(() => chromium.close());
  const { page, consoleErrors } = await openWindow(chromium);
  const text = page.locator('#text');
  await page.goto(toTest('http://localhost:3000/'));
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByLabel('Username').fill('alice');
  await page.getByLabel('Password').fill('correct horse battery staple');
  await page.getByRole('button', { name: 'Sign in' }).click();
  expect(await page.getByRole('listitem').first().textContent()).toBe('Read your notes');
  await page.getByRole('button', { name: 'Deny' }).click();
  const denied = 'Failed: access_denied: The user denied the request.';
  await until('the app shows that the user denied', async () => (await text.textContent()) === denied);
  await page.goto(toTest('http://localhost:3000/'));
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Approve' }).click();
  await until('the notes are shown', async () => (await text.textContent()) === 'Written by alice');
  expect(page.url(), 'the code is not in the URL').toBe(toTest('http://localhost:3000/'));
  await page.getByRole('button', { name: 'Refresh the token' }).click();
  await until('the token is refreshed', async () => (await text.textContent()) === 'Refreshed: 200');
  await page.getByRole('button', { name: 'Sign out' }).click();
  await until('the grant is revoked', async () => (await text.textContent())?.endsWith('responds with 401.'));
  expect(consoleErrors).toEqual([]);
}

test('a single-page app with an Express API', async (context) => {
  await requirePackage(context, 'express@5');
  await requirePackage(context, 'oauth4webapi@3');
  await followTutorial('docs/tutorials/single-page-app.md', {
    env: NPM,
    actions: { 'use the app in the browser': useApp },
  });
});

test('accept tokens of your identity provider', async (context) => {
  await requirePackage(context, 'oidc-provider@9');
  await followTutorial('docs/tutorials/identity-provider.md', { env: NPM });
});

test('two replicas on Redis', () => followTutorial('docs/tutorials/two-replicas.md'));

test('behind nginx', () =>
  followTutorial('docs/tutorials/nginx.md', {
    actions: {
      'wait for nginx': async ({ toTest, isRunning }) => {
        await waitForPort(Number(toTest('127.0.0.1:8080').split(':')[1]), isRunning);
      },
    },
  }));
