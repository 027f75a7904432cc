import { expect, test } from 'vitest';
import { startGateway } from '../support/test-gateway.ts';
import { sendInvalidTokens } from './invalid-tokens.ts';

test('T20: 100,000 invalid tokens are all refused, the token cache stays bounded, and a valid token still works', {
  timeout: 600_000,
}, async ({ onTestFinished }) => {
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  await sendInvalidTokens(gateway, 100_000);
  expect(gateway.log.filter(({ level }) => level === 'error')).toEqual([]);
});
