import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  createServeFolder,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

let folder: ServeFolder;
let serve: ServeProcess;
beforeAll(async () => {
  folder = await createServeFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers: 2 },
  }));
  serve = await startServe(folder);
});
afterAll(() => folder.remove());

const countEvents = (name: string): number => serve.log.filter(({ event }) => event === name).length;
const getProcessState = (pid: number): string => readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]?.[0] ?? '';
const waitUntilReady = (): Promise<boolean> =>
  until('both workers are ready', async () => (await readiness(serve)) === 200);

test('the supervisor survives a reload signal that arrives together with the exit of a worker', async () => {
  const [victim = 0] = serve.workers;
  // Stop the supervisor so that it handles the exit and the signal in the same event-loop iteration.
  serve.signal('SIGSTOP');
  await until('the supervisor is stopped', () => getProcessState(serve.pid) === 'T');
  process.kill(victim, 'SIGKILL');
  await until('the worker is a zombie', () => getProcessState(victim) === 'Z');
  serve.signal('SIGHUP');
  serve.signal('SIGCONT');
  await until('the exit is logged', () => countEvents('worker_exited') === 1);
  await until('the other worker has reloaded', () => countEvents('reloaded') > 0);
  await waitUntilReady();
  expect(countEvents('uncaught_exception')).toBe(0);
});

test('a worker that starts while the configuration file is invalid uses the last valid configuration', async () => {
  const exitCount = countEvents('worker_exited');
  const valid = readFileSync(folder.file('gatehouse.yaml'), 'utf8');
  folder.write('gatehouse.yaml', `${valid}\nunknown: true\n`);
  process.kill(serve.workers[1] ?? 0, 'SIGKILL');
  await until('the worker has exited', () => countEvents('worker_exited') === exitCount + 1);
  await waitUntilReady();
  expect(countEvents('worker_exited')).toBe(exitCount + 1);
});

test('on SIGTERM a supervisor that has replaced workers exits with code 0', async () => {
  expect(await serve.stop()).toBe(0);
});
