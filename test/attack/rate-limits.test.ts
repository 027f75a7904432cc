import { expect, onTestFinished, test } from 'vitest';
import { limitName, rateLimit } from '../../src/http/rate-limit.ts';
import { createPeople } from '../../src/identity/people.ts';
import { BASE, confirmHouse } from '../support/confirm-house.ts';
import { openHouse, testPasswordHash } from '../support/house.ts';
import { BASE_DN, PEOPLE_SETTINGS } from '../support/ldap-server.ts';
import { oauthSteps } from '../support/oauth-steps.ts';

test('while one directory is unreachable, password guesses still use up the limit of their user name', async () => {
  const house = await confirmHouse();
  onTestFinished(() => house.close());
  const people = createPeople({
    staff: {
      label: 'staff',
      derive: false,
      users: [
        {
          id: '{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
          name: 'alice',
          groups: ['operators'],
          disabled: false,
          passwordHash: testPasswordHash('right password'),
        },
      ],
    },
    corp: {
      label: 'corp',
      derive: false,
      users: [],
      ldap: {
        ...PEOPLE_SETTINGS,
        // Port 1 is reserved (tcpmux): the connection is refused.
        url: ['ldap://127.0.0.1:1'],
        timeout: 2,
        connections: 2,
        base: BASE_DN,
        filter: '(objectClass=person)',
      },
    },
  });
  onTestFinished(() => people.close());
  Object.assign(house.desk, { people });
  Object.assign(house.memory, {
    failuresAs: rateLimit({ burst: 3, perSecond: 0.001 }, () => house.world.now),
  });
  const statuses: number[] = [];
  for (const password of ['one', 'two', 'three', 'right password']) {
    const browser = house.browser({ address: `198.51.100.${statuses.length}` });
    await browser.get(`${BASE}/grants`);
    await browser.get(`${BASE}/sign-in`);
    statuses.push((await browser.submit(`${BASE}/sign-in`, { user_name: 'alice', password })).status);
  }
  // 503, since the user may be in the unreachable directory; and counted as a failure.
  expect(statuses).toEqual([503, 503, 503, 429]);
});

test('an IPv6 network of 64 bits has one limit, shared with no other network, in every notation', () => {
  const same = ['2001:db8:0:7::1', '2001:DB8:0:7:a:b:c:d', '2001:0db8:0000:0007::', '2001:db8:0:7:0:0:0:2'];
  expect(new Set(same.map(limitName)).size).toBe(1);
  const others = ['2001::7:1:2:3:4', '2001::8:1:2:3:4', '2001::1', '::1', '2001:db8::1'];
  expect(new Set(others.map(limitName)).size).toBe(others.length);
});

test('client_credentials is subject to the rate limit of Authorize/Certificate', async () => {
  const house = await openHouse((settings) => ({
    ...settings,
    limits: { rates: { ...settings.limits?.rates, certificate: '1/h' } },
  }));
  onTestFinished(() => house.close());
  const steps = oauthSteps(house);
  expect((await steps.clientCredentials()).status).toBe(200);
  const second = await steps.clientCredentials();
  expect(second.status).toBe(429);
  expect(second.headers['retry-after']).toMatch(/^\d+$/);
});
