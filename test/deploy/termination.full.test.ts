import { test } from 'vitest';
import { terminate } from './repeated-termination.ts';

/** `npm run test:terminate` runs 200 terminations. */
const TIMES = Number(process.env['TERMINATIONS'] ?? 10);

test(`A8 ${TIMES} terminations lose no request`, () => terminate(TIMES), (TIMES + 1) * 30_000);
