import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, inject, test } from 'vitest';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { program } from '../../tools/chart/install.ts';
import { toPattern } from '../documentation/transcripts.ts';
import { readSteps } from '../documentation/tutorial.ts';

const ROOT = join(import.meta.dirname, '../..');

let folder = '';
let namespace = '';
let count = 0;
beforeEach(() => {
  namespace = `tutorial-${++count}`;
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-tutorial-'));
  mkdirSync(join(folder, '.bin'));
  symlinkSync(join(ROOT, 'bin/gatehouse.js'), join(folder, '.bin/gatehouse'));
  symlinkSync(clusterProgram('kubectl'), join(folder, '.bin/kubectl'));
  symlinkSync(program('helm'), join(folder, '.bin/helm'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** The namespace of the tutorials, in commands and in the output. */
const rename = (text: string): string =>
  text
    .replaceAll('-n shop', `-n ${namespace}`)
    .replaceAll('namespace shop', `namespace ${namespace}`)
    .replaceAll('namespace/shop', `namespace/${namespace}`)
    .replaceAll('in shop.', `in ${namespace}.`);

function runShell(script: string): string {
  const { status, stdout, stderr } = spawnSync('bash', ['--norc', '-euo', 'pipefail', '-c', script], {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: folder,
    encoding: 'utf8',
    timeout: 110_000,
    env: {
      PATH: `${join(folder, '.bin')}:${process.env['PATH'] ?? ''}`,
      HOME: folder,
      KUBECONFIG: inject('kubeconfig'),
    },
  });
  expect({ script, status, stderr }).toEqual({ script, status: 0, stderr: '' });
  return stdout;
}

/** Runs the commands that need only an API server, and compares their output; returns those that need nodes. */
function follow(page: string): readonly string[] {
  let before = '';
  let output = '';
  const needsNodes: string[] = [];
  for (const { kind, text } of readSteps(page)) {
    const script = rename(text);
    if (kind === 'sh nodes') needsNodes.push(script);
    else if (kind === 'text output') expect(output).toMatch(toPattern(rename(text)));
    else if (kind === 'sh cluster') {
      output = runShell(`${before}\n${script}`);
      // Variables are needed in the following steps; the rest is not repeated.
      before = [before, ...(text.match(/^\w+=.*$/gm) ?? [])].join('\n');
    }
  }
  return needsNodes;
}

const exists = (object: string): string =>
  runShell(`kubectl -n ${namespace} get ${object} -o jsonpath='{.metadata.name}'`);

/** The objects that the commands for running pods name, such as `service/gate-gatehouse`. */
const listObjects = (scripts: readonly string[]): readonly string[] => [
  ...new Set(
    scripts.join('\n').match(/\b(?:deployment|statefulset|service)\/[a-z-]+/g) ?? [],
  ),
];

describe('tutorials', () => {
  test.each([
    {
      page: 'docs/tutorials/kubernetes-gateway.md',
      objects: ['statefulset/gate-gatehouse', 'service/gate-gatehouse'],
      upstream: 'service/orders',
    },
    {
      page: 'docs/tutorials/kubernetes-sidecar.md',
      objects: ['deployment/orders', 'service/orders-gate-gatehouse'],
      upstream: 'deployment/orders',
    },
  ])('$page: the commands work, and those for running pods name objects that exist', ({ page, objects, upstream }) => {
    const needsNodes = follow(page);
    expect(listObjects(needsNodes)).toEqual(objects);
    for (const object of [...objects, upstream]) expect(exists(object)).toBe(object.replace(/.*\//, ''));
    const service = objects.find((object) => object.startsWith('service/'));
    const port = runShell(`kubectl -n ${namespace} get ${service} -o jsonpath='{.spec.ports[*].port}'`);
    expect(needsNodes.join('\n')).toContain(`port-forward ${service} 8443:${port}`);
    // Every line of a shell script that is not run must at least be one.
    for (const script of needsNodes) runShell(`bash -n <<'SCRIPT_END'\n${script}\nSCRIPT_END`);
  });
});
