import { describe, expect, test } from 'vitest';
import { type Grant, judgeRefresh } from '../../src/domain/grant.ts';
import { patientClock } from '../../src/stores/embedded-sweep.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { attackHouse } from './attack-house.ts';

freezeClock();
const attack = attackHouse();
const DAY = 86_400;
const NOW = 1_800_000_000;

describe('access tokens', () => {
  // Beyond the retention of revocations the entry is gone, but the token has expired by then.
  test.each([1, 40, 400, 4_000])(
    'a revoked token presented while the clock is %d days ahead is still revoked once the clock is corrected',
    async (days) => {
      const { house } = attack;
      const { access_token: token } = await house.grant();
      expect((await house.api('/files/1', token)).status).toBe(200);
      expect((await house.api('/authsvc/Revoke/Token', token)).status).toBe(200);
      house.clock.advance(days * DAY);
      expect((await house.api('/files/1', token)).status).toBe(401);
      house.clock.advance(-days * DAY);
      const { status, text } = await house.api('/files/1', token);
      expect([status, text]).toEqual([401, expect.stringContaining('revoked')]);
    },
  );

  test('a token issued before the clock was set back is reported as not valid yet, and can be revoked', async () => {
    const { house } = attack;
    house.clock.advance(3_600);
    const { access_token: token } = await house.grant();
    house.clock.advance(-3_600);
    const verified = await house.api('/authsvc/Authorize/Verify', token);
    expect(verified.status).toBe(401);
    expect(verified.json['Error_description']).toBe('The access token is not valid yet.');
    expect((await house.api('/files/1', token)).status).toBe(401);
    expect((await house.api('/authsvc/Revoke/Token', token)).status).toBe(200);
    house.clock.advance(3_600);
    expect((await house.api('/files/1', token)).status).toBe(401);
    house.clock.advance(-3_600);
  });
});

describe('refresh tokens', () => {
  test('an outage recorded by a clock that was a day ahead does not open the retry window', () => {
    const keys = { signing: 's1', sealing: 'm1' };
    const grant: Grant = {
      id: 'g1',
      clientId: 'lab',
      identity: 'local:{42}',
      grantType: 'certificate',
      scope: 'files:read',
      issuedAt: NOW - 600,
      refreshUntil: NOW + DAY,
      generation: 2,
      rotatedAt: NOW - 60,
      accessExpires: NOW + 600,
      keys,
    };
    const attempt = {
      clientId: 'lab',
      generation: 1,
      now: NOW,
      arrivedAt: NOW,
      retryWindow: 10,
      accessLifetime: 3_600,
      keys,
    };
    const after = (began: number, ended: number) =>
      judgeRefresh(grant, { ...attempt, outages: () => [{ began, ended }] }).kind;
    expect(after(NOW + DAY, NOW + DAY + 60)).toBe('reused');
    expect(after(NOW - 40, NOW + DAY)).toBe('reused');
    // After a small correction of the clock, a client's retry is not mistaken for a replay.
    expect(after(NOW - 55, NOW + 2)).toBe('repeated');
  });

  test('a used refresh token is refused after the clock was set back, and its grant lives on', async () => {
    const { house } = attack;
    house.clock.advance(DAY);
    const first = await house.grant();
    const second = await house.refresh(first.refresh_token);
    house.clock.advance(-DAY);
    expect((await house.refresh(first.refresh_token)).json['Error']).toBe('invalid_grant');
    expect((await house.refresh(String(second.json['refresh_token']))).status).toBe(200);
  });
});

describe('the sweeper of expired records', () => {
  test('does not trust a clock that is a year ahead for a minute, and keeps revocations', () => {
    let [now, steady] = [NOW, 0];
    const pass = (seconds: number): void => {
      now += seconds;
      steady += seconds * 1_000;
    };
    const trusted = patientClock(
      () => now,
      () => steady,
    );
    pass(60);
    expect(trusted()).toBe(now);
    now += 365 * DAY;
    pass(60);
    // The revocation of a grant is kept for a day longer than the grant.
    expect(trusted()).toBeLessThan(NOW + DAY);
    now -= 365 * DAY;
    expect(trusted()).toBe(now);
  });

  test('catches up with the clock after the machine was suspended for a night', () => {
    let [now, steady] = [NOW, 0];
    const trusted = patientClock(
      () => now,
      () => steady,
    );
    now += 8 * 3_600;
    for (let seconds = 0; seconds < 600; seconds += 10) {
      now += 10;
      steady += 10_000;
      trusted();
    }
    expect(trusted()).toBe(now);
  });
});
