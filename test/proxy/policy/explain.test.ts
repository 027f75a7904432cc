import { expect, test } from 'vitest';
import {
  expectAgreement,
  expectedOf,
  explainedOutcome,
  statusOf,
  withExplainedGateway,
} from './explained-requests.ts';

withExplainedGateway();

test('explain and the running gateway agree on 100 requests', () => expectAgreement(100, 20_260_131));

test.each([
  ['GET', '/authsvc/Authorize/Verify', 'handled_by_gatehouse'],
  ['GET', '/AUTHSVC/nothing', 'handled_by_gatehouse'],
  ['TRACE', '/files/a', 'method_not_allowed'],
  ['CONNECT', 'localhost:8443', 'method_not_allowed'],
  ['GET', '/files/a?access_token=x', 'invalid_request'],
  ['GET', 'http://evil/files/a', 'misdirected'],
] as const)('explain describes what the gateway does with %s %s', async (method, target, verdict) => {
  const request = { method, target, host: 'localhost:8443', token: 'report-runner files:read' };
  const reported = explainedOutcome(request);
  expect(reported.verdict).toBe(verdict);
  const expected = expectedOf(reported, request.token);
  const status = await statusOf(request);
  if (expected !== undefined) expect(status).toBe(expected);
});
