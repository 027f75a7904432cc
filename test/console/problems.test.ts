import { readFileSync } from 'node:fs';
import { Agent } from 'undici';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { READ_ONLY_TOKEN_FILE, signIn } from '../support/console-harness.ts';
import { type ForeignIssuerServer, startForeignIssuer, withTrustedIssuer } from '../support/foreign-issuer-server.ts';
import { FormBrowser } from '../support/form-browser.ts';
import { type IntrospectionServer, startIntrospectionServer } from '../support/introspection-server.ts';
import { scrape } from '../support/scrape.ts';
import {
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

const REJECTED = 'The changed configuration was rejected';
const RESTART = 'Restart needed';
const FAILING = 'Tokens cannot be introspected';
const UNAVAILABLE = 'Keys cannot be fetched';
const PAGES = ['/console', '/console/configuration'];

let folder: ServeFolder;
let server: ServeProcess;
let issuer: ForeignIssuerServer;
let introspection: IntrospectionServer;
const agent = new Agent();
beforeAll(async () => {
  issuer = await startForeignIssuer();
  issuer.isUp = false;
  introspection = await startIntrospectionServer();
  folder = await createServeFolder((settings) =>
    withTrustedIssuer(issuer, {
      introspection: { url: introspection.url, clientId: 'gatehouse', clientSecret: 'a secret' },
    })({
      ...settings,
      admin: { ...settings.admin, readOnlyTokenFile: READ_ONLY_TOKEN_FILE },
    }),
  );
  server = await startServe(folder);
});
afterAll(async () => {
  await agent.destroy();
  await folder?.remove();
  issuer?.close();
  introspection?.close();
});

const openConsole = async (tokenFile: string): Promise<FormBrowser> => {
  const browser = new FormBrowser({ agent, base: `http://127.0.0.1:${server.adminPort}` });
  await signIn(browser, readFileSync(folder.file(tokenFile), 'utf8').trim());
  return browser;
};
const readGauge = async (sample: string): Promise<number> => (await scrape(server.adminPort)).value(sample);
const isReloadSuccessful = (): Promise<number> => readGauge('gatehouse_config_last_reload_successful');

test('the overview shows an unavailable trusted issuer with its error, until its keys are fetched', async () => {
  const browser = await openConsole('data/admin-token');
  const usable = 'gatehouse_issuer_keys_usable{issuer="corp"}';
  const { text } = await until('the issuer is unavailable', async () => {
    const page = await browser.get('/console');
    return page.text.includes(UNAVAILABLE) && page;
  });
  expect(text).toMatch(/<bdi>corp<\/bdi><\/th><td><span class="badge bad">unavailable<.*since <time.*503/);
  expect(await readGauge(usable)).toBe(0);
  issuer.isUp = true;
  await until('the issuer is available', async () => (await readGauge(usable)) === 1);
  const recovered = (await browser.get('/console')).text;
  expect(recovered).not.toContain(UNAVAILABLE);
  expect(recovered).toMatch(/<bdi>corp<\/bdi><\/th><td><span class="badge good">available</);
});

test('the overview shows that tokens of an issuer cannot be introspected, until they can', async () => {
  const browser = await openConsole('data/admin-token');
  const usable = 'gatehouse_issuer_introspection_usable{issuer="corp"}';
  const client = connect(folder, server.port);
  const call = async (token: string): Promise<number> =>
    (await client.request({ path: '/files/1', headers: { authorization: `Bearer ${token}` } })).status;
  expect(await readGauge(usable)).toBe(1);
  introspection.respond = () => ({ status: 500, type: 'text/plain', body: '' });
  expect(await call('op-1')).toBe(503);
  expect(await readGauge(usable)).toBe(0);
  const { text } = await browser.get('/console');
  expect(text).toContain(FAILING);
  expect(text).toMatch(/<bdi>corp<\/bdi>, since <time[^]*introspect responded with 500/);
  introspection.respond = undefined;
  expect(await call('op-2')).toBe(401);
  expect(await readGauge(usable)).toBe(1);
  expect((await browser.get('/console')).text).not.toContain(FAILING);
  client.close();
});

test('a rejected configuration is shown on the overview and on the page of the configuration until it is corrected', async () => {
  const operator = await openConsole('data/admin-token');
  const viewer = await openConsole(READ_ONLY_TOKEN_FILE);
  expect(await isReloadSuccessful()).toBe(1);
  for (const path of PAGES) expect((await operator.get(path)).text).not.toContain(REJECTED);
  const good = readFileSync(folder.file('gatehouse.yaml'), 'utf8');

  folder.write(
    'gatehouse.yaml',
    `${good}\n"<img src=x onerror=alert(1)>": 1\nstore: { path: "</li><script>" , typ: 1 }\n`,
  );
  await until('the gauge is 0', async () => (await isReloadSuccessful()) === 0);
  for (const browser of [operator, viewer])
    for (const path of PAGES) {
      const { text } = await browser.get(path);
      expect(text).toContain(REJECTED);
      expect(text).toMatch(/since <time datetime="2/);
      expect(text).toMatch(/<li><bdi>[^<]*\(line \d+\)<\/bdi><\/li>/);
      // Viewers see where the problems are, without the values that they quote.
      expect(text.includes('&lt;img src=x onerror=alert(1)&gt;')).toBe(browser === operator);
      expect(text.includes('<bdi>the configuration file (line')).toBe(browser === viewer);
      expect(text).not.toMatch(/<img|<script>/);
    }
  expect(await readGauge('gatehouse_ready')).toBe(1);

  // A file that the configuration names, in place of the first problem.
  folder.write('gatehouse.yaml', good.replace('server.pem', '<b>missing</b>.pem'));
  await until('the problem is another one', async () =>
    (await operator.get('/console/configuration')).text.includes('&lt;b&gt;missing&lt;/b&gt;.pem'),
  );
  expect(await isReloadSuccessful()).toBe(0);

  folder.write('gatehouse.yaml', good);
  await until('the gauge is 1', async () => (await isReloadSuccessful()) === 1);
  for (const path of PAGES) expect((await operator.get(path)).text).not.toContain(REJECTED);
});

test('changed settings that need a restart are shown on the overview and on the page of the configuration', async () => {
  const browser = await openConsole('data/admin-token');
  const { text: before } = await browser.get('/console');
  expect(before).not.toContain(RESTART);
  folder.configure((settings) => ({ ...settings, limits: { ...settings.limits, streams: 50 } }));
  await until('the overview shows it', async () => (await browser.get('/console')).text.includes(RESTART));
  for (const path of PAGES) expect((await browser.get(path)).text).toContain('<code>limits.streams</code>');
  expect(await isReloadSuccessful()).toBe(1);
});
