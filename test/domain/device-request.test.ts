import { describe, expect, test } from 'vitest';
import {
  checkExchangeable,
  confirm,
  type DeviceRequest,
  deny,
  formatUserCode,
  MAX_FAILED_SIGN_INS,
  parseUserCode,
  recordFailedSignIn,
} from '../../src/domain/device-request.ts';
import type { Outcome } from '../../src/domain/refusal.ts';

const body = {
  id: 'd1',
  clientId: 'Lab',
  scope: 'reports:read',
  askedAt: 0,
  askedFrom: '127.0.0.1',
  expires: 600,
  failedSignIns: 0,
};
const pending: DeviceRequest = { ...body, state: 'pending' };
const confirmed: DeviceRequest = { ...body, state: 'confirmed', identity: 'local:{42}', decidedAt: 5 };
const denied: DeviceRequest = { ...body, state: 'denied' };
const closed: DeviceRequest = { ...body, state: 'closed' };
const summarize = (outcome: Outcome<DeviceRequest>): string =>
  outcome.ok ? outcome.value.state : outcome.refusal.reason;

describe('seed 3: exchanging a device code', () => {
  test.each([
    ['the user has not decided yet', pending, 10, 'device_pending'],
    ['the user approved', confirmed, 10, 'confirmed'],
    ['the user denied', denied, 10, 'device_denied'],
    ['it was closed after too many wrong passwords', closed, 10, 'device_closed'],
    ['it expires in one second', confirmed, 599, 'confirmed'],
    ['it expires now', confirmed, 600, 'device_code_expired'],
    ['it expired without a decision', pending, 600, 'device_code_expired'],
  ])('when %s', (_, request, now, response) => {
    expect(summarize(checkExchangeable(request, now))).toBe(response);
  });
});

describe('D15 the decision on a request', () => {
  test.each([
    ['approving a pending request', confirm(pending, 'local:{42}', 10), 'confirmed'],
    ['approving again as the same person (double click)', confirm(confirmed, 'local:{42}', 10), 'confirmed'],
    ['approving again as another person', confirm(confirmed, 'local:{43}', 10), 'device_code_used'],
    ['approving after denial', confirm(denied, 'local:{42}', 10), 'device_denied'],
    ['approving after expiry', confirm(pending, 'local:{42}', 600), 'device_code_expired'],
    ['approving a closed request', confirm(closed, 'local:{42}', 10), 'device_closed'],
    ['denying a pending request', deny(pending, 10), 'denied'],
    ['denying again', deny(denied, 10), 'denied'],
    ['denying after approval', deny(confirmed, 10), 'device_code_used'],
  ])('%s', (_, outcome, state) => {
    expect(summarize(outcome)).toBe(state);
  });

  test('the fifth wrong password closes the request, the fourth does not', () => {
    let request: DeviceRequest = pending;
    const states = Array.from({ length: MAX_FAILED_SIGN_INS }, () => {
      const counted = recordFailedSignIn(request, 10);
      if (counted.ok) request = counted.value;
      return request.state;
    });
    expect(states).toEqual(['pending', 'pending', 'pending', 'pending', 'closed']);
  });
});

describe('D09 a typed user code', () => {
  test.each([
    ['BCDF-GHJK', 'BCDFGHJK'],
    ['bcdf-ghjk', 'BCDFGHJK'],
    ['bcdfghjk', 'BCDFGHJK'],
    [' b c d f  g h j k ', 'BCDFGHJK'],
    ['BCDF-GHJ', undefined],
    ['BCDF-GHJKL', undefined],
    ['BCDF-GHJ0', undefined],
    ['BCDF-GHJO', undefined],
    ['BCDF-GHJA', undefined],
    ['BCDF_GHJK', undefined],
  ])('%j', (typed, code) => {
    expect(parseUserCode(typed)).toBe(code);
  });

  test('is displayed in two groups', () => expect(formatUserCode('BCDFGHJK')).toBe('BCDF-GHJK'));
});
