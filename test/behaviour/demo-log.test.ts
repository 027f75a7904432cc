import { expect, test } from 'vitest';
import { demoLog } from '../../src/commands/demo-log.ts';

test('the demo logs administrative acts and their targets', () => {
  const lines: string[] = [];
  const log = demoLog(
    (line) => void lines.push(line),
    (identity) => (identity === 'local:{a}' ? 'alice' : identity),
  );
  log.audit('admin_act', { act: 'end all of identity', by: 'admin token', identity: 'local:{a}' });
  log.audit('admin_act', {
    act: 'end grant',
    by: 'admin token',
    grant: 'g',
    client: 'app',
    identity: 'b:{b}',
  });
  expect(lines.map((line) => line.slice(10))).toEqual([
    'administration: end all of identity, alice\n',
    'administration: end grant, b:{b}, app\n',
  ]);
});
