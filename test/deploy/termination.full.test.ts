import { test } from 'vitest';
import { terminate } from './terminations.ts';

/** `npm run test:terminate` does it 200 times, and three times with the default pre-stop time. */
const TIMES = Number(process.env['TERMINATIONS'] ?? 10);
const WITH_DEFAULT = Number(process.env['TERMINATIONS_DEFAULT'] ?? 1);

test.each([
  { times: TIMES, preStopSeconds: 1 },
  { times: WITH_DEFAULT, preStopSeconds: 5 },
])(
  'A8 $times terminations with a pre-stop time of $preStopSeconds s lose no request',
  ({ times, preStopSeconds }) => terminate(times, preStopSeconds),
  (Math.max(TIMES, WITH_DEFAULT) + 1) * 30_000,
);
