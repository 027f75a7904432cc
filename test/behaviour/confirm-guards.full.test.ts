import { afterAll, beforeAll, test } from 'vitest';
import { type ConfirmPages, openConfirmPages } from '../support/confirm-pages.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { guessAtOnce } from './code-guesses.ts';

let pages: ConfirmPages;
freezeClock();
beforeAll(async () => {
  pages = await openConfirmPages();
});
afterAll(() => pages.close());

test('D08 two thousand guesses from as many addresses get no more than the budget of all', () =>
  guessAtOnce(pages, 34));
