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

/** Rounds of 30 guesses at once, each from an address of its own, until no more are looked up. */
export async function guessAtOnce(pages: ConfirmPages, rounds: number): Promise<void> {
  await pages.change(withRates({ allCodeGuesses: '60/h' }));
  const guess = async (): Promise<number> => {
    const browser = pages.browser();
    await browser.get(BASE);
    return (await browser.submit(BASE, { user_code: WRONG })).status;
  };
  let all = 0;
  for (let round = 1, some = 1; some > 0 || round <= rounds; round += 1) {
    const statuses = await Promise.all(Array.from({ length: 30 }, guess));
    some = statuses.filter((status) => status === 400).length;
    all += some;
  }
  // The budget of all, and the small one of addresses that had not guessed before.
  expect(all).toBe(90);
  // Closed until a budget fills again, for the right code too.
  const asked = await pages.ask();
  const browser = pages.browser();
  await browser.get(BASE);
  expect((await browser.submit(BASE, { user_code: asked.user_code })).status).toBe(429);
}
