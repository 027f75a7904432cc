import { expect, test, vi } from 'vitest';
import type { LogFields } from '../../src/observability/logger.ts';
import { createFailureReporter } from '../../src/observability/report-limiter.ts';
import { Fault } from '../../src/ports/fault.ts';

function createReporter() {
  const lines: LogFields[] = [];
  const report = createFailureReporter(
    { error: (event, fields) => void lines.push({ event, ...fields }) },
    'authorization_failed',
  );
  return { lines, report };
}

const createFault = (issuer: string): Fault =>
  new Fault('keys_unavailable', `the keys of the issuer ${issuer} cannot be fetched`, {
    issuer,
    cause: new Error('connect ECONNREFUSED'),
  });

test('a failed dependency is logged at once, and then once a minute with the number of requests', () => {
  vi.useFakeTimers();
  try {
    const { lines, report } = createReporter();
    for (let second = 0; second < 120; second += 1) {
      report(`r${second}`, createFault('corp'));
      vi.advanceTimersByTime(1_000);
    }
    const common = {
      event: 'authorization_failed',
      error: 'the keys of the issuer corp cannot be fetched',
      code: 'keys_unavailable',
      cause: 'connect ECONNREFUSED',
      issuer: 'corp',
    };
    expect(lines).toEqual([
      { ...common, request_id: 'r0', requests: 1 },
      { ...common, request_id: 'r60', requests: 60 },
    ]);
  } finally {
    vi.useRealTimers();
  }
});

test('another failure is logged at once, and many different ones share a limit', () => {
  const { lines, report } = createReporter();
  report('a', createFault('corp'));
  report('b', new Fault('store_unavailable', 'Redis: unreachable'));
  expect(lines.map(({ request_id: id }) => id)).toEqual(['a', 'b']);
  for (let index = 0; index < 1_000; index += 1) report('c', createFault(`other-${index}`));
  expect(lines.length).toBeLessThan(70);
});

test('an internal error is logged each time, with its stack', () => {
  const { lines, report } = createReporter();
  for (const id of ['a', 'b']) report(id, new TypeError('a bug'));
  expect(lines).toMatchObject([
    { request_id: 'a', error: 'a bug', stack: expect.any(Array) },
    { request_id: 'b', error: 'a bug', stack: expect.any(Array) },
  ]);
});
