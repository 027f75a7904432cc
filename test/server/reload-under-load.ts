import { X509Certificate } from 'node:crypto';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { expect, onTestFinished } from 'vitest';
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

/** An API that returns its name and the request headers. */
const echoHeaders =
  (api: string): RequestListener =>
  (request, response) => {
    request.resume().on('end', () => response.end(JSON.stringify({ api, headers: request.headers })));
  };

/** Starts a gateway that is removed after the test. */
export async function startReloading(): Promise<{ folder: ServeFolder; server: ServeProcess }> {
  const folder = await createServeFolder(
    (settings) => ({ ...settings, log: { level: 'info', access: { enabled: false } } }),
    echoHeaders('first'),
  );
  onTestFinished(() => folder.remove());
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

const count = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.event === event).length;

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
    () =>
      folder.write(
        'gatehouse.yaml',
        'listen: { behindTls: true }\nroutes: [{ path: "/a/../b", public: true }]\n',
      ),
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
