import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import {
  type Client,
  type ClientOptions,
  createClient,
  fileCredentialStore,
  LoginRequiredError,
  memoryCredentialStore,
  ServiceUnavailableError,
} from '../../src/client/index.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { type FaultyRelay, startFaultyRelay } from '../support/faulty-relay.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
let folder: string;
const closables: { close(): Promise<void> }[] = [];

beforeAll(async () => {
  gateway = await startGateway((settings) => ({ ...settings, device: { interval: '1s' } }));
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-client-'));
});
afterEach(async () => {
  for (const closable of closables.splice(0)) await closable.close();
});
afterAll(async () => {
  await gateway.close();
  rmSync(folder, { recursive: true, force: true });
});

const toUrl = (port: number): string => `https://localhost:${port}`;

function createTestClient(more: Partial<ClientOptions> = {}): Client {
  const { alice } = gateway.users;
  const client = createClient({
    url: toUrl(gateway.port),
    ca: gateway.ca.pem,
    certificate: { cert: alice.pem, key: alice.keyPem },
    clientId: 'report-runner',
    scope: 'files:read',
    ...more,
  });
  closables.push(client);
  return client;
}

/** A client without a certificate, which needs the approval of a user. */
const createUserClient = (more: Partial<ClientOptions> = {}): Client =>
  createTestClient({ certificate: undefined, ...more });

async function startRelay(port: number): Promise<FaultyRelay> {
  const relay = await startFaultyRelay(port);
  closables.push(relay);
  return relay;
}

const countRefreshes = (): number => gateway.auditEvents('grant_refreshed').length;
const countGrants = (): number => gateway.auditEvents('grant_issued').length;

test('a program with a certificate obtains a token once, and sends it with every call', async () => {
  const before = countGrants();
  const own = createTestClient();
  for (const path of ['/files/a', '/files/b', '/whoami']) {
    const response = await own.fetch(`${toUrl(gateway.port)}${path}`);
    expect(response.status).toBe(200);
    await response.text();
  }
  expect(gateway.upstream.requests.at(-1)?.headers['x-forwarded-user']).toBe(ALICE);
  expect(countGrants() - before).toBe(1);
  expect(await own.whoami()).toMatchObject({ application: 'report-runner', identity: ALICE });
});

test('a token is renewed before it expires, once for all concurrent requests', async () => {
  let offset = 0;
  const own = createTestClient({ now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  const before = countRefreshes();
  offset = 3_600 - 30;
  const tokens = await Promise.all(Array.from({ length: 100 }, () => own.token()));
  expect(new Set(tokens).size).toBe(1);
  expect(tokens[0]).not.toBe(first);
  expect(countRefreshes() - before).toBe(1);
});

test('a required validity longer than the remaining one renews the token, a shorter one does not', async () => {
  let offset = 0;
  const own = createTestClient({ now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  offset = 1_800;
  expect(await own.token({ validFor: 1_000 })).toBe(first);
  expect(await own.token({ validFor: 2_000 })).not.toBe(first);
});

test('a rejected token is renewed, and the request is retried once with its body', async () => {
  const own = createTestClient({ scope: 'reports:write' });
  const first = await own.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${first}` } });
  const from = gateway.upstream.requests.length;
  const response = await own.fetch(`${toUrl(gateway.port)}/reports/1`, {
    method: 'POST',
    body: 'a quiet day',
  });
  expect(response.status).toBe(200);
  expect(await own.token()).not.toBe(first);
  expect(gateway.upstream.requests.length - from).toBe(1);
});

test('a request whose body can be read only once is not retried, and the caller gets the 401', async () => {
  const own = createTestClient({ scope: 'reports:write' });
  const token = await own.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
  const body = new Blob(['a quiet day']).stream();
  const response = await own.fetch(`${toUrl(gateway.port)}/reports/1`, {
    method: 'POST',
    body,
    duplex: 'half',
  });
  expect(response.status).toBe(401);
  await response.text();
});

test('a 403 response does not renew the token', async () => {
  const own = createTestClient();
  await own.token();
  const before = countRefreshes();
  const response = await own.fetch(`${toUrl(gateway.port)}/reports/1`, { method: 'POST', body: 'x' });
  expect(response.status).toBe(403);
  await response.text();
  expect(countRefreshes()).toBe(before);
});

test('R01 a refresh whose response was lost is retried, and the grant survives', async () => {
  const relay = await startRelay(gateway.port);
  let offset = 0;
  const own = createTestClient({ url: toUrl(relay.port), now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  offset = 3_590;
  relay.set('drop response');
  const second = await own.token();
  expect(relay.lostResponses()).toBe(1);
  expect(second).not.toBe(first);
  offset = 7_190;
  expect(await own.token()).not.toBe(second);
  expect(gateway.auditEvents('refresh_reuse')).toEqual([]);
});

test('while the service is unreachable, the old token is used until it expires, then a temporary error is reported, and the grant is kept', async () => {
  const relay = await startRelay(gateway.port);
  let offset = 0;
  const own = createTestClient({ url: toUrl(relay.port), now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  relay.set('refuse');
  offset = 3_590;
  expect(await own.token()).toBe(first);
  offset = 3_600;
  await expect(own.token()).rejects.toThrow(ServiceUnavailableError);
  relay.set('pass');
  const before = countGrants();
  expect(await own.token()).not.toBe(first);
  expect(countGrants()).toBe(before);
});

test('a user confirms a device in the browser, and the program continues', async () => {
  const own = createUserClient({
    onDevice: (prompt) =>
      void createDeviceClient(gateway).decideInBrowser({
        device_code: '',
        user_code: prompt.userCode,
        verification_uri: prompt.verificationUri,
        verification_uri_complete: prompt.verificationUriComplete,
        expires_in: prompt.expiresIn,
        interval: 1,
        expires: 0,
      }),
  });
  const response = await own.fetch(`${toUrl(gateway.port)}/files/a`);
  expect(response.status).toBe(200);
  await response.text();
});

test('a denied request and a missing confirmation prompt have their own errors', async () => {
  const denied = createUserClient({
    onDevice: async (prompt) => {
      await createDeviceClient(gateway).decideInBrowser(
        {
          device_code: '',
          user_code: prompt.userCode,
          verification_uri: prompt.verificationUri,
          verification_uri_complete: prompt.verificationUriComplete,
          expires_in: prompt.expiresIn,
          interval: 1,
          expires: 0,
        },
        { decision: 'deny' },
      );
    },
  });
  await expect(denied.token()).rejects.toThrow(LoginRequiredError);
  await expect(createUserClient().token()).rejects.toThrow(/sign in first/);
});

test('an ended grant is replaced with a certificate grant, or requires a sign-in if a user is needed', async () => {
  const store = memoryCredentialStore();
  const byCertificate = createTestClient({ store });
  const first = await byCertificate.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${first}` } });
  const noCertificate = createUserClient({ store });
  await expect(noCertificate.renew(first)).rejects.toThrow(LoginRequiredError);
  expect(await store.read()).toBeUndefined();
  expect(await byCertificate.token()).not.toBe(first);
});

test('the token is sent to its own origin only, also after a redirect', async () => {
  const seen: (string | undefined)[] = [];
  const outsider = createServer((incoming, response) => {
    seen.push(incoming.headers.authorization);
    response.end('thank you');
  });
  await new Promise<void>((resolve) => outsider.listen(0, '127.0.0.1', resolve));
  const { port } = outsider.address() as AddressInfo;
  closables.push({ close: () => new Promise((resolve) => outsider.close(() => resolve())) });
  const own = createTestClient();
  await expect(own.fetch(`http://127.0.0.1:${port}/`)).rejects.toThrow(/not one of the client's origins/);

  const sending = createServer((_, response) =>
    response.writeHead(302, { location: `http://127.0.0.1:${port}/` }).end(),
  );
  await new Promise<void>((resolve) => sending.listen(0, '127.0.0.1', resolve));
  closables.push({ close: () => new Promise((resolve) => sending.close(() => resolve())) });
  const sender = `http://127.0.0.1:${(sending.address() as AddressInfo).port}`;
  const trusting = createTestClient({ origins: [sender] });
  await expect(trusting.fetch(`${sender}/`)).rejects.toThrow();
  expect(seen).toEqual([]);
});

test('over plain http, a token is sent to loopback addresses only', () => {
  expect(() => createTestClient({ url: 'http://api.example.test' })).toThrow(/https only/);
  expect(() => createTestClient({ url: 'http://127.0.0.1:1' })).not.toThrow();
});

test('a stored grant is a file with mode 0600, written atomically, and no other file remains', async () => {
  const file = join(folder, 'deep/kept.json');
  const own = createTestClient({ store: fileCredentialStore(file) });
  const token = await own.token();
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(statSync(join(folder, 'deep')).mode & 0o777).toBe(0o700);
  expect(readdirSync(join(folder, 'deep')).sort()).toEqual(['kept.json', 'kept.json.lock']);
  expect(readFileSync(`${file}.lock`, 'utf8')).not.toContain(token);
  expect(await createTestClient({ store: fileCredentialStore(file) }).token()).toBe(token);
  expect(await own.logout()).toBe(true);
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect(await own.logout()).toBe(false);
});

test('a token file that other users can read, or that is not a regular file, is not used', async () => {
  const file = join(folder, 'open.json');
  const own = createTestClient({ store: fileCredentialStore(file) });
  await own.token();
  chmodSync(file, 0o644);
  await expect(own.token()).rejects.toThrow(/can be read by others/);
});

test('a grant of another service or integration in the same file is neither used nor shown', async () => {
  const file = join(folder, 'shared.json');
  const first = await createTestClient({ store: fileCredentialStore(file) }).token();
  const relay = await startRelay(gateway.port);
  const elsewhere = createTestClient({ url: toUrl(relay.port), store: fileCredentialStore(file) });
  expect(await elsewhere.token()).not.toBe(first);
  // The grant of the other service is not revoked.
  expect((await gateway.api('/files/a', first)).status).toBe(200);
});

test('a new sign-in revokes the previous grant', async () => {
  const own = createTestClient();
  const first = await own.token();
  await own.login();
  expect((await gateway.api('/files/a', first)).status).toBe(401);
});
