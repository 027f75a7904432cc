import { expect, test } from 'vitest';
import { CTRL_C, READY, startOnTerminal } from './serve-on-a-terminal.ts';

test('the log is text, and Ctrl-C does not wait for shutdown.preStop', async () => {
  const terminal = await startOnTerminal({ NO_COLOR: '1' });
  expect(terminal.output()).toMatch(READY);
  terminal.write(CTRL_C);
  expect((await terminal.ended).code).toBe(0);
  expect(terminal.output()).toContain('draining pre_stop_seconds=0 drain_seconds=600');
  expect(terminal.output()).not.toContain('\u001b');
});
