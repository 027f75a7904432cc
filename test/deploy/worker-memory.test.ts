import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { createWorkerEnvironment, MEMORY_ENVIRONMENT } from '../../src/server/workers/worker-memory.ts';
import { createServeFolder, type ServeFolder, startServe } from '../support/serve-process.ts';

const ROOT = join(import.meta.dirname, '../..');
const ASSIGNMENTS = Object.entries(MEMORY_ENVIRONMENT).map(([name, value]) => `${name}=${value}`);

let folder: ServeFolder | undefined;
afterEach(async () => {
  await folder?.remove();
  folder = undefined;
});

test.runIf(process.platform === 'linux')(
  'workers are started with gatehouse’s memory settings and those of the operator',
  async () => {
    folder = await createServeFolder();
    const { workers } = await startServe(folder, {
      set: ['listen.workers=2'],
      env: { MALLOC_ARENA_MAX: '3', NODE_OPTIONS: '--max-old-space-size=512' },
    });
    expect(workers).toHaveLength(2);
    for (const pid of workers) {
      const environment = readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
      const set = environment.filter((variable) => /^(?:MALLOC_|NODE_OPTIONS=)/.test(variable)).toSorted();
      expect(set).toEqual(
        ASSIGNMENTS.map((word) =>
          word
            .replace('MALLOC_ARENA_MAX=2', 'MALLOC_ARENA_MAX=3')
            .replace('NODE_OPTIONS=', 'NODE_OPTIONS=--max-old-space-size=512 '),
        ).toSorted(),
      );
    }
  },
);

test.each([
  ['image', 'deploy/docker/Dockerfile', /^ENV (MALLOC_.*)$/m],
  ['systemd unit', 'deploy/systemd/gatehouse.service', /^Environment=(MALLOC_.*)$/m],
])('the %s starts the first process as workers are started', (_, file, line) => {
  const [, args = ''] = line.exec(readFileSync(join(ROOT, file), 'utf8')) ?? [];
  expect(args.split(' ')).toEqual(ASSIGNMENTS);
});

test('settings of the operator are not overridden', () => {
  expect(createWorkerEnvironment({ MALLOC_TOP_PAD_: '0' })).not.toHaveProperty('MALLOC_TOP_PAD_');
  expect(createWorkerEnvironment({})).toEqual(MEMORY_ENVIRONMENT);
  expect(createWorkerEnvironment({ NODE_OPTIONS: '--max-semi-space-size=32' })).not.toHaveProperty('NODE_OPTIONS');
  expect(createWorkerEnvironment({ NODE_OPTIONS: '--max_semi_space_size 4' })).not.toHaveProperty('NODE_OPTIONS');
});

test('Node options set by the operator are kept, and gatehouse’s are appended', () => {
  const { NODE_OPTIONS } = createWorkerEnvironment({ NODE_OPTIONS: '--max-old-space-size=256' });
  expect(NODE_OPTIONS).toBe('--max-old-space-size=256 --max-semi-space-size=8');
  expect(createWorkerEnvironment({ NODE_OPTIONS: '' })['NODE_OPTIONS']).toBe('--max-semi-space-size=8');
});
