import { afterAll, beforeAll, test, vi } from 'vitest';
import { type ConfirmPages, openConfirmPages } from '../support/confirm-pages.ts';
import { guessAtOnce } from './code-guesses.ts';

let pages: ConfirmPages;
beforeAll(async () => {
  vi.useFakeTimers({ toFake: ['Date'] });
  pages = await openConfirmPages();
});
afterAll(async () => {
  vi.useRealTimers();
  await pages.close();
});

test('D08 two thousand guesses from as many addresses get no more than the budget of all', () =>
  guessAtOnce(pages, 34));
