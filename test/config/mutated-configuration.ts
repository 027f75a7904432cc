import { expect } from 'vitest';
import { formatProblems, loadSettings } from '../../src/config/load.ts';
import { SAMPLE } from '../support/configuration.ts';

/** Returns the same numbers on every run (mulberry32), so that failures can be reproduced. */
function createRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

const ODD = [
  'null',
  '~',
  '""',
  '[]',
  '{}',
  '[[]]',
  '-1',
  '1e999',
  '.nan',
  '0x10',
  'true',
  '!!binary aGk=',
  '&a x',
  '*a',
  '${X}',
  '${X:-1}',
  '$$',
  '"\\0"',
  '__proto__',
  'constructor',
  'toString',
  '٣',
  '9'.repeat(400),
  '- a',
  '? b',
  '<<: {a: 1}',
  '{a: {b: {c: 1}}}',
  '2026-01-01',
  '0.0.0.0/0',
  '*',
  '**',
  ';',
  ':',
  'null: null',
];

function mutate(text: string, pick: (below: number) => number): string {
  const lines = text.split('\n');
  const at = pick(lines.length);
  const line = lines[at] ?? '';
  const odd = ODD[pick(ODD.length)] ?? '';
  switch (pick(9)) {
    case 0:
      lines.splice(at, 1);
      break;
    case 1:
      lines.splice(at, 0, lines[pick(lines.length)] ?? '');
      break;
    case 2:
      lines[at] = line.replace(/:.*$/, `: ${odd}`);
      break;
    case 3:
      lines[at] = line.replace(/^(\s*)/, pick(2) === 0 ? '$1  ' : '');
      break;
    case 4: {
      const place = pick(line.length + 1);
      lines[at] = line.slice(0, place) + odd + line.slice(place);
      break;
    }
    case 5: {
      const place = pick(line.length + 1);
      lines[at] = line.slice(0, place) + String.fromCharCode(pick(256)) + line.slice(place + 1);
      break;
    }
    case 6:
      lines[at] = line.replace(/[\w$-]+(?=:)/, odd);
      break;
    case 7:
      [lines[at], lines[lines.length - 1 - at]] = [lines[lines.length - 1 - at] ?? '', line];
      break;
    default:
      lines[at] = line.replace(/\d+/, String(pick(2 ** 31)));
  }
  return lines.join('\n');
}

/** Loads mutated copies of the sample configuration. Each load takes milliseconds, because it builds a schema. */
export function loadMutatedSamples(rounds: number): void {
  const pick = createRandom(20_260_131);
  let loaded = 0;
  let rejected = 0;
  for (let round = 0; round < rounds; round += 1) {
    let text = SAMPLE;
    for (let times = 1 + pick(3); times > 0; times -= 1) text = mutate(text, pick);
    const result = loadSettings({ env: { GATEHOUSE_CONFIG_YAML: text }, cwd: '/nowhere' });
    if (result.ok) {
      loaded += 1;
      continue;
    }
    rejected += 1;
    const reported = formatProblems(result);
    expect(result.problems.length, text).toBeGreaterThan(0);
    expect(reported, text).not.toMatch(/\n\s+at .*:\d+:\d+|\[object|undefined|ZodError|Invalid input/);
    for (const { message } of result.problems) expect(message, text).not.toContain('\n');
  }
  // If all had the same outcome, the mutations would be useless.
  expect(loaded).toBeGreaterThan(rounds / 40);
  expect(rejected).toBeGreaterThan(rounds / 4);
}

/** The same with invalid environment variables and `--set` arguments. */
export function loadOddOverrides(rounds: number): void {
  const pick = createRandom(7);
  const names = [
    'LISTEN__PORT',
    'LISTEN',
    'LISTEN__TLS',
    'INTEGRATIONS__0',
    'INTEGRATIONS__0__SCOPE',
    'ROUTES',
    'UPSTREAMS__X',
    'DIRECTORIES',
    'LIMITS__BODY',
    '__',
    'ROUTES__0__',
    'TRUSTED_PROXIES',
  ];
  const paths = [
    'listen',
    'listen.port',
    'routes[0]',
    'routes[0].path',
    'directories["a b"].label',
    'upstreams.constructor.url',
    'integrations.0.access[0]',
    '["__proto__"].x',
    'x'.repeat(500),
  ];
  for (let round = 0; round < rounds; round += 1) {
    const result = loadSettings({
      env: {
        GATEHOUSE_CONFIG_YAML: SAMPLE,
        [`GATEHOUSE_${names[pick(names.length)]}`]: ODD[pick(ODD.length)],
      },
      overrides: [`${paths[pick(paths.length)]}=${ODD[pick(ODD.length)]}`],
      cwd: '/nowhere',
    });
    if (!result.ok) expect(formatProblems(result)).not.toMatch(/\[object|undefined|ZodError|Invalid input/);
  }
  expect(({} as Record<string, unknown>)['x']).toBeUndefined();
}
