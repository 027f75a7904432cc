import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sendRequest } from '../support/https-client.ts';
import {
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

let folder: ServeFolder;
let server: ServeProcess;
beforeAll(async () => {
  folder = await createServeFolder();
  server = await startServe(folder);
});
afterAll(() => folder.remove());

const descriptors = (): number => readdirSync(`/proc/${server.pid}/fd`).length;

/** On a connection of its own: a kept-alive one would go on being served. */
const ready = (): Promise<boolean> =>
  sendRequest({ port: server.adminPort, path: '/readyz', plain: true }).then(
    ({ status }) => status === 200,
    () => false,
  );

test('S21 out of file descriptors the process accepts no connection, and does again when some are free', async () => {
  const limit = descriptors() + 20;
  execFileSync('prlimit', ['--pid', String(server.pid), `--nofile=${limit}:${limit}`]);
  const sockets: Socket[] = [];
  await until('no connection is accepted', async () => {
    // Connections beyond the limit are closed at once; a descriptor that becomes free then is taken by the next one.
    for (let count = 0; count < 50; count += 1)
      sockets.push(connect(server.port, '127.0.0.1').on('error', () => {}));
    return !(await ready());
  });
  for (const socket of sockets) socket.destroy();
  await until('it is ready again', ready);
  expect(descriptors()).toBeLessThan(limit);
  expect(await server.stop()).toBe(0);
});
