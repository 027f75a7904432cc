import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { type AddressInfo, createServer as createSocketServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { expect, onTestFinished, test, vi } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { MINIMAL_CONFIG, testFolder } from '../support/configuration.ts';

async function startServer(server: Server): Promise<number> {
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  return (server.address() as AddressInfo).port;
}

/** Starts an admin listener that responds to the readiness probe with this status. */
const checkHealthOf = (status: number, body = '{}'): Promise<number> =>
  startServer(
    createServer((request, response) => {
      response.writeHead(request.url === '/readyz' ? status : 404, { connection: 'close' }).end(body);
    }),
  );

test('a ready gateway: exit code 0', async () => {
  const url = `http://127.0.0.1:${await checkHealthOf(200)}`;
  expect(await runCommand(['health', '--url', url])).toEqual({ code: 0, stdout: 'ready\n', stderr: '' });
  const { stdout } = await runCommand(['health', '--url', url, '--output', 'json']);
  expect(JSON.parse(stdout)).toEqual({ ready: true, url: `${url}/readyz` });
});

test('the address comes from the configuration', async () => {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(file, `${MINIMAL_CONFIG}admin: { host: 0.0.0.0, port: ${await checkHealthOf(200)} }\n`);
  expect((await runCommand(['health', '-c', file])).code).toBe(0);
  expect((await runCommand(['health', '-c', file, '--set', 'admin.port=0'])).code).toBe(64);
  expect((await runCommand(['health', '-c', file, '--set', 'admin.port=x'])).code).toBe(78);
});

test('not ready: exit code 69, with the status', async () => {
  const url = `http://127.0.0.1:${await checkHealthOf(503)}`;
  const { code, stderr } = await runCommand(['health', '--url', url]);
  expect(code).toBe(69);
  expect(stderr).toBe(`gatehouse: not ready: ${url}/readyz responded with 503\n`);
});

test('not ready: the failed checks and their problems are reported', async () => {
  const checks = [
    { name: 'accepting', status: 'ok' },
    { name: 'store', status: 'failed', problem: 'Redis: the connection is\u001b[2J down' },
    { name: 'workers', status: 'failed', problem: '0 of 2 are ready' },
  ];
  const url = `http://127.0.0.1:${await checkHealthOf(503, JSON.stringify({ status: 'not ready', checks }))}`;
  expect(await runCommand(['health', '--url', url])).toEqual({
    code: 69,
    stdout: '',
    stderr: 'gatehouse: not ready: store (Redis: the connection is\\u{1b}[2J down), workers (0 of 2 are ready)\n',
  });
  const { code, stdout } = await runCommand(['health', '--url', url, '--output', 'json']);
  expect(code).toBe(69);
  expect(JSON.parse(stdout)).toMatchObject({
    ready: false,
    failed: [{ name: 'store' }, { name: 'workers' }],
  });
});

test.each(['', 'null', '[]', '{"checks":{}}', '{"checks":[null]}', `{"checks":"${'x'.repeat(100_000)}"}`])(
  'not ready, without readable checks: only the status is reported',
  async (body) => {
    const url = `http://127.0.0.1:${await checkHealthOf(503, body)}`;
    expect(await runCommand(['health', '--url', url])).toMatchObject({
      code: 69,
      stderr: `gatehouse: not ready: ${url}/readyz responded with 503\n`,
    });
  },
);

test('connection refused: exit code 69', async () => {
  const { code, stderr } = await runCommand(['health', '--url', 'http://127.0.0.1:1']);
  expect(code).toBe(69);
  expect(stderr).toMatch(/cannot be reached: nothing listens at this address; is it running\? \(ECONNREFUSED\)\n$/);
});

test('a listener that never responds: exit code 69 after two seconds', async () => {
  const sockets: Socket[] = [];
  const port = await startServer(createSocketServer((socket) => void sockets.push(socket.on('error', () => {}))));
  const limit = vi.spyOn(AbortSignal, 'timeout');
  onTestFinished(() => {
    limit.mockRestore();
    for (const socket of sockets) socket.destroy();
  });
  const { code, stderr } = await runCommand(['health', '--url', `http://127.0.0.1:${port}`]);
  expect(code).toBe(69);
  expect(stderr).toMatch(/did not respond within 2 s\n$/);
  expect(limit.mock.calls).toEqual([[2_000]]);
});
