import { expect } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { BASE, type PagesHarness, type PendingRequest } from '../support/pages-harness.ts';
import type { SettingsChange } from '../support/test-gateway.ts';

/** A well-formed code of no request. */
export const WRONG = 'BCDF-GHJK';

type Rates = NonNullable<NonNullable<SettingsInput['limits']>['rates']>;

export const withRates =
  (rates: Rates): SettingsChange =>
  (settings) => ({
    ...settings,
    limits: { ...settings.limits, rates: { ...settings.limits?.rates, ...rates } },
  });

/** Sends rounds of 30 concurrent guesses, each from its own address, until the shared limit is used up. */
export async function guessConcurrently(pages: PagesHarness, rounds: number): Promise<void> {
  await pages.reconfigure(withRates({ allCodeGuesses: '60/h' }));
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
  expect(all).toBe(60);
  await approveAfterSignIn(pages, await pages.requestCodes());
}

/** While the shared limit is used up, a user with the right code signs in first and can continue. */
export async function approveAfterSignIn(pages: PagesHarness, pending: PendingRequest): Promise<void> {
  const user = pages.browser();
  await user.get(BASE);
  const rejected = await user.submit(BASE, { user_code: pending.user_code });
  expect(rejected.status).toBe(429);
  expect(rejected.text).toContain(`href="${BASE}/sign-in"`);
  await user.open(`${BASE}/sign-in`);
  const again = await user.signIn();
  expect(again.text).toContain(`value="${pending.user_code}"`);
  const review = await user.submit(BASE, { user_code: pending.user_code });
  expect(review.text).toContain('Alice Example');
  expect((await user.submit(`${BASE}/approve`)).text).toContain('<h1>Approved</h1>');
  expect(await pages.readState(pending)).toBe('confirmed');
}
