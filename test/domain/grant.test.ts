import { describe, expect, test } from 'vitest';
import {
  computeAccessExpiry,
  decideRefresh,
  type Grant,
  getGrantState,
  type RefreshAttempt,
} from '../../src/domain/grant.ts';

const NOON = 43_200;
const keys = { signing: 's1', sealing: 'm1' };
const createGrant = (changes: Partial<Grant> = {}): Grant => ({
  id: 'g1',
  clientId: 'Lab',
  identity: 'local:{42}',
  grantType: 'certificate',
  scope: 'reports:read',
  issuedAt: NOON - 1_000,
  refreshUntil: NOON + 900,
  generation: 4,
  rotatedAt: NOON - 5,
  accessExpires: NOON + 600,
  keys,
  ...changes,
});
const createAttempt = (changes: Partial<RefreshAttempt> = {}): RefreshAttempt => ({
  clientId: 'Lab',
  generation: 4,
  now: NOON,
  arrivedAt: NOON,
  retryWindow: 10,
  outages: () => [],
  accessLifetime: 3_600,
  keys,
  ...changes,
});
const verdict = (grant: Partial<Grant>, request: Partial<RefreshAttempt>): string => {
  const verdict = decideRefresh(createGrant(grant), createAttempt(request));
  return verdict.kind === 'refused' ? verdict.refusal.reason : verdict.kind;
};

describe('seed 3: the state of a grant', () => {
  test.each([
    ['before refresh_until', { refreshUntil: NOON + 1 }, 'live'],
    ['at refresh_until', { refreshUntil: NOON }, 'expired'],
    ['after refresh_until', { refreshUntil: NOON - 1 }, 'expired'],
    ['revoked, at any time', { revokedAt: NOON - 1 }, 'revoked'],
  ])('%s', (_, changes, phase) => {
    expect(getGrantState(createGrant(changes), NOON)).toBe(phase);
  });
});

describe('wire 2: the decision on a refresh', () => {
  test.each<[string, Partial<Grant>, Partial<RefreshAttempt>, string]>([
    ['the current token rotates', {}, {}, 'rotated'],
    ['the direct predecessor within the window gets the same tokens again', {}, { generation: 3 }, 'retried'],
    ['one millisecond before the window ends', {}, { generation: 3, now: NOON + 4.999 }, 'retried'],
    ['at the end of the window it is reuse', {}, { generation: 3, now: NOON + 5 }, 'reused'],
    ['the predecessor of the predecessor is reuse at once', {}, { generation: 2 }, 'reused'],
    ['window 0: the predecessor is reuse', {}, { generation: 3, retryWindow: 0 }, 'reused'],
    [
      'window 0: of concurrent calls the later one is rejected without revoking the grant',
      {},
      { generation: 3, retryWindow: 0, arrivedAt: NOON - 5.01 },
      'refresh_token_used',
    ],
    [
      'an outage that starts within the window does not use it up',
      {},
      { generation: 3, now: NOON + 30, outages: () => [{ began: NOON, ended: NOON + 28 }] },
      'retried',
    ],
    [
      'after the outage, the window continues and ends',
      {},
      { generation: 3, now: NOON + 33, outages: () => [{ began: NOON, ended: NOON + 28 }] },
      'reused',
    ],
    [
      'an outage that starts after the window does not reopen it',
      {},
      { generation: 3, now: NOON + 30, outages: () => [{ began: NOON + 5, ended: NOON + 30 }] },
      'reused',
    ],
    [
      'consecutive outages add up, overlapping ones count once',
      {},
      {
        generation: 3,
        now: NOON + 30,
        outages: () => [
          { began: NOON + 12, ended: NOON + 28 },
          { began: NOON - 4, ended: NOON + 6 },
          { began: NOON, ended: NOON + 10 },
        ],
      },
      'retried',
    ],
    [
      'overlapping outages do not count twice',
      {},
      {
        generation: 3,
        now: NOON + 30,
        outages: () => [
          { began: NOON - 4, ended: NOON + 12 },
          { began: NOON - 4, ended: NOON + 12 },
        ],
      },
      'reused',
    ],
    [
      'window 0 stays closed during an outage',
      {},
      { generation: 3, retryWindow: 0, outages: () => [{ began: NOON - 5, ended: NOON }] },
      'reused',
    ],
    ['R16 a token newer than the record rolls it forward', {}, { generation: 6 }, 'rotated'],
    ['client_id is case-sensitive', {}, { clientId: 'lab' }, 'client_mismatch'],
    [
      'another client changes nothing, even with a used token',
      {},
      { clientId: 'other', generation: 1 },
      'client_mismatch',
    ],
    ['an expired grant', { refreshUntil: NOON }, {}, 'grant_expired'],
    ['a revoked grant', { revokedAt: NOON - 1 }, {}, 'grant_revoked'],
    ['a used token of a revoked grant', { revokedAt: NOON - 1 }, { generation: 1 }, 'grant_revoked'],
    ['a bound grant without its certificate', { boundTo: 'abc' }, {}, 'certificate_binding_mismatch'],
    [
      'a bound grant with another certificate',
      { boundTo: 'abc' },
      { certificate: 'abd' },
      'certificate_binding_mismatch',
    ],
    ['a bound grant with its certificate', { boundTo: 'abc' }, { certificate: 'abc' }, 'rotated'],
    [
      'a used token of a bound grant without its certificate changes nothing',
      { boundTo: 'abc' },
      { generation: 1 },
      'certificate_binding_mismatch',
    ],
  ])('%s', (_, grant, request, expected) => {
    expect(verdict(grant, request)).toBe(expected);
  });

  test('rotation increments the generation, keeps refresh_until, and caps the access token at it', () => {
    const verdict = decideRefresh(createGrant(), createAttempt());
    expect(verdict).toMatchObject({
      kind: 'rotated',
      rolledForward: false,
      grant: { generation: 5, refreshUntil: NOON + 900, accessExpires: NOON + 900, rotatedAt: NOON },
    });
  });

  test('R16 a rolled-forward record continues from the generation of the token', () => {
    expect(decideRefresh(createGrant(), createAttempt({ generation: 9 }))).toMatchObject({
      kind: 'rotated',
      rolledForward: true,
      grant: { generation: 10 },
    });
  });

  test('R04 a repeated response leaves the record unchanged, so the window is not extended', () => {
    const verdict = decideRefresh(createGrant(), createAttempt({ generation: 3 }));
    expect(verdict).toMatchObject({ kind: 'retried', grant: { rotatedAt: NOON - 5, generation: 4 } });
  });
});

test('a 90-day lifetime at a fraction of a second yields 7775999 seconds, as in the specification', () => {
  const now = NOON + 0.4;
  const expires = computeAccessExpiry(now, 7_776_000, Number.MAX_SAFE_INTEGER);
  expect(Math.floor(expires - now)).toBe(7_775_999);
});
