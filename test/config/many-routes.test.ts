import { expect, test } from 'vitest';
import { loadSettings } from '../../src/config/load.ts';
import { parsePattern } from '../../src/domain/access-rule.ts';
import { patternCovers } from '../../src/domain/path-comparison.ts';

interface Entry {
  readonly path: string;
  readonly host?: string;
  readonly methods?: readonly string[];
}

const load = (routes: readonly object[]) =>
  loadSettings({
    env: {
      GATEHOUSE_CONFIG_YAML: JSON.stringify({
        publicUrl: 'https://gateway.example.test',
        listen: { behindTls: true },
        upstreams: { default: { url: 'http://127.0.0.1:3000' } },
        routes,
      }),
    },
  });

const listProblems = (routes: readonly object[]) => {
  const result = load(routes);
  return result.ok ? [] : result.problems;
};

// Comparing each problem or route with each other takes many minutes.
test('20,000 problems in 20,000 routes are reported before the deadline of a test', () => {
  const routes = Array.from({ length: 20_000 }, (_, index) => ({
    path: `/a${index}/**`,
    requires: 'files:read',
    scope: 'files:read',
  }));
  const problems = listProblems(routes);
  expect(problems).toHaveLength(20_000);
  expect(problems.at(-1)).toMatchObject({ path: 'routes[19999].scope' });
});

/** As documented: the first route whose path, host and methods include all requests of this one. */
function findFirstWider(routes: readonly Entry[], index: number): number {
  const narrow = routes[index] ?? { path: '' };
  return routes.slice(0, index).findIndex((wide) => {
    const [one, other] = [parsePattern(wide.path), parsePattern(narrow.path)];
    if (!one.ok || !other.ok || !patternCovers(one.segments, other.segments)) return false;
    if (wide.host !== undefined && wide.host !== narrow.host) return false;
    return wide.methods === undefined || narrow.methods?.every((name) => wide.methods?.includes(name)) === true;
  });
}

test('of 600 overlapping routes, exactly those are never reached for which an earlier one is wider', () => {
  // A linear congruential generator, so that each run has the same routes.
  let state = 7;
  const pick = <T>(values: readonly T[]): T => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return values[Math.floor((state / 2_147_483_648) * values.length)] as T;
  };
  const routes = Array.from({ length: 600 }, () => {
    const segments = Array.from({ length: pick([1, 2, 3, 4]) }, () => pick(['a', 'b', 'c', 'd', 'e', '*']));
    return {
      path: `/${[...segments, ...pick([[], [], [], [''], ['**']])].join('/')}`,
      requires: 'files:read',
      ...pick<Omit<Entry, 'path'>>([{}, { host: 'a.example.test' }, { host: 'b.example.test' }]),
      ...pick<Omit<Entry, 'path'>>([{}, { methods: ['GET'] }, { methods: ['GET', 'PUT'] }]),
    };
  });
  const expected = routes.flatMap((_, index) => {
    const wider = findFirstWider(routes, index);
    return wider < 0 ? [] : [[`routes[${index}].path`, wider]];
  });
  const reported = listProblems(routes).map(({ path, message }) => [
    path,
    Number(/routes\[(\d+)\]/.exec(message)?.[1]),
  ]);
  expect(reported).toEqual(expected);
  expect(expected.length).toBeGreaterThan(50);
  expect(expected.length).toBeLessThan(550);
});
