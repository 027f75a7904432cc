import { readFileSync } from 'node:fs';
import { Agent } from 'undici';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { signIn } from '../support/console-harness.ts';
import { FormBrowser } from '../support/form-browser.ts';
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
  const ids = clients.map(
    ({ worker }) => server.log.findLast((line) => line['worker'] === worker)?.['request_id'],
  );
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
