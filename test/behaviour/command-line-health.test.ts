import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo, createServer as createSocketServer, type Server } from 'node:net';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { gatehouse } from '../support/command-line.ts';
import { folder, LEAST } from '../support/configuration.ts';

async function listening(server: Server): Promise<number> {
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  return (server.address() as AddressInfo).port;
}

/** An admin listener that answers the readiness probe with this status. */
const answering = (status: number, body = '{}'): Promise<number> =>
  listening(
    createServer((request, response) => {
      response.writeHead(request.url === '/readyz' ? status : 404, { connection: 'close' }).end(body);
    }),
  );

test('ready: 0', async () => {
  const url = `http://127.0.0.1:${await answering(200)}`;
  expect(await gatehouse(['health', '--url', url])).toEqual({ code: 0, stdout: 'ready\n', stderr: '' });
  const { stdout } = await gatehouse(['health', '--url', url, '--output', 'json']);
  expect(JSON.parse(stdout)).toEqual({ ready: true, url: `${url}/readyz` });
});

test('the address comes from the configuration', async () => {
  const file = join(folder(), 'gatehouse.yaml');
  writeFileSync(file, `${LEAST}admin: { host: 0.0.0.0, port: ${await answering(200)} }\n`);
  expect((await gatehouse(['health', '-c', file])).code).toBe(0);
  expect((await gatehouse(['health', '-c', file, '--set', 'admin.port=0'])).code).toBe(64);
  expect((await gatehouse(['health', '-c', file, '--set', 'admin.port=x'])).code).toBe(78);
});

test('not ready: 69, and why', async () => {
  const url = `http://127.0.0.1:${await answering(503)}`;
  const { code, stderr } = await gatehouse(['health', '--url', url]);
  expect(code).toBe(69);
  expect(stderr).toBe(`gatehouse: not ready: ${url}/readyz answered 503\n`);
});

test('not ready: the checks that failed, and what is wrong with them', async () => {
  const checks = [
    { name: 'accepting', status: 'ok' },
    { name: 'store', status: 'failed', problem: 'Redis: the connection is\u001b[2J down' },
    { name: 'workers', status: 'failed', problem: '0 of 2 are ready' },
  ];
  const url = `http://127.0.0.1:${await answering(503, JSON.stringify({ status: 'not ready', checks }))}`;
  expect(await gatehouse(['health', '--url', url])).toEqual({
    code: 69,
    stdout: '',
    stderr: 'gatehouse: not ready: store (Redis: the connection is [2J down), workers (0 of 2 are ready)\n',
  });
  const { code, stdout } = await gatehouse(['health', '--url', url, '--output', 'json']);
  expect(code).toBe(69);
  expect(JSON.parse(stdout)).toMatchObject({
    ready: false,
    failed: [{ name: 'store' }, { name: 'workers' }],
  });
});

test.each(['', 'null', '[]', '{"checks":{}}', '{"checks":[null]}', `{"checks":"${'x'.repeat(100_000)}"}`])(
  'not ready, and not in words of gatehouse: the status alone',
  async (body) => {
    const url = `http://127.0.0.1:${await answering(503, body)}`;
    expect(await gatehouse(['health', '--url', url])).toMatchObject({
      code: 69,
      stderr: `gatehouse: not ready: ${url}/readyz answered 503\n`,
    });
  },
);

test('nobody there: 69', async () => {
  const { code, stderr } = await gatehouse(['health', '--url', 'http://127.0.0.1:1']);
  expect(code).toBe(69);
  expect(stderr).toMatch(/cannot be reached \(ECONNREFUSED\)\n$/);
});

test('somebody who never answers: 69 after two seconds', async () => {
  const port = await listening(createSocketServer((socket) => void socket.on('error', () => {}).unref()));
  const started = performance.now();
  const { code, stderr } = await gatehouse(['health', '--url', `http://127.0.0.1:${port}`]);
  expect(code).toBe(69);
  expect(stderr).toMatch(/did not answer within 2 s\n$/);
  expect(performance.now() - started).toBeLessThan(8_000);
});
