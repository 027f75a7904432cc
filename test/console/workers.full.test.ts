import { readFileSync } from 'node:fs';
import { Agent } from 'undici';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { signIn } from '../support/console-harness.ts';
import { FormBrowser } from '../support/form-browser.ts';
import { scrape } from '../support/scrape.ts';
import {
  connect,
  connectMany,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

let folder: ServeFolder;
let server: ServeProcess;
const agent = new Agent();
beforeAll(async () => {
  folder = await createServeFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers: 2 },
  }));
  server = await startServe(folder);
});
afterAll(async () => {
  await agent.destroy();
  await folder?.remove();
});

test('the console of the supervisor shows refusals, audit events and figures of all workers', async () => {
  const clients = await until('each worker serves a client', async () => {
    const opened = await connectMany(folder, server, 4);
    for (const client of opened) client.close();
    return new Set(opened.map(({ worker }) => worker)).size === 2 ? opened : undefined;
  });
  const ids = clients.map(({ worker }) => server.log.findLast((line) => line['worker'] === worker)?.['request_id']);
  expect(new Set(ids).size).toBe(2);
  const client = connect(folder, server.port, folder.alice);
  await client.grant();
  client.close();

  const browser = new FormBrowser({ agent, base: `http://127.0.0.1:${server.adminPort}` });
  await signIn(browser, readFileSync(folder.file('data/admin-token'), 'utf8').trim());
  await until('the overview shows the figures of both workers', async () =>
    /<dt>Workers<\/dt><dd>2</.test((await browser.get('/console')).text),
  );
  const { text } = await browser.get('/console/refusals');
  for (const id of ids) expect(text).toContain(id);
  expect((await browser.get(`/console/refusal?id=${String(ids[0])}`)).text).toContain('token_missing');
  const audit = await browser.get('/console/audit');
  // Of a worker, and of the supervisor itself.
  expect(audit.text).toContain('<h2>grant issued</h2>');
  expect(audit.text).toContain('console_sign_in');
  expect((await browser.get('/console/configuration')).text).toContain('listen.workers');
});

test('a rejected configuration is shown by the supervisor until it is corrected, also after workers are replaced', async () => {
  const browser = new FormBrowser({ agent, base: `http://127.0.0.1:${server.adminPort}` });
  await signIn(browser, readFileSync(folder.file('data/admin-token'), 'utf8').trim());
  const readGauge = async () => (await scrape(server.adminPort)).value('gatehouse_config_last_reload_successful');
  const isShown = async (path: string) =>
    (await browser.get(path)).text.includes('The changed configuration was rejected');
  const countEvents = (name: string) => server.log.filter(({ event }) => event === name).length;
  expect([await readGauge(), await isShown('/console')]).toEqual([1, false]);
  const good = readFileSync(folder.file('gatehouse.yaml'), 'utf8');

  // Valid, but a file is missing: the configuration in use is the previous one.
  folder.write('gatehouse.yaml', good.replace('server.pem', 'missing.pem'));
  await until('both workers have rejected it', () => countEvents('reload_rejected') === 2);
  expect([await readGauge(), await isShown('/console')]).toEqual([0, true]);
  const { text } = await browser.get('/console/configuration');
  expect(text.split('</section>')[0]).toContain('missing.pem');
  expect(text.split('</section>').slice(1).join('')).not.toContain('missing.pem');

  folder.write('gatehouse.yaml', `${good}\nunknown: 1\n`);
  await until('both workers have rejected it', () => countEvents('reload_rejected') === 4);
  server.signal('SIGUSR2');
  await until('both workers are replaced', () => countEvents('workers_restarted') === 1, 60);
  expect([await readGauge(), await isShown('/console'), await isShown('/console/configuration')]).toEqual([
    0,
    true,
    true,
  ]);

  folder.write('gatehouse.yaml', good);
  await until('the gauge is 1', async () => (await readGauge()) === 1);
  expect([await isShown('/console'), await isShown('/console/configuration')]).toEqual([false, false]);
});
