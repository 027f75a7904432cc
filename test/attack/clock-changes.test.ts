import { describe, expect, test } from 'vitest';
import { attackHouse } from '../support/attack-house.ts';

const attack = attackHouse();
const DAY = 86_400;

describe('a revoked token that is shown while the clock is wrong', () => {
  // Wrong by more than revocations are remembered: then nobody can tell that it was revoked, but it has expired.
  test.each([1, 40, 400, 4_000])(
    'is still revoked when the clock is set right, %d days back',
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
});
