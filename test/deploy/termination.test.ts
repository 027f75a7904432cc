import { existsSync } from 'node:fs';
import { expect, onTestFinished, test } from 'vitest';
import { startServe, until } from '../support/serve-process.ts';
import { terminate } from './repeated-termination.ts';
import { createTerminationFolder, send } from './termination.ts';

test('A8 a termination loses no request, neither those in flight nor those sent within the pre-stop time', () =>
  terminate(1));

/** Stalls the event loop right after SIGTERM, for longer than the pre-stop time, until the test has connected. */
const STALL = `
  const { existsSync, writeFileSync } = process.getBuiltinModule('node:fs');
  process.on('SIGTERM', () => setImmediate(() => {
    const end = performance.now() + 700;
    writeFileSync('stalled', '');
    while (performance.now() < end || !existsSync('go-on'))
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
  }));
`;

test('A8 a client that connects before the listener closes is served, even if the event loop was blocked then', async () => {
  const folder = await createTerminationFolder('500ms');
  onTestFinished(() => folder.remove());
  const preload = `data:text/javascript,${encodeURIComponent(STALL)}`;
  const server = await startServe(folder, { nodeOptions: ['--import', preload] });
  server.signal('SIGTERM');
  await until('the event loop is blocked', () => existsSync(folder.file('stalled')));
  const late = send(folder, server.port, '/late');
  late.finish('');
  await until('the client is connected', () => Number.isFinite(late.connected()));
  folder.write('go-on', '');
  expect(await late.answer).toEqual({ status: 200, text: 'ok' });
  expect((await server.ended).code).toBe(0);
});
