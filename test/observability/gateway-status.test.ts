import { expect, test } from 'vitest';
import {
  boundProblems,
  EMPTY_STATUS,
  type GatewayStatus,
  type IssuerStatus,
  mergeStatuses,
} from '../../src/observability/gateway-status.ts';

const createIssuer = (state: IssuerStatus['state'], more: Partial<IssuerStatus> = {}): IssuerStatus => ({
  name: 'corp',
  state,
  fetchedAt: undefined,
  failure: undefined,
  ...more,
});
const createStatus = (...issuers: readonly IssuerStatus[]): GatewayStatus => ({ ...EMPTY_STATUS, issuers });

test('a reload that one worker rejects is rejected, since the first rejection and with all problems once', () => {
  const merged = mergeStatuses([
    { ...EMPTY_STATUS, rejectedReload: { since: 20, problems: ['a: wrong', 'b: wrong'] } },
    EMPTY_STATUS,
    { ...EMPTY_STATUS, rejectedReload: { since: 10, problems: ['b: wrong', 'c: wrong'] } },
  ]);
  expect(merged.rejectedReload).toEqual({ since: 10, problems: ['a: wrong', 'b: wrong', 'c: wrong'] });
  expect(mergeStatuses([EMPTY_STATUS, EMPTY_STATUS]).rejectedReload).toBeUndefined();
  expect(mergeStatuses([])).toEqual(EMPTY_STATUS);
});

test('the state of an issuer is the worst one of all workers', () => {
  const good = createIssuer('available', { fetchedAt: 100 });
  const failing = createIssuer('failing', { fetchedAt: 50, failure: { since: 60, error: 'timeout' } });
  const bad = createIssuer('unavailable', { failure: { since: 70, error: 'refused' } });
  const other = createIssuer('available', { name: 'partner' });
  const expected = { ...bad, failure: { since: 60, error: 'refused' } };
  for (const order of [
    [good, failing, bad],
    [bad, failing, good],
  ])
    expect(mergeStatuses(order.map((issuer) => createStatus(issuer, other))).issuers).toEqual([expected, other]);
});

test('problems are limited in number and length, and contain no secrets', () => {
  const problems = boundProblems([
    `a: ${'x'.repeat(2_000)}`,
    'b: redis://:hunter2-password@redis.example is not valid',
    ...Array.from({ length: 100 }, (_, index) => `c[${index}]: wrong`),
  ]);
  expect(problems).toHaveLength(51);
  expect(problems[0]?.length).toBeLessThan(600);
  expect(problems[1]).not.toContain('hunter2');
  expect(problems.at(-1)).toBe('and 52 more');
});

test('the failing introspection of one process is a problem of all, since the earliest failure', () => {
  const at = (since: number) => ({ since, error: `at ${since}` });
  const merged = mergeStatuses([
    { ...EMPTY_STATUS, introspection: [{ name: 'corp', failure: undefined }] },
    { ...EMPTY_STATUS, introspection: [{ name: 'corp', failure: at(20) }] },
    {
      ...EMPTY_STATUS,
      introspection: [
        { name: 'corp', failure: at(10) },
        { name: 'lab', failure: undefined },
      ],
    },
  ]);
  expect(merged.introspection).toEqual([
    { name: 'corp', failure: at(10) },
    { name: 'lab', failure: undefined },
  ]);
});
