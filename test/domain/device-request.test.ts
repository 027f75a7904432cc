import { describe, expect, test } from 'vitest';
import {
  confirm,
  type DeviceRequest,
  deny,
  exchangeable,
  MAX_FAILED_SIGN_INS,
  readUserCode,
  showUserCode,
  signInFailed,
} from '../../src/domain/device-request.ts';
import type { Outcome } from '../../src/domain/outcome.ts';

const asked = {
  id: 'd1',
  clientId: 'Lab',
  scope: 'reports:read',
  askedAt: 0,
  askedFrom: '127.0.0.1',
  expires: 600,
  failedSignIns: 0,
};
const pending: DeviceRequest = { ...asked, state: 'pending' };
const confirmed: DeviceRequest = { ...asked, state: 'confirmed', identity: 'local:{42}' };
const denied: DeviceRequest = { ...asked, state: 'denied' };
const closed: DeviceRequest = { ...asked, state: 'closed' };
const word = (outcome: Outcome<DeviceRequest>): string =>
  outcome.ok ? outcome.value.state : outcome.refusal.reason;

describe('seed 3: exchanging a device code', () => {
  test.each([
    ['nobody has answered yet', pending, 10, 'device_pending'],
    ['the person said yes', confirmed, 10, 'confirmed'],
    ['the person said no', denied, 10, 'device_denied'],
    ['too many wrong passwords', closed, 10, 'device_closed'],
    ['one second before it expires', confirmed, 599, 'confirmed'],
    ['at the moment it expires', confirmed, 600, 'device_code_expired'],
    ['nobody answered, and it expired', pending, 600, 'device_code_expired'],
  ])('when %s', (_, request, now, answer) => {
    expect(word(exchangeable(request, now))).toBe(answer);
  });
});

describe('D15: deciding', () => {
  test.each([
    ['yes to a pending request', confirm(pending, 'local:{42}', 10), 'confirmed'],
    ['the same person says yes again (double click)', confirm(confirmed, 'local:{42}', 10), 'confirmed'],
    ['another person says yes afterwards', confirm(confirmed, 'local:{43}', 10), 'device_code_spent'],
    ['yes after no stays no', confirm(denied, 'local:{42}', 10), 'device_denied'],
    ['yes after it expired', confirm(pending, 'local:{42}', 600), 'device_code_expired'],
    ['yes to a closed request', confirm(closed, 'local:{42}', 10), 'device_closed'],
    ['no to a pending request', deny(pending, 10), 'denied'],
    ['no again', deny(denied, 10), 'denied'],
    ['no after yes', deny(confirmed, 10), 'device_code_spent'],
  ])('%s', (_, outcome, state) => {
    expect(word(outcome)).toBe(state);
  });

  test('the fifth wrong password closes the request, the fourth does not', () => {
    let request: DeviceRequest = pending;
    const states = Array.from({ length: MAX_FAILED_SIGN_INS }, () => {
      const counted = signInFailed(request, 10);
      if (counted.ok) request = counted.value;
      return request.state;
    });
    expect(states).toEqual(['pending', 'pending', 'pending', 'pending', 'closed']);
  });
});

describe('D09: a code as people type it', () => {
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
    expect(readUserCode(typed)).toBe(code);
  });

  test('is shown in two groups', () => expect(showUserCode('BCDFGHJK')).toBe('BCDF-GHJK'));
});
