import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { formatProblems, loadSettings } from '../../src/config/load.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type Container, findGatehouse, golden, MATRIX, ofKind } from '../chart/manifests.ts';
import { runCommand } from '../support/command-in-process.ts';
import { sendRequest } from '../support/https-client.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { type ServeProcess, startServe, until } from '../support/serve-process.ts';
import { chooseVariants } from '../support/variants.ts';

const readConfiguration = (name: string): string | undefined =>
  ofKind(golden(name), 'ConfigMap').find(({ data }) => data?.['gatehouse.yaml'])?.data?.['gatehouse.yaml'];

const folders: string[] = [];
const servers: RedisServer[] = [];
const processes: ServeProcess[] = [];
afterEach(async () => {
  for (const running of processes.splice(0)) await running.kill();
  for (const server of servers.splice(0)) await server.stop();
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});

const certificates = createCa().then(async (ca) => ({ ca, server: await issueServer(ca) }));

/** Creates the files that the container mounts in a folder, and returns the configuration with adjusted paths. */
async function createPodFolder(text: string): Promise<{ path: string; configuration: string; ca: string }> {
  const path = mkdtempSync(join(tmpdir(), 'gatehouse-pod-'));
  folders.push(path);
  const { ca, server } = await certificates;
  const put = (file: string, content: string): void => {
    mkdirSync(dirname(join(path, file)), { recursive: true });
    writeFileSync(join(path, file), content, { mode: 0o600 });
  };
  put('etc/gatehouse/tls/tls.crt', server.pem);
  put('etc/gatehouse/tls/tls.key', server.keyPem);
  for (const name of ['ca.crt', 'staff.crt']) put(`etc/gatehouse/client-ca/${name}`, ca.pem);
  put('etc/gatehouse/admin/admin-token', 'a-token-of-the-operators-own-choice\n');
  put('etc/gatehouse/kubernetes/ca.crt', ca.pem);
  put('etc/gatehouse/redis/password', 'unused\n');
  put('etc/gatehouse/redis/url', 'rediss://redis.shop.svc:6379/0\n');
  mkdirSync(join(path, 'var/lib/gatehouse'), { recursive: true });
  writeKeyringFile(join(path, 'etc/gatehouse/keys/keys.json'), createKeyringFile('EdDSA'), {
    replace: false,
  });
  const configuration = text
    .replaceAll('/etc/gatehouse/', `${path}/etc/gatehouse/`)
    .replaceAll('/var/lib/gatehouse', `${path}/var/lib/gatehouse`);
  put('gatehouse.yaml', configuration);
  return { path, configuration, ca: ca.pem };
}

describe('A5 the configuration in the ConfigMap is valid', () => {
  test.each(MATRIX.filter((name) => readConfiguration(name) !== undefined))('%s', async (name) => {
    const { path, configuration } = await createPodFolder(readConfiguration(name) ?? '');
    const loaded = loadSettings({ text: configuration, env: {}, overrides: [], cwd: path });
    expect(loaded.ok ? '' : formatProblems(loaded)).toBe('');
  });

  test('gatehouse check accepts it', async () => {
    const { path } = await createPodFolder(readConfiguration('embedded') ?? '');
    const checked = await runCommand(['check', '--config', join(path, 'gatehouse.yaml')]);
    expect(checked).toMatchObject({ code: 0, stdout: expect.stringContaining('valid') });
  });
});

async function requestStatus(url: string, ca?: string): Promise<number> {
  const { port, pathname: path, protocol } = new URL(url);
  return (await sendRequest({ port: Number(port), path, plain: protocol === 'http:', ca })).status;
}

/** Runs the program with a free port for each port of the manifest. */
async function runPod(
  name: string,
): Promise<{ server: ServeProcess; ports: Map<number, number>; ca: string; container: Container }> {
  const container = findGatehouse(golden(name));
  const [https, admin] = container.ports ?? [];
  if (https === undefined || admin === undefined) throw new Error('expected two ports');
  let text = readConfiguration(name) ?? '';
  if (text.includes('redis://')) {
    const redis = await startRedis();
    servers.push(redis);
    text = text.replace(/redis:\/\/redis\.shop\.svc:6379\/0/, redis.url);
  }
  const { path, ca } = await createPodFolder(text);
  const set = ['listen.host=127.0.0.1', 'listen.port=0', 'admin.host=127.0.0.1', 'admin.port=0'];
  const server = await startServe({ path }, { set });
  processes.push(server);
  return {
    server,
    ca,
    container,
    ports: new Map([
      [https.containerPort, server.port],
      [admin.containerPort, server.adminPort],
    ]),
  };
}

describe('A5 A8 the pod serves the ports and paths of its manifest while its API is unreachable', () => {
  test.each(chooseVariants(['embedded', 'redis', 'sidecar', 'ingress'], ['redis', 'sidecar']))('%s', async (name) => {
    const { ports, ca, container, server } = await runPod(name);
    const resolvePort = (port: string | number): number =>
      ports.get(Number(container.ports?.find((candidate) => candidate.name === port)?.containerPort ?? port)) ?? 0;
    // Like a kubelet, without client certificate and token.
    for (const probe of ['startupProbe', 'livenessProbe', 'readinessProbe'] as const) {
      const { path = '', port = 0 } = container[probe]?.httpGet ?? {};
      const url = `http://127.0.0.1:${resolvePort(port)}${path}`;
      // A kubelet also retries.
      await until(`${probe} returns 200`, async () => (await requestStatus(url)) === 200, 30);
    }
    for (const monitor of ['monitoring', 'sidecar-plain']) {
      const objects = [...ofKind(golden(monitor), 'ServiceMonitor'), ...ofKind(golden(monitor), 'PodMonitor')];
      const path = JSON.stringify(objects).match(/"path":"([^"]+)"/)?.[1];
      expect([path, await requestStatus(`http://127.0.0.1:${resolvePort('gh-admin')}${path}`)]).toEqual([
        '/metrics',
        200,
      ]);
    }
    const scheme = name === 'ingress' ? 'http' : 'https';
    const port = resolvePort('gatehouse');
    expect(await requestStatus(`${scheme}://127.0.0.1:${port}/files/x`, name === 'ingress' ? undefined : ca)).toBe(401);
    // The error concerns the API, not gatehouse.
    expect(await requestStatus(`${scheme}://127.0.0.1:${port}/health`, name === 'ingress' ? undefined : ca)).toBe(502);
    const ready = `http://127.0.0.1:${resolvePort('gh-admin')}/readyz`;
    await until('the gateway is ready nevertheless', async () => (await requestStatus(ready)) === 200, 30);
    expect(await server.stop()).toBe(0);
  });
});

test('A5 the configuration contains the operator’s settings verbatim', () => {
  const text = readConfiguration('embedded') ?? '';
  expect(text).toContain('path: /files/**');
  expect(stringify(text)).not.toMatch(/\{\{|<no value>|map\[/);
});
