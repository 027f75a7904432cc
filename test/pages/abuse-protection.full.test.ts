import { afterAll, beforeAll, test } from 'vitest';
import { freezeClock } from '../support/frozen-clock.ts';
import { type PagesHarness, startPagesHarness } from '../support/pages-harness.ts';
import { guessConcurrently } from './code-guesses.ts';

let pages: PagesHarness;
freezeClock();
beforeAll(async () => {
  pages = await startPagesHarness();
});
afterAll(() => pages.close());

test('D08 two thousand guesses from as many addresses do not exceed the shared limit', () =>
  guessConcurrently(pages, 67));
