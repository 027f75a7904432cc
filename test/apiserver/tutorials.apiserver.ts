import { execFile } from 'node:child_process';
import { mkdirSync, readFileSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, expect, inject, onTestFinished, test } from 'vitest';
import { clusterProgram } from '../../tools/chart/cluster.ts';
import { program } from '../../tools/chart/install.ts';
import { toPattern } from '../documentation/transcripts.ts';
import { readSteps } from '../documentation/tutorial.ts';
import { startChild } from '../support/child-process.ts';
import { freePort } from '../support/ports.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';

const ROOT = join(import.meta.dirname, '../..');
const run = promisify(execFile);

let folder: TempFolder;
let namespace = '';
let count = 0;
beforeEach(() => {
  namespace = `tutorial-${++count}`;
  folder = tempFolder('tutorial');
  mkdirSync(folder.file('.bin'));
  symlinkSync(join(ROOT, 'bin/gatehouse'), folder.file('.bin/gatehouse'));
  symlinkSync(clusterProgram('kubectl'), folder.file('.bin/kubectl'));
  symlinkSync(program('helm'), folder.file('.bin/helm'));
});
afterEach(() => folder.remove());

/** Replaces the namespace of the tutorials, in commands and in the output. */
const rename = (text: string): string =>
  text
    .replaceAll('-n shop', `-n ${namespace}`)
    .replaceAll('namespace shop', `namespace ${namespace}`)
    .replaceAll('namespace/shop', `namespace/${namespace}`)
    .replaceAll('in shop.', `in ${namespace}.`);

/** Runs a script that must succeed without warnings. */
async function runShell(script: string): Promise<string> {
  const { stdout, stderr } = await run('bash', ['--norc', '-euo', 'pipefail', '-c', script], {
    cwd: folder.path,
    timeout: 110_000,
    env: {
      PATH: `${folder.file('.bin')}:${process.env['PATH'] ?? ''}`,
      HOME: folder.path,
      KUBECONFIG: inject('kubeconfig'),
    },
  });
  expect({ script, stderr }).toEqual({ script, stderr: '' });
  return stdout;
}

interface NodeStep {
  readonly script: string;
  /** Undefined if the tutorial shows none. */
  readonly output?: string;
}

/** Runs the commands that need only an API server, and compares their output. Returns those that need nodes. */
async function follow(page: string): Promise<readonly NodeStep[]> {
  let variables = '';
  let output = '';
  const needsNodes: NodeStep[] = [];
  for (const { kind, text } of readSteps(page)) {
    if (kind === 'sh nodes') needsNodes.push({ script: text });
    else if (kind === 'text nodes') needsNodes.push({ script: needsNodes.pop()?.script ?? '', output: text });
    else if (kind === 'text output') expect(output).toMatch(toPattern(rename(text)));
    else if (kind === 'sh cluster') {
      output = await runShell(`${variables}\n${rename(text)}`);
      variables = [variables, ...(text.match(/^[A-Z]+=.*$/gm) ?? [])].join('\n');
    }
  }
  return needsNodes;
}

const get = (object: string, field: string): Promise<string> =>
  runShell(`kubectl -n ${namespace} get ${object} -o jsonpath='{${field}}'`);

/** Starts an API that responds like traefik/whoami; returns its URL. */
async function startWhoami(): Promise<string> {
  const server = createServer(({ method, url, headers }, response) => {
    const lines = Object.entries(headers)
      .map(([name, value]) => `${name.replace(/\b[a-z]/g, (letter) => letter.toUpperCase())}: ${String(value)}`)
      .toSorted();
    response.end(`Hostname: orders-0\n${method} ${url} HTTP/1.1\n${lines.join('\n')}\n\n`);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** Runs gatehouse like the pods: with the configuration in the ConfigMap and the files of the Secrets. Returns its port. */
async function startPod(configMap: string, upstream: string): Promise<number> {
  const [port, adminPort] = [await freePort(), await freePort()];
  const files = {
    '/etc/gatehouse/tls/tls.crt': 'pki/server.pem',
    '/etc/gatehouse/tls/tls.key': 'pki/server-key.pem',
    '/etc/gatehouse/client-ca/ca.crt': 'pki/ca.pem',
    '/etc/gatehouse/keys/keys.json': 'keys.json',
    '/var/lib/gatehouse': 'data',
  };
  let configuration = await get(`configmap/${configMap}`, '.data.gatehouse\\.yaml');
  for (const [path, file] of Object.entries(files)) {
    expect(configuration).toContain(path);
    configuration = configuration.replaceAll(path, file);
  }
  folder.write('gatehouse.yaml', configuration);
  const settings = [
    'listen.host=127.0.0.1',
    `listen.port=${port}`,
    `publicUrl=https://localhost:${port}`,
    'admin.host=127.0.0.1',
    `admin.port=${adminPort}`,
    `upstreams.default.url=${upstream}`,
  ].flatMap((setting) => ['--set', setting]);
  const serve = [join(ROOT, 'src/main.ts'), 'serve', '--config', 'gatehouse.yaml', ...settings];
  const child = await startChild([process.execPath, ...serve], {
    cwd: folder.path,
    ready: (line) => line.includes('"event":"ready"'),
  });
  onTestFinished(async () => void (await child.stop()));
  return port;
}

test.each([
  {
    page: 'docs/tutorials/kubernetes-gateway.md',
    configMap: 'gate-gatehouse',
    objects: ['service/gate-gatehouse', 'statefulset/gate-gatehouse'],
  },
  {
    page: 'docs/tutorials/kubernetes-sidecar.md',
    configMap: 'orders-gate-gatehouse',
    objects: ['deployment/orders', 'service/orders-gate-gatehouse'],
  },
])(
  '$page: the commands work; those for pods name existing objects, or work with the rendered configuration',
  async ({ page, configMap, objects }) => {
    const steps = await follow(page);
    const scripts = steps.map(({ script }) => script).join('\n');
    const named = scripts.match(/\b(?:deployment|statefulset|service)\/[a-z-]+/g) ?? [];
    expect([...new Set(named)].toSorted()).toEqual(objects);
    for (const object of objects) expect(await get(object, '.metadata.name')).toBe(object.replace(/.*\//, ''));
    const service = objects.find((object) => object.startsWith('service/')) ?? '';
    expect(scripts).toContain(`port-forward ${service} 8443:${await get(service, '.spec.ports[0].port')}`);

    const [forward, call, ...more] = steps.filter(({ output }) => output !== undefined);
    expect(forward?.script).toContain('port-forward');
    expect(more).toEqual([]);
    const port = String(await startPod(configMap, await startWhoami()));
    expect(await runShell(call?.script.replaceAll('8443', port) ?? '')).toMatch(toPattern(call?.output ?? ''));
  },
);

test('the chart has the version whose image the tutorials build', () => {
  const version = /^appVersion: "?([^"\n]+)/m.exec(readFileSync(join(ROOT, 'helm/gatehouse/Chart.yaml'), 'utf8'))?.[1];
  for (const page of ['docs/tutorials/kubernetes-gateway.md', 'docs/tutorials/kubernetes-sidecar.md'])
    expect(readFileSync(join(ROOT, page), 'utf8')).toContain(`-t gatehouse:${version} `);
});
