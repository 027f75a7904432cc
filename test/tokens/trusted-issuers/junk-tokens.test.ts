import { expect, onTestFinished, test } from 'vitest';
import { floodVerification, setUpVerification } from './junk-tokens.ts';

// 10,000 and more tokens, with the heap measured: junk-tokens.full.test.ts.
test('junk tokens of a trusted issuer are not kept, cause one fetch per cooldown, and valid ones are accepted', async () => {
  const verification = await setUpVerification();
  onTestFinished(() => verification.close());
  await floodVerification(verification, 2_000);
  expect(verification.state.fetches).toBe(1);
  verification.state.seconds += 30;
  await floodVerification(verification, 200);
  expect(verification.state.fetches).toBe(2);
});
