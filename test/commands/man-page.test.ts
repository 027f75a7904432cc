import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { COMMANDS } from '../../src/commands/registry.ts';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';

needs('mandoc');

const PAGE = fileURLToPath(new URL('../../docs/gatehouse.1', import.meta.url));

test('mandoc has no warnings about the man page, except that it has no date', async () => {
  const { stdout, stderr } = await runChild(['mandoc', '-T', 'lint', '-W', 'warning', PAGE]);
  const messages = `${stdout}${stderr}`.split('\n').filter((line) => line !== '');
  expect(messages.filter((line) => !line.includes('missing date'))).toEqual([]);
});

test('the man page shows every command and every option as they are typed', async () => {
  const { stdout, code } = await runChild(['mandoc', '-T', 'ascii', PAGE]);
  expect(code).toBe(0);
  // Bold and underlined text is overstruck.
  const text = stdout.replace(/.\x08/g, '');
  const commands = await Promise.all(Object.values(COMMANDS).map(async (load) => (await load()).command));
  for (const { name, options } of commands) {
    expect(text).toContain(`gatehouse ${name}`);
    for (const option of Object.keys(options)) expect(text).toContain(`--${option}`);
  }
  expect(text).toContain('eval "$(gatehouse completion bash)"');
  expect(text).not.toMatch(/\\[-e&(]/);
});
