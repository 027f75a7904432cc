import { expect, test } from 'vitest';
import {
  expectAgreement,
  explainRequest,
  getExpectedStatus,
  getStatus,
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
] as const)('explain and the gateway agree on %s %s', async (method, target, verdict) => {
  const request = { method, target, host: 'localhost:8443', token: 'report-runner files:read' };
  const explanation = explainRequest(request);
  expect(explanation.verdict).toBe(verdict);
  const expected = getExpectedStatus(explanation, request.token);
  const status = await getStatus(request);
  if (expected !== undefined) expect(status).toBe(expected);
});
