import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { explainConnectionError } from '../../src/client/connection-error.ts';
import { requestAdmin } from '../../src/commands/admin-client.ts';
import { runCommand } from '../support/command-in-process.ts';
import { baseSettings, startGateway, type TestGateway } from '../support/test-gateway.ts';

let directory: string;
let server: Server | undefined;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'gatehouse-operator-'));
  writeFileSync(join(directory, 'token'), 'the-token-of-an-operator\n');
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));
afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

/** Starts an HTTP server in place of the admin listener and returns its URL. */
async function startServer(respond: RequestListener): Promise<URL> {
  server = createServer(respond);
  await new Promise<void>((resolve) => void server?.listen(0, '127.0.0.1', resolve));
  return new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
}

const runAdminCommand = (args: readonly string[], input = '') => runCommand(args, { cwd: directory, input });
const list = (url: URL, ...more: readonly string[]) =>
  runAdminCommand(['grants', 'list', '--url', url.href, '--token-file', 'token', ...more]);

test('an admin listener that does not respond is reported with its address, the timeout and the remedy', async () => {
  const url = await startServer(() => {});
  const target = { url, token: 'x', timeoutMs: 150 };
  const error = await requestAdmin(target, 'GET', '/grants').catch((caught: unknown) => caught);
  expect(error).toMatchObject({
    exitCode: 69,
    message: `the admin listener ${url.origin} did not respond within 0.15 s. Check the address with \`gatehouse health --url ${url.origin}\`.`,
  });
  await expect(requestAdmin(target, 'POST', '/revoke', { client: 'a' })).rejects.toThrow(
    / may have been carried out; it is safe to repeat it\.$/,
  );
});

test('a truncated response is reported with the same message', async () => {
  const url = await startServer((_, response) => void response.writeHead(200).write('{"grants":'));
  await expect(requestAdmin({ url, token: 'x', timeoutMs: 300 }, 'GET', '/grants')).rejects.toThrow(
    `the admin listener ${url.origin} did not respond within 0.3 s.`,
  );
});

test.each([
  ['a signal of node:http', Object.assign(new Error('aborted'), { name: 'AbortError', code: 'ABORT_ERR' })],
  ['a signal of fetch', Object.assign(new Error('x'), { name: 'TimeoutError' })],
  ['undici', Object.assign(new Error('x'), { code: 'UND_ERR_HEADERS_TIMEOUT' })],
  ['the operating system', Object.assign(new Error('x'), { code: 'ETIMEDOUT' })],
])('a timeout is reported in plain language, not as an error code: %s', (_, error) => {
  const url = new URL('https://api.example.test');
  expect(explainConnectionError(error, { url, caOption: '', hasCa: false })).toEqual({
    message: 'timed out',
    isLocal: false,
  });
});

test('paging stops if the list does not end', async () => {
  let pages = 0;
  const url = await startServer((_, response) => {
    pages += 1;
    response.end(JSON.stringify({ grants: [], next: pages % 2 === 0 ? 'even' : 'odd' }));
  });
  expect(await list(url)).toEqual({
    code: 69,
    stdout: '',
    stderr: `gatehouse: the admin listener ${url.origin} returns the same page repeatedly; is it gatehouse?\n`,
  });
  expect(pages).toBe(3);
});

test('a response that is not a list is reported', async () => {
  const url = await startServer((_, response) => void response.end('{}'));
  expect(await list(url)).toMatchObject({ code: 69, stderr: expect.stringContaining('without grants') });
});

test('a truncated list is reported in text and JSON output', async () => {
  let created = 0;
  const url = await startServer((_, response) => {
    const grants = Array.from({ length: 1_000 }, () => ({ id: `g${(created += 1)}` }));
    response.end(JSON.stringify({ grants, next: `after ${created}` }));
  });
  const { code, stdout, stderr } = await list(url, '--output', 'json');
  expect(code).toBe(0);
  expect(stderr).toMatch(/^gatehouse: stopped after 100000 grants; there may be more\. .*--client or --name/);
  const reported = JSON.parse(stdout) as { grants: unknown[]; cut: boolean };
  expect([reported.grants.length, reported.cut]).toEqual([100_000, true]);
});

test('with admin.port 0, --url is required', async () => {
  writeFileSync(join(directory, 'gatehouse.yaml'), stringify({ ...baseSettings(1), admin: { port: 0 } }));
  const { code, stderr } = await runAdminCommand(['grants', 'list', '--config', 'gatehouse.yaml']);
  expect([code, stderr]).toEqual([64, expect.stringMatching(/admin\.port is 0 .* --url/)]);
});

test('a token file that cannot contain a token is reported, without its content', async () => {
  const url = await startServer((_, response) => void response.end('{"grants":[]}'));
  for (const [text, why] of [
    ['', 'is empty'],
    ['  \n', 'is empty'],
    ['first-line\nsecond-line\n', 'has several lines'],
  ] as const) {
    writeFileSync(join(directory, 'no-token'), text);
    const { code, stderr } = await runAdminCommand(['grants', 'list', '--url', url.href, '--token-file', 'no-token']);
    expect([code, stderr]).toEqual([78, expect.stringContaining(why)]);
    expect(stderr).not.toContain('first-line');
  }
});

test('no command takes a token as an argument, where other users of the machine could read it', async () => {
  const { code, stderr } = await runAdminCommand(['grants', 'list', '--url', 'http://127.0.0.1:1', '--token', 'abc']);
  expect([code, stderr]).toEqual([64, expect.not.stringContaining('abc')]);
});

test('a token that ends in any kind of line break, or comes from standard input, is accepted', async () => {
  const gateway: TestGateway = await startGateway();
  try {
    const url = `http://127.0.0.1:${gateway.adminPort}`;
    const token = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
    for (const end of ['', '\n', '\r\n', '\n\n']) {
      const { access_token: access } = await gateway.grant();
      writeFileSync(join(directory, 'given'), `${token}${end}`);
      const { stdout } = await runAdminCommand([
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
      const ended = await runAdminCommand(['grants', 'revoke', grants[0]?.id ?? '', ...by], `${token}\n`);
      expect(ended).toMatchObject({ code: 0, stderr: '' });
      expect((await gateway.api('/files/a', access)).status).toBe(401);
    }
    const wrong = await runAdminCommand(
      ['grants', 'list', '--url', url, '--token-file', '-'],
      'another-token-altogether\n',
    );
    expect([wrong.code, wrong.stderr]).toEqual([77, expect.stringContaining('The token in standard input')]);
  } finally {
    await gateway.close();
  }
});

test.each([
  ['nothing', 'null', 'is not a gatehouse admin listener'],
  ['a list', '[]', 'is not a gatehouse admin listener'],
  ['grants that are none', '{"grants":[null]}', 'sent a response without grants; is it gatehouse?'],
])('a server that is not gatehouse (%s) is reported as such, not as an internal error', async (_, body, why) => {
  const url = await startServer((_request, response) => void response.end(body));
  expect(await list(url)).toMatchObject({
    code: 69,
    stdout: '',
    stderr: expect.stringContaining(`${url.origin} ${why}`),
  });
});

test('control characters in a response are escaped, and an invalid time is shown verbatim', async () => {
  const body = { 'a\u001b[2J': 'b\u009b31m', until: 'never', ended: { 'client\u001b]0;x\u0007': 'c\u202e' } };
  const url = await startServer((_request, response) => void response.end(JSON.stringify(body)));
  const by = ['--url', url.href, '--token-file', 'token'];
  const shown = await runAdminCommand(['grants', 'show', 'a'.repeat(22), ...by]);
  expect(shown).toMatchObject({ code: 0, stdout: expect.stringMatching(/^until +never$/m) });
  const ended = await runAdminCommand(['grants', 'revoke', '--client', 'c', '--yes', ...by]);
  expect(ended).toMatchObject({
    code: 0,
    stdout: expect.stringContaining('Revoked: everything issued to client'),
  });
  for (const { stdout } of [shown, ended]) expect(stdout.replaceAll('\n', '')).not.toMatch(/\p{C}/u);
});

test('standard input longer than a token is rejected, not truncated', async () => {
  let requestCount = 0;
  const url = await startServer((_request, response) => {
    requestCount += 1;
    response.end('{"grants":[]}');
  });
  const reported = await runAdminCommand(['grants', 'list', '--url', url.href, '--token-file', '-'], 'x'.repeat(5_000));
  expect(reported).toMatchObject({ code: 78, stderr: expect.stringContaining('standard input is too long') });
  expect(requestCount).toBe(0);
});
