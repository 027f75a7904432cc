import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const FILES = globSync('.github/workflows/*.yml', { cwd: ROOT });
const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');

interface Step {
  readonly uses?: string;
  readonly run?: string;
  readonly with?: Readonly<Record<string, unknown>>;
}
interface Job {
  readonly uses?: string;
  readonly steps?: readonly Step[];
  readonly permissions?: Readonly<Record<string, string>>;
  readonly 'timeout-minutes'?: number;
}
interface Workflow {
  readonly permissions: unknown;
  readonly jobs: Readonly<Record<string, Job>>;
}

test('there is a workflow for changes and one for releases', () => {
  expect(FILES.toSorted()).toEqual(['.github/workflows/ci.yml', '.github/workflows/release.yml']);
  expect(read('.github/workflows/ci.yml')).toMatch(/^ +- run: \.ci\/run$/m);
});

describe.each(FILES)('%s', (file) => {
  const workflow = parse(read(file)) as Workflow;
  const jobs = Object.entries(workflow.jobs);
  const steps = jobs.flatMap(([, job]) => job.steps ?? []);

  test('pins every action to a commit', () => {
    const actions = [...read(file).matchAll(/^ *(?:- )?uses: (.*)$/gm)].map(([, action = '']) => action);
    expect(actions.length).toBeGreaterThan(1);
    const unpinned = actions.filter(
      (action) => !action.startsWith('./') && !/^[\w.-]+\/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/.test(action),
    );
    expect(unpinned).toEqual([]);
    // One version of each.
    const versions = new Map(actions.map((action) => [action.split('@', 1)[0], action]));
    expect(new Set(actions).size).toBe(versions.size);
  });

  test('gives each job the permissions it needs, and a deadline', () => {
    expect(workflow.permissions).toEqual({});
    for (const [name, job] of jobs) {
      expect(job.permissions, name).toBeDefined();
      if (job.uses === undefined) expect(job['timeout-minutes'], name).toBeGreaterThan(0);
    }
  });

  test('keeps no credentials in the checkout', () => {
    for (const step of steps.filter(({ uses = '' }) => uses.startsWith('actions/checkout@')))
      expect(step.with).toMatchObject({ 'persist-credentials': false });
  });

  test('passes expressions to scripts through the environment', () => {
    expect(steps.filter(({ run = '' }) => run.includes('${{'))).toEqual([]);
  });

  test('names no registry', () => {
    expect(read(file)).not.toMatch(/\b(?:ghcr\.io|docker\.io|quay\.io|gcr\.io|npmjs|registry\.[a-z]|https?:)/);
  });

  test('calls files that exist', () => {
    const called = [...read(file).matchAll(/(?:^|[\s"])((?:tools|deploy|helm|\.ci)\/[\w./-]+)/gm)];
    expect(called.filter(([, path = '']) => !existsSync(join(ROOT, path))).map(([, path]) => path)).toEqual([]);
  });
});

describe('the release workflow', () => {
  const { jobs } = parse(read('.github/workflows/release.yml')) as Workflow;

  test('publishes only what has passed .ci/run', () => {
    const needs = (name: string): readonly string[] => {
      const direct = (jobs[name] as { readonly needs?: readonly string[] } | undefined)?.needs ?? [];
      return [...direct, ...direct.flatMap(needs)];
    };
    const publishing = Object.keys(jobs).filter(
      (name) => !['prepare', 'ci'].includes(name) && !name.startsWith('build-package'),
    );
    expect(publishing.toSorted()).toEqual(['build-image', 'chart', 'image', 'notes', 'package']);
    for (const name of publishing) expect(needs(name), name).toContain('ci');
  });

  test('runs no package of the registry in a job that can publish or sign', () => {
    for (const [name, { permissions = {}, steps = [] }] of Object.entries(jobs))
      if (permissions['id-token'] === 'write')
        expect(
          steps.filter(({ run = '' }) => /\bnpm (?:ci|install|run)\b|\bnpx\b/.test(run)),
          name,
        ).toEqual([]);
  });
});

test.each(globSync('.github/ISSUE_TEMPLATE/*.yml', { cwd: ROOT }))('%s is a valid issue form', (file) => {
  const form = parse(read(file)) as {
    readonly name: string;
    readonly description: string;
    readonly body: readonly { readonly type: string; readonly id?: string; readonly attributes: object }[];
  };
  expect(form.name.length * form.description.length).toBeGreaterThan(0);
  const ids = form.body.flatMap(({ id }) => id ?? []);
  expect(new Set(ids).size).toBe(ids.length);
  for (const { type, id, attributes } of form.body) {
    expect(['markdown', 'textarea', 'input', 'dropdown', 'checkboxes']).toContain(type);
    expect(id === undefined).toBe(type === 'markdown');
    expect(attributes).toHaveProperty(type === 'markdown' ? 'value' : 'label');
  }
});
