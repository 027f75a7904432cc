import { expect, test } from 'vitest';
import { agreeOn, expectedOf, said, statusOf, withExplainedGateway } from './explained-requests.ts';

withExplainedGateway();

test('explain and the running gateway agree on 100 requests', () => agreeOn(100, 20_260_131));

test.each([
  ['GET', '/authsvc/Authorize/Verify', 'answered_here'],
  ['GET', '/AUTHSVC/nothing', 'answered_here'],
  ['TRACE', '/files/a', 'method_not_served'],
  ['CONNECT', 'localhost:8443', 'method_not_served'],
  ['GET', '/files/a?access_token=x', 'bad_path'],
  ['GET', 'http://evil/files/a', 'misdirected'],
] as const)('explain describes what the gateway does with %s %s', async (method, target, verdict) => {
  const asked = { method, target, host: 'localhost:8443', token: 'report-runner files:read' };
  const told = said(asked);
  expect(told.verdict).toBe(verdict);
  const expected = expectedOf(told, asked.token);
  const status = await statusOf(asked);
  if (expected !== undefined) expect(status).toBe(expected);
});
