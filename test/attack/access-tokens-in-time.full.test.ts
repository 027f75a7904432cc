import { expect, test } from 'vitest';
import { openHouse } from '../support/house.ts';
import { sendInvalidTokens } from './invalid-tokens.ts';

test('T20: 100,000 invalid tokens are all refused, the token cache stays bounded, and a valid token still works', {
  timeout: 600_000,
}, async ({ onTestFinished }) => {
  const house = await openHouse();
  onTestFinished(() => house.close());
  await sendInvalidTokens(house, 100_000);
  expect(house.log.filter(({ level }) => level === 'error')).toEqual([]);
});
