import { expect, test } from 'vitest';
import type { Child } from '../support/child-process.ts';
import { until } from '../support/until.ts';
import { CTRL_C, READY, startOnTerminal } from './serve-on-a-terminal.ts';

const READY_JSON = /^\{"time":"[^"]+","level":"info","event":"ready"/m;

test('Ctrl-C does not wait for shutdown.preStop with two workers either', async () => {
  const terminal = await startOnTerminal({ NO_COLOR: '1' }, ['listen.workers=2']);
  terminal.write(CTRL_C);
  expect((await terminal.ended).code).toBe(0);
  expect(terminal.output().match(/draining worker=\d+ pre_stop_seconds=0 /g)).toHaveLength(2);
});

test('events are bold in the text, and log.format: json overrides it', async () => {
  const colored = await startOnTerminal();
  expect(colored.output()).toMatch(/^\d\d:\d\d:\d\d info {2}\u001b\[1mready\u001b\[22m url="/m);
  const json = await startOnTerminal({}, ['log.format=json']);
  expect(json.output()).toMatch(READY_JSON);
});

test('in a pod, which may have a terminal, the log is JSON', async () => {
  const pod = await startOnTerminal({ KUBERNETES_SERVICE_HOST: '10.0.0.1' });
  expect(pod.output()).toMatch(READY_JSON);
});

test.each([
  ['SIGTERM', {}, (terminal: Child): void => void process.kill(Number(READY.exec(terminal.output())?.[1]), 'SIGTERM')],
  ['Ctrl-C in a pod', { KUBERNETES_SERVICE_HOST: '10.0.0.1' }, (terminal: Child): void => terminal.write(CTRL_C)],
])('%s waits for shutdown.preStop; Ctrl-C then ends it at once', async (_name, env, stop) => {
  const terminal = await startOnTerminal({ NO_COLOR: '1', ...env }, ['log.format=text']);
  stop(terminal);
  await until('it is draining', () => terminal.output().includes('draining pre_stop_seconds=600 drain_seconds=600'));
  // A signal that follows immediately is taken for the same one.
  await until('it has ended', () => {
    terminal.write(CTRL_C);
    return !terminal.isRunning();
  });
  expect((await terminal.ended).code).toBe(1);
});
