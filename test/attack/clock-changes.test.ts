import { describe, expect, test } from 'vitest';
import { decideRefresh, type Grant } from '../../src/domain/grant.ts';
import { createSlewedClock } from '../../src/stores/embedded/store.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { useAttackGateway } from './attack-gateway.ts';

freezeClock();
const attack = useAttackGateway();
const DAY = 86_400;
const NOW = 1_800_000_000;

describe('access tokens', () => {
  // Beyond the retention of revocations the entry is gone, but the token has expired by then.
  test.each([1, 40, 400, 4_000])(
    'a revoked token presented while the clock is %d days ahead is still revoked once the clock is corrected',
    async (days) => {
      const { gateway } = attack;
      const { access_token: token } = await gateway.grant();
      expect((await gateway.api('/files/1', token)).status).toBe(200);
      expect((await gateway.api('/authsvc/Revoke/Token', token)).status).toBe(200);
      gateway.clock.advance(days * DAY);
      expect((await gateway.api('/files/1', token)).status).toBe(401);
      gateway.clock.advance(-days * DAY);
      const { status, text } = await gateway.api('/files/1', token);
      expect([status, text]).toEqual([401, expect.stringContaining('revoked')]);
    },
  );

  test('a token issued before the clock was set back is reported as not valid yet, and can be revoked', async () => {
    const { gateway } = attack;
    gateway.clock.advance(3_600);
    const { access_token: token } = await gateway.grant();
    gateway.clock.advance(-3_600);
    const verified = await gateway.api('/authsvc/Authorize/Verify', token);
    expect(verified.status).toBe(401);
    expect(verified.json['Error_description']).toBe('The access token is not valid yet.');
    expect((await gateway.api('/files/1', token)).status).toBe(401);
    expect((await gateway.api('/authsvc/Revoke/Token', token)).status).toBe(200);
    gateway.clock.advance(3_600);
    expect((await gateway.api('/files/1', token)).status).toBe(401);
    gateway.clock.advance(-3_600);
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
    const decideAfterOutage = (began: number, ended: number) =>
      decideRefresh(grant, { ...attempt, outages: () => [{ began, ended }] }).kind;
    expect(decideAfterOutage(NOW + DAY, NOW + DAY + 60)).toBe('reused');
    expect(decideAfterOutage(NOW - 40, NOW + DAY)).toBe('reused');
    // After a small correction of the clock, a client's retry is not mistaken for a replay.
    expect(decideAfterOutage(NOW - 55, NOW + 2)).toBe('retried');
  });

  test('a used refresh token is rejected after the clock was set back, and its grant stays valid', async () => {
    const { gateway } = attack;
    gateway.clock.advance(DAY);
    const first = await gateway.grant();
    const second = await gateway.refresh(first.refresh_token);
    gateway.clock.advance(-DAY);
    expect((await gateway.refresh(first.refresh_token)).json['Error']).toBe('invalid_grant');
    expect((await gateway.refresh(String(second.json['refresh_token']))).status).toBe(200);
  });
});

test('a device that polled before the clock was set back need not wait until the clock catches up', async () => {
  const { gateway } = attack;
  const device = createDeviceClient(gateway);
  const { device_code } = await device.requestCodes();
  /** Undefined: the poll was accepted. */
  const getWait = async () => (await device.exchange(device_code)).headers['retry-after'];
  expect(await getWait()).toBeUndefined();
  const wait = await getWait();
  expect(Number(wait)).toBeGreaterThan(0);
  gateway.clock.advance(-3_600);
  expect(await getWait()).toBeUndefined();
  expect(await getWait()).toBe(wait);
  gateway.clock.advance(3_600);
});

describe('the sweeper of expired records', () => {
  test('does not trust a clock that is a year ahead for a minute, and keeps revocations', () => {
    let [now, steady] = [NOW, 0];
    const advance = (seconds: number): void => {
      now += seconds;
      steady += seconds * 1_000;
    };
    const trusted = createSlewedClock(
      () => now,
      () => steady,
    );
    advance(60);
    expect(trusted()).toBe(now);
    now += 365 * DAY;
    advance(60);
    // The revocation of a grant is kept for a day longer than the grant.
    expect(trusted()).toBeLessThan(NOW + DAY);
    now -= 365 * DAY;
    expect(trusted()).toBe(now);
  });

  test('catches up with the clock after the machine was suspended for a night', () => {
    let [now, steady] = [NOW, 0];
    const trusted = createSlewedClock(
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
