import { expect, test } from 'vitest';
import { formatProblems } from '../../src/config/load.ts';
import { loadProblems, loadText, MINIMAL_CONFIG } from '../support/configuration.ts';

test('schema problems and cross-section problems are reported in one run, sorted, and further checks that did not run are named', () => {
  const result = loadText(`
listen: { behindTls: true, prot: 1 }
tokens: { accessLifetime: soon }
directories: { staff: { label: "a b" } }
integrations:
  - { clientId: a, scope: "f:read", access: [{ directory: nobody }] }
  - { clientId: b, scope: ";;" }
routes:
  - { path: /a, requires: f, upstream: nowhere }
`);
  expect(result.ok).toBe(false);
  if (result.ok) return;
  expect(result.problems.map(({ path }) => path)).toEqual([
    'directories.staff.label',
    'integrations[0].access[0].directory',
    'integrations[1].scope',
    'listen.prot',
    'routes[0].upstream',
    'tokens.accessLifetime',
  ]);
  expect(result.unchecked).toEqual(['tokens', 'directories.staff', 'integrations[1]']);
  expect(formatProblems(result)).toContain(
    'There may be more problems, which can be found only when these are correct: tokens, directories.staff, integrations[1]',
  );
  expect(formatProblems(result)).toMatch(
    /^gatehouse: 6 problems in .*gatehouse\.yaml\n {2}directories\.staff\.label +must be letters.*\(line 4\)\n/,
  );
});

test('no further problems are reported for a setting that is already invalid', () => {
  const paths = loadProblems(`
listen: { behindTls: true }
directories: { staff: { label: 7 } }
integrations:
  - { clientId: 5, scope: f }
  - { clientId: b, scope: f, access: [{ directory: staff, identities: ["any:00ff00ff"] }] }
upstreams: { default: { url: 3 } }
routes: [{ path: /a, requires: f, clients: [c] }]
`).map(({ path }) => path);
  expect(paths).toEqual(['directories.staff.label', 'integrations[0].clientId', 'upstreams.default.url']);
});

test('settings that depend on a misspelled section are not reported', () => {
  const result = loadText(`
lisen: { behindTls: true }
upstream: { default: { url: "http://a" } }
integration: [{ clientId: a, scope: f }]
routes:
  - { path: /a, requires: f, clients: [a] }
  - { path: /b, public: true, requires: f }
`);
  expect(result.ok ? [] : result.problems.map(({ path }) => path)).toEqual([
    'integration',
    'lisen',
    'routes[1]',
    'upstream',
  ]);
  expect(result).toMatchObject({ unchecked: expect.arrayContaining(['upstreams', 'integrations']) });
  // The section itself exists: an upstream is missing in any case.
  const both = loadProblems(`${MINIMAL_CONFIG}upstream: {}\nupstreams: {}\nroutes: [{ path: /a, requires: f }]\n`);
  expect(both.map(({ path }) => path)).toEqual(['routes[0].upstream', 'upstream']);
});

test('indexes are sorted as numbers', () => {
  const routes = Array.from({ length: 12 }, (_, index) => `  - { path: "/r${index}", public: true, upstream: no }`);
  const paths = loadProblems(`${MINIMAL_CONFIG}routes:\n${routes.join('\n')}\n`).map(({ path }) => path);
  expect(paths).toEqual(Array.from({ length: 12 }, (_, index) => `routes[${index}].upstream`));
});
