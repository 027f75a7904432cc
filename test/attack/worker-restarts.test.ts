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

const events = (name: string): number => serve.log.filter(({ event }) => event === name).length;
const stateOf = (pid: number): string =>
  readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]?.[0] ?? '';
const bothReady = (): Promise<boolean> =>
  until('both workers are ready', async () => (await readiness(serve)) === 200);

test('the supervisor survives a reload signal that arrives together with the death of a worker', async () => {
  const [victim = 0] = serve.workers;
  // Stopped, so that it finds the death and the signal at the same time.
  serve.signal('SIGSTOP');
  await until('the supervisor is stopped', () => stateOf(serve.pid) === 'T');
  process.kill(victim, 'SIGKILL');
  await until('the worker is dead', () => stateOf(victim) === 'Z');
  serve.signal('SIGHUP');
  serve.signal('SIGCONT');
  await until('the death is noticed', () => events('worker_exited') === 1);
  await until('the other worker has reloaded', () => events('reloaded') > 0);
  await bothReady();
  expect(events('uncaught_exception')).toBe(0);
});

test('a worker that starts while the configuration file is invalid uses the last valid configuration', async () => {
  const ended = events('worker_exited');
  const valid = readFileSync(folder.file('gatehouse.yaml'), 'utf8');
  folder.write('gatehouse.yaml', `${valid}\nunknown: true\n`);
  process.kill(serve.workers[1] ?? 0, 'SIGKILL');
  await until('the worker has ended', () => events('worker_exited') === ended + 1);
  await bothReady();
  expect(events('worker_exited')).toBe(ended + 1);
});

test('SIGTERM ends a supervisor that has replaced its workers with exit code 0', async () => {
  expect(await serve.stop()).toBe(0);
});
