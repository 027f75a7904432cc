import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const ROOT = join(import.meta.dirname, '../..');
const LOG_CALL = /\.(?:debug|info|warn|error)\(\s*'([a-z][a-z0-9]*(?:_[a-z0-9]+)+)'/g;

test('every log event is described on the observability page', () => {
  const page = readFileSync(join(ROOT, 'docs/observability.md'), 'utf8');
  const events = globSync('src/**/*.ts', { cwd: ROOT }).flatMap((file) =>
    [...readFileSync(join(ROOT, file), 'utf8').matchAll(LOG_CALL)].map(([, event = '']) => event),
  );
  expect(events.length).toBeGreaterThan(60);
  expect([...new Set(events)].filter((event) => !page.includes(`\`${event}\``)).toSorted()).toEqual([]);
});
