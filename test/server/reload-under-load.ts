import { execFile } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { promisify } from 'node:util';
import { decodeProtectedHeader } from 'jose';
import { expect, onTestFinished } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { recordFigures } from '../support/figures.ts';
import type { TokenGrant } from '../support/https-client.ts';
import { issueServer } from '../support/pki.ts';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { type LoadOptions, type SteadyLoad, startSteadyLoad } from '../support/steady-load.ts';

const MAIN = join(import.meta.dirname, '../../src/main.ts');
const run = promisify(execFile);

/** An API that returns its name and the request headers. */
const echoHeaders =
  (api: string): RequestListener =>
  (request, response) => {
    request.resume().on('end', () => response.end(JSON.stringify({ api, headers: request.headers })));
  };

/** Starts a gateway that is removed after the test. */
export async function startReloading(
  changes: SettingsInput = {},
  prepare: (folder: ServeFolder) => void = () => {},
): Promise<{ folder: ServeFolder; server: ServeProcess }> {
  const folder = await createServeFolder(
    (settings) => ({ ...settings, ...changes, log: { level: 'info', access: { enabled: false } } }),
    echoHeaders('first'),
  );
  onTestFinished(() => folder.remove());
  prepare(folder);
  return { folder, server: await startServe(folder) };
}

export function connectClient(folder: ServeFolder, server: ServeProcess, as = folder.alice): Client {
  const client = connect(folder, server.port, as);
  onTestFinished(() => client.close());
  return client;
}

export function startLoad(options: LoadOptions): SteadyLoad {
  const load = startSteadyLoad(options);
  onTestFinished(() => load.stop());
  return load;
}

const count = (server: ServeProcess, event: string): number => server.log.filter((line) => line.event === event).length;

/**
 * Makes a change, sends SIGHUP, and waits for the outcome. The file watcher also reloads, possibly later, so the second of two
 * equal outcomes may still belong to the first change.
 */
export async function reload(
  server: ServeProcess,
  change: () => void | Promise<void>,
  outcome: 'reloaded' | 'reload_rejected',
): Promise<void> {
  const before = count(server, outcome);
  await change();
  server.signal('SIGHUP');
  await until(`${outcome} number ${before + 1}`, () => count(server, outcome) > before, 30);
}

/** Each round reloads an invalid configuration and a valid one. */
export async function reloadUnderLoad(rounds: number): Promise<void> {
  const second = createServer(echoHeaders('second'));
  await new Promise<void>((resolve) => second.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    second.closeAllConnections();
    second.close();
  });
  const { port: secondPort } = second.address() as AddressInfo;
  const { folder, server } = await startReloading();
  const { access_token: token } = await connectClient(folder, server).grant();

  // Each configuration has its own upstream and header name, so a request that mixes them is detected.
  const applyValid = (which: 'first' | 'second') => (): void =>
    folder.configure((settings) => ({
      ...settings,
      upstreams: {
        default: { url: `http://127.0.0.1:${which === 'first' ? folder.upstream.port : secondPort}` },
      },
      headers: { user: which === 'first' ? 'X-First-User' : 'X-Second-User' },
    }));
  const invalid: readonly (() => void)[] = [
    () => folder.write('gatehouse.yaml', 'listen: [this is: not sound'),
    () => folder.write('gatehouse.yaml', 'liste: {}\n'),
    () =>
      folder.write(
        'gatehouse.yaml',
        'listen: { behindTls: true }\ncertificates: { issuers: [nowhere.pem], directory: x }\n',
      ),
    () => folder.write('gatehouse.yaml', 'listen: { behindTls: true }\nroutes: [{ path: "/a/../b", public: true }]\n'),
    () => folder.write('gatehouse.yaml', ''),
  ];
  await reload(server, applyValid('first'), 'reloaded');
  const load = startLoad({
    port: server.port,
    ca: folder.ca.pem,
    path: '/files/1',
    token,
    check({ status, body }) {
      if (status !== 200) return `status ${status}: ${body.slice(0, 100)}`;
      const reported = JSON.parse(body) as { api: string; headers: Record<string, string> };
      const [expected, unexpected] =
        reported.api === 'first' ? ['x-first-user', 'x-second-user'] : ['x-second-user', 'x-first-user'];
      return reported.headers[expected] !== undefined && reported.headers[unexpected] === undefined
        ? undefined
        : `the ${reported.api} API got ${Object.keys(reported.headers).join()}`;
    },
  });
  await load.waitForMore(50);
  for (let round = 0; round < rounds; round += 1) {
    await reload(server, invalid[round % invalid.length] ?? (() => {}), 'reload_rejected');
    await reload(server, applyValid(round % 2 === 0 ? 'second' : 'first'), 'reloaded');
  }
  await load.waitForMore(50);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(load.completed()).toBeGreaterThanOrEqual(100);
  expect(await server.stop()).toBe(0);
  recordFigures('reloads', {
    'valid configurations': rounds,
    'invalid configurations': rounds,
    requests: load.completed(),
    'failed requests': load.failures.length,
  });
}

/** Replaces the server certificate `count` times, each time first without its key. */
export async function renewCertificatesUnderLoad(count: number): Promise<void> {
  const { folder, server } = await startReloading();
  const certificates = await Promise.all(Array.from({ length: count }, () => issueServer(folder.ca)));
  const load = startLoad({
    port: server.port,
    ca: folder.ca.pem,
    path: '/health',
    newConnections: true,
    http1: 3,
    http2: 1,
  });
  await load.waitForMore(20);
  for (const next of certificates) {
    await reload(server, () => void folder.write('server.pem', next.pem), 'reload_rejected');
    await reload(
      server,
      () => {
        folder.write('server.pem', next.pem);
        folder.write('server-key.pem', next.keyPem);
      },
      'reloaded',
    );
    expect(await readServerFingerprint(folder, server)).toBe(new X509Certificate(next.pem).fingerprint256);
  }
  await load.waitForMore(20);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(await server.stop()).toBe(0);
  recordFigures('certificate-renewals', {
    certificates: count,
    'new connections': load.completed(),
    'failed requests': load.failures.length,
  });
}

/** Rotates the keys `times` times with the command. Every token stays valid, whichever key signed or sealed it. */
export async function rotateKeysUnderLoad(times: number): Promise<void> {
  const { folder, server } = await startReloading({ keys: { file: 'keys.json' } }, (written) =>
    writeKeyringFile(written.file('keys.json'), createKeyringFile('EdDSA'), { replace: false }),
  );
  const client = connectClient(folder, server);
  const grants = [await client.grant()];
  const load = startLoad({
    port: server.port,
    ca: folder.ca.pem,
    path: '/files/1',
    token: grants[0]?.access_token ?? '',
  });
  await load.waitForMore(20);
  const readKeyId = ({ access_token: token }: TokenGrant): string => String(decodeProtectedHeader(token).kid);
  const keyIds = new Set(grants.map(readKeyId));
  for (let time = 0; time < times; time += 1) {
    const args = ['keys', 'rotate', folder.file('keys.json'), '--publish-before', '0s'];
    await run(process.execPath, [MAIN, ...args]);
    const grant = await until('the new key signs tokens', async () => {
      const made = await client.grant();
      return !keyIds.has(readKeyId(made)) && made;
    });
    keyIds.add(readKeyId(grant));
    grants.push(grant);
  }
  await load.waitForMore(20);
  await load.stop();
  expect(load.failures).toEqual([]);
  for (const { access_token: token, refresh_token: refreshToken } of grants) {
    expect((await client.getWithToken('/files/1', token)).status).toBe(200);
    expect((await client.refresh(refreshToken)).status).toBe(200);
  }
  expect(keyIds.size).toBe(times + 1);
  expect(await server.stop()).toBe(0);
  recordFigures('key-rotations', {
    rotations: times,
    'tokens checked, each of another key': keyIds.size,
    requests: load.completed(),
    'failed requests': load.failures.length,
  });
}

function readServerFingerprint(folder: ServeFolder, server: ServeProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connectTls(
      { port: server.port, host: '127.0.0.1', servername: 'localhost', ca: folder.ca.pem },
      () => {
        resolve(socket.getPeerX509Certificate()?.fingerprint256 ?? '');
        socket.destroy();
      },
    );
    socket.on('error', reject);
  });
}
