import { expect, onTestFinished, test } from 'vitest';
import { limitName } from '../../src/http/rate-limit.ts';
import { openHouse } from '../support/house.ts';
import { oauthSteps } from '../support/oauth-steps.ts';

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
