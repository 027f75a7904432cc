import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sendRequest } from '../support/https-client.ts';
import { createServeFolder, type ServeFolder, type ServeProcess, startServe, until } from '../support/serve-process.ts';

let folder: ServeFolder;
let server: ServeProcess;
beforeAll(async () => {
  folder = await createServeFolder();
  server = await startServe(folder);
});
afterAll(() => folder.remove());

const countDescriptors = (): number => readdirSync(`/proc/${server.pid}/fd`).length;

/** On a new connection: an open one would still be served. */
const isReady = (): Promise<boolean> =>
  sendRequest({ port: server.adminPort, path: '/readyz', plain: true }).then(
    ({ status }) => status === 200,
    () => false,
  );

test('S21 a process without free file descriptors accepts no connection, and accepts again when some are free', async () => {
  const limit = countDescriptors() + 20;
  execFileSync('prlimit', ['--pid', String(server.pid), `--nofile=${limit}:${limit}`]);
  const sockets: Socket[] = [];
  await until('no connection is accepted', async () => {
    // Connections beyond the limit are closed at once, and the next one takes the descriptor that this frees.
    for (let count = 0; count < 50; count += 1) sockets.push(connect(server.port, '127.0.0.1').on('error', () => {}));
    return !(await isReady());
  });
  for (const socket of sockets) socket.destroy();
  await until('the process is ready again', isReady);
  expect(countDescriptors()).toBeLessThan(limit);
  expect(await server.stop()).toBe(0);
});
