import { expect, onTestFinished, test } from 'vitest';
import { floodVerification, setUpVerification } from './junk-tokens.ts';

// 10,000 and more tokens, with the heap measured: junk-tokens.full.test.ts.
test('junk tokens of a trusted issuer are not kept, cause few fetches, and valid ones are accepted', async () => {
  const verification = await setUpVerification();
  onTestFinished(() => verification.close());
  await floodVerification(verification, 2_000);
  // The first one, and three for unknown keys.
  expect(verification.state.fetches).toBe(4);
  verification.state.seconds += 30;
  await floodVerification(verification, 200);
  expect(verification.state.fetches).toBe(5);
});
