import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { connectionTrouble } from '../../src/client/connection-trouble.ts';
import { askAdmin } from '../../src/commands/admin-call.ts';
import { runCommand } from '../support/command-in-process.ts';
import { baseSettings, type House, openHouse } from '../support/house.ts';

let place: string;
let server: Server | undefined;
beforeAll(() => {
  place = mkdtempSync(join(tmpdir(), 'gatehouse-operator-'));
  writeFileSync(join(place, 'token'), 'the-token-of-an-operator\n');
});
afterAll(() => rmSync(place, { recursive: true, force: true }));
afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

/** Somebody at the address of the admin listener; tells it. */
async function listening(answer: RequestListener): Promise<URL> {
  server = createServer(answer);
  await new Promise<void>((resolve) => void server?.listen(0, '127.0.0.1', resolve));
  return new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
}

const said = (args: readonly string[], input = '') => runCommand(args, { cwd: place, input });
const list = (url: URL, ...more: readonly string[]) =>
  said(['grants', 'list', '--url', url.href, '--token-file', 'token', ...more]);

test('an admin listener that does not answer is told with its address, the time it had, and what to do', async () => {
  const url = await listening(() => {});
  const target = { url, token: 'x', withinMs: 150 };
  const error = await askAdmin(target, 'GET', '/grants').catch((caught: unknown) => caught);
  expect(error).toMatchObject({
    exitCode: 69,
    message: `the admin listener ${url.origin} did not answer within 0.15 s. Is this its address? \`gatehouse health --url ${url.origin}\` tells how it is.`,
  });
  await expect(askAdmin(target, 'POST', '/revoke', { client: 'a' })).rejects.toThrow(
    / may have been done; it can be asked for again\.$/,
  );
});

test('one whose answer stops in the middle is told in the same words', async () => {
  const url = await listening((_, response) => void response.writeHead(200).write('{"grants":'));
  await expect(askAdmin({ url, token: 'x', withinMs: 300 }, 'GET', '/grants')).rejects.toThrow(
    `the admin listener ${url.origin} did not answer within 0.3 s.`,
  );
});

test.each([
  ['a signal of node:http', Object.assign(new Error('aborted'), { name: 'AbortError', code: 'ABORT_ERR' })],
  ['a signal of fetch', Object.assign(new Error('x'), { name: 'TimeoutError' })],
  ['undici', Object.assign(new Error('x'), { code: 'UND_ERR_HEADERS_TIMEOUT' })],
  ['the operating system', Object.assign(new Error('x'), { code: 'ETIMEDOUT' })],
])('a timeout is reported in words, not as an error code: %s', (_, error) => {
  const url = new URL('https://api.example.test');
  expect(connectionTrouble(error, { url, caBy: '', caGiven: false })).toEqual({
    words: 'did not answer in time',
    isOurs: false,
  });
});

test('a list without end is not followed for ever', async () => {
  let pages = 0;
  const url = await listening((_, response) => {
    pages += 1;
    response.end(JSON.stringify({ grants: [], next: pages % 2 === 0 ? 'even' : 'odd' }));
  });
  expect(await list(url)).toEqual({
    code: 69,
    stdout: '',
    stderr: `gatehouse: the admin listener ${url.origin} names the same page again and again; is it gatehouse?\n`,
  });
  expect(pages).toBe(3);
});

test('an answer that is no list is told', async () => {
  const url = await listening((_, response) => void response.end('{}'));
  expect(await list(url)).toMatchObject({ code: 69, stderr: expect.stringContaining('without grants') });
});

test('a list that was cut says so, to people and to programs', async () => {
  let made = 0;
  const url = await listening((_, response) => {
    const grants = Array.from({ length: 1_000 }, () => ({ id: `g${(made += 1)}` }));
    response.end(JSON.stringify({ grants, next: `after ${made}` }));
  });
  const { code, stdout, stderr } = await list(url, '--output', 'json');
  expect(code).toBe(0);
  expect(stderr).toMatch(/^gatehouse: cut after 100000 grants; there may be more\. .*--identity/);
  const told = JSON.parse(stdout) as { grants: unknown[]; cut: boolean };
  expect([told.grants.length, told.cut]).toEqual([100_000, true]);
});

test('an admin port that is chosen at the start cannot be guessed: --url is asked for', async () => {
  writeFileSync(join(place, 'gatehouse.yaml'), stringify({ ...baseSettings(1), admin: { port: 0 } }));
  const { code, stderr } = await said(['grants', 'list', '--config', 'gatehouse.yaml']);
  expect([code, stderr]).toEqual([64, expect.stringMatching(/admin\.port is 0 .* --url/)]);
});

test('a token file that cannot be a token is told, without what it holds', async () => {
  const url = await listening((_, response) => void response.end('{"grants":[]}'));
  for (const [text, why] of [
    ['', 'holds nothing'],
    ['  \n', 'holds nothing'],
    ['first-line\nsecond-line\n', 'holds more than one line'],
  ] as const) {
    writeFileSync(join(place, 'no-token'), text);
    const { code, stderr } = await said(['grants', 'list', '--url', url.href, '--token-file', 'no-token']);
    expect([code, stderr]).toEqual([78, expect.stringContaining(why)]);
    expect(stderr).not.toContain('first-line');
  }
});

test('no command takes a token among its words, where other users of the machine could read it', async () => {
  const { code, stderr } = await said(['grants', 'list', '--url', 'http://127.0.0.1:1', '--token', 'abc']);
  expect([code, stderr]).toEqual([64, expect.not.stringContaining('abc')]);
});

test('a token that ends in a line break of any kind, or comes by standard input, opens the administration', async () => {
  const house: House = await openHouse();
  try {
    const url = `http://127.0.0.1:${house.adminPort}`;
    const token = readFileSync(join(house.folder, 'data/admin-token'), 'utf8').trim();
    for (const end of ['', '\n', '\r\n', '\n\n']) {
      const { access_token: access } = await house.grant();
      writeFileSync(join(place, 'given'), `${token}${end}`);
      const { stdout } = await said([
        'grants',
        'list',
        '--url',
        url,
        '--token-file',
        'given',
        '--output',
        'json',
      ]);
      const { grants } = JSON.parse(stdout) as { grants: { id: string }[] };
      const by = ['--url', url, '--token-file', end === '' ? '-' : 'given'];
      const ended = await said(['grants', 'revoke', grants[0]?.id ?? '', ...by], `${token}\n`);
      expect(ended).toMatchObject({ code: 0, stderr: '' });
      expect((await house.api('/files/a', access)).status).toBe(401);
    }
    const wrong = await said(
      ['grants', 'list', '--url', url, '--token-file', '-'],
      'another-token-altogether\n',
    );
    expect([wrong.code, wrong.stderr]).toEqual([77, expect.stringContaining('The token in standard input')]);
  } finally {
    await house.close();
  }
});

test.each([
  ['nothing', 'null', 'is not that of gatehouse'],
  ['a list', '[]', 'answered without grants; is it gatehouse?'],
  ['grants that are none', '{"grants":[null]}', 'answered without grants; is it gatehouse?'],
])(
  'a server that is not gatehouse (%s) is reported as such, not as an error of ours',
  async (_, body, why) => {
    const url = await listening((_request, response) => void response.end(body));
    expect(await list(url)).toMatchObject({
      code: 69,
      stdout: '',
      stderr: expect.stringContaining(`${url.origin} ${why}`),
    });
  },
);

test('nothing of an answer reaches a terminal as anything but words, and a time that is none is shown as it is', async () => {
  const body = { 'a\u001b[2J': 'b\u009b31m', until: 'never', ended: { 'client\u001b]0;x\u0007': 'c\u202e' } };
  const url = await listening((_request, response) => void response.end(JSON.stringify(body)));
  const by = ['--url', url.href, '--token-file', 'token'];
  const shown = await said(['grants', 'show', 'a'.repeat(22), ...by]);
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringMatching(/^until {12}never$/m) });
  const ended = await said(['grants', 'revoke', '--client', 'c', '--yes', ...by]);
  expect(ended).toMatchObject({ code: 0, stdout: expect.stringContaining('Ended: everything of client') });
  for (const { stdout } of [shown, ended]) expect(stdout.replaceAll('\n', '')).not.toMatch(/\p{C}/u);
});

test('more on standard input than a token is not sent in part', async () => {
  let asked = 0;
  const url = await listening((_request, response) => {
    asked += 1;
    response.end('{"grants":[]}');
  });
  const told = await said(['grants', 'list', '--url', url.href, '--token-file', '-'], 'x'.repeat(5_000));
  expect(told).toMatchObject({ code: 78, stderr: expect.stringContaining('more than an admin token') });
  expect(asked).toBe(0);
});
