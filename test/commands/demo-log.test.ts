import { expect, test } from 'vitest';
import { createDemoLog } from '../../src/commands/demo/log.ts';

test('the demo logs refused requests of the API with their reason, and no others', () => {
  const lines: string[] = [];
  const log = createDemoLog(
    (line) => void lines.push(line),
    (identity) => (identity === 'local:{a}' ? 'alice' : identity),
  );
  const request = { event: 'request', method: 'POST', path: '/reports', status: 403, client: 'app' };
  for (const more of [
    {
      rule: 'routes[3] /reports/**',
      decision: 'refused',
      reason: 'scope_insufficient',
      identity: 'local:{a}',
    },
    { rule: 'routes[3] /reports/**', decision: 'forwarded', identity: 'local:{a}' },
    { rule: 'authsvc:token', decision: 'refused', reason: 'scope_exceeds' },
    { status: 404, decision: 'refused', reason: 'no_rule', path: '/\u001b[31m' },
  ])
    log.output?.write(`${JSON.stringify({ ...request, ...more })}\n`);
  expect(lines.map((line) => line.slice(10))).toEqual([
    'request refused: POST /reports (403): scope insufficient, alice, app\n',
    'request refused: POST /\\u{1b}[31m (404): no rule, app\n',
  ]);
});

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
