import { expect, test } from 'vitest';
import { createDemoLog } from '../../src/commands/demo/log.ts';

test('the demo logs administrative actions and their targets', () => {
  const lines: string[] = [];
  const log = createDemoLog(
    (line) => void lines.push(line),
    (identity) => (identity === 'local:{a}' ? 'alice' : identity),
  );
  log.audit('admin_action', { act: 'revoke_all_of_identity', by: 'admin token', identity: 'local:{a}' });
  log.audit('admin_action', {
    act: 'revoke_grant',
    by: 'admin token',
    grant: 'g',
    client: 'app',
    identity: 'b:{b}',
  });
  expect(lines.map((line) => line.slice(10))).toEqual([
    'admin action: revoke all of identity, alice\n',
    'admin action: revoke grant, b:{b}, app\n',
  ]);
});
