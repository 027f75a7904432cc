import { expect } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { BASE, type ConfirmPages } from '../support/confirm-pages.ts';
import type { Change } from '../support/house.ts';

/** A code of the right form that no request has. */
export const WRONG = 'BCDF-GHJK';

type Rates = NonNullable<NonNullable<SettingsInput['limits']>['rates']>;

export const withRates =
  (rates: Rates): Change =>
  (settings) => ({
    ...settings,
    limits: { ...settings.limits, rates: { ...settings.limits?.rates, ...rates } },
  });

/** Rounds of 60 guesses at once, each from an address of its own. */
export async function guessAtOnce(pages: ConfirmPages, rounds: number): Promise<void> {
  await pages.change(withRates({ allCodeGuesses: '60/h' }));
  let looked = 0;
  for (let round = 0; round < rounds; round += 1) {
    const guesses = await Promise.all(
      Array.from({ length: 60 }, async () => {
        const browser = pages.browser();
        await browser.get(BASE);
        return browser.submit(BASE, { user_code: WRONG });
      }),
    );
    looked += guesses.filter(({ status }) => status === 400).length;
  }
  // The budget of all, and the small one of addresses that had not guessed before.
  expect(looked).toBe(90);
  // Closed until a budget fills again, for the right code too.
  const asked = await pages.ask();
  const browser = pages.browser();
  await browser.get(BASE);
  expect((await browser.submit(BASE, { user_code: asked.user_code })).status).toBe(429);
}
