import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Agent, type Dispatcher, request } from 'undici';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import {
  bearerInterceptor,
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
const opened: { close(): Promise<void> }[] = [];

beforeAll(async () => {
  gateway = await startGateway((settings) => ({ ...settings, device: { interval: '1s' } }));
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-client-'));
});
afterEach(async () => {
  for (const one of opened.splice(0)) await one.close();
});
afterAll(async () => {
  await gateway.close();
  rmSync(folder, { recursive: true, force: true });
});

const urlOf = (port: number): string => `https://localhost:${port}`;

function client(more: Partial<ClientOptions> = {}): Client {
  const { alice } = gateway.users;
  const made = createClient({
    url: urlOf(gateway.port),
    ca: gateway.ca.pem,
    certificate: { cert: alice.pem, key: alice.keyPem },
    clientId: 'report-runner',
    scope: 'files:read',
    ...more,
  });
  opened.push(made);
  return made;
}

/** Without a certificate: only a person can say yes. */
const deviceClient = (more: Partial<ClientOptions> = {}): Client =>
  client({ certificate: undefined, ...more });

async function relayTo(port: number): Promise<FaultyRelay> {
  const relay = await startFaultyRelay(port);
  opened.push(relay);
  return relay;
}

const refreshes = (): number => gateway.auditEvents('grant_refreshed').length;
const grants = (): number => gateway.auditEvents('grant_issued').length;

test('a program with a certificate obtains a token once, and sends it with every call', async () => {
  const before = grants();
  const own = client();
  for (const path of ['/files/a', '/files/b', '/whoami']) {
    const response = await own.fetch(`${urlOf(gateway.port)}${path}`);
    expect(response.status).toBe(200);
    await response.text();
  }
  expect(gateway.upstream.requests.at(-1)?.headers['x-forwarded-user']).toBe(ALICE);
  expect(grants() - before).toBe(1);
  expect(await own.whoami()).toMatchObject({ application: 'report-runner', identity: ALICE });
});

test('a token is renewed before it expires, once, however many requests need it at the same time', async () => {
  let offset = 0;
  const own = client({ now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  const before = refreshes();
  offset = 3_600 - 30;
  const tokens = await Promise.all(Array.from({ length: 100 }, () => own.token()));
  expect(new Set(tokens).size).toBe(1);
  expect(tokens[0]).not.toBe(first);
  expect(refreshes() - before).toBe(1);
});

test('a longer validity than is left renews the token; a shorter one does not', async () => {
  let offset = 0;
  const own = client({ now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  offset = 1_800;
  expect(await own.token({ validFor: 1_000 })).toBe(first);
  expect(await own.token({ validFor: 2_000 })).not.toBe(first);
});

test('a rejected token is renewed and the request sent once more, with its body', async () => {
  const own = client({ scope: 'reports:write' });
  const first = await own.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${first}` } });
  const from = gateway.upstream.requests.length;
  const response = await own.fetch(`${urlOf(gateway.port)}/reports/1`, {
    method: 'POST',
    body: 'a quiet day',
  });
  expect(response.status).toBe(200);
  expect(await own.token()).not.toBe(first);
  expect(gateway.upstream.requests.length - from).toBe(1);
});

test('a body that can be read only once is not sent twice: the caller sees the 401', async () => {
  const own = client({ scope: 'reports:write' });
  const token = await own.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
  const body = new Blob(['a quiet day']).stream();
  const response = await own.fetch(`${urlOf(gateway.port)}/reports/1`, {
    method: 'POST',
    body,
    duplex: 'half',
  });
  expect(response.status).toBe(401);
  await response.text();
});

test('a 403 response is final: no token is renewed', async () => {
  const own = client();
  await own.token();
  const before = refreshes();
  const response = await own.fetch(`${urlOf(gateway.port)}/reports/1`, { method: 'POST', body: 'x' });
  expect(response.status).toBe(403);
  await response.text();
  expect(refreshes()).toBe(before);
});

test('R01 a refresh whose response was lost is retried, and the grant survives', async () => {
  const relay = await relayTo(gateway.port);
  let offset = 0;
  const own = client({ url: urlOf(relay.port), now: () => Date.now() / 1_000 + offset });
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

test('while the service is unreachable the old token is used until it expires; then a temporary error is reported, and nothing is lost', async () => {
  const relay = await relayTo(gateway.port);
  let offset = 0;
  const own = client({ url: urlOf(relay.port), now: () => Date.now() / 1_000 + offset });
  const first = await own.token();
  relay.set('refuse');
  offset = 3_590;
  expect(await own.token()).toBe(first);
  offset = 3_600;
  await expect(own.token()).rejects.toThrow(ServiceUnavailableError);
  relay.set('pass');
  const before = grants();
  expect(await own.token()).not.toBe(first);
  expect(grants()).toBe(before);
});

test('a user confirms a device in the browser, and the program continues', async () => {
  const own = deviceClient({
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
  const response = await own.fetch(`${urlOf(gateway.port)}/files/a`);
  expect(response.status).toBe(200);
  await response.text();
});

test('a denied request and a missing confirmation prompt are both reported as such', async () => {
  const refusing = deviceClient({
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
  await expect(refusing.token()).rejects.toThrow(LoginRequiredError);
  await expect(deviceClient().token()).rejects.toThrow(/sign in first/);
});

test('a grant that has ended is replaced with a certificate, or requires a sign-in where a user is needed', async () => {
  const store = memoryCredentialStore();
  const byCertificate = client({ store });
  const first = await byCertificate.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${first}` } });
  const noCertificate = deviceClient({ store });
  await expect(noCertificate.renew(first)).rejects.toThrow(LoginRequiredError);
  expect(await store.read()).toBeUndefined();
  expect(await byCertificate.token()).not.toBe(first);
});

test('the token goes to its own origin only, also behind a redirect', async () => {
  const seen: (string | undefined)[] = [];
  const outsider = createServer((incoming, response) => {
    seen.push(incoming.headers.authorization);
    response.end('thank you');
  });
  await new Promise<void>((resolve) => outsider.listen(0, '127.0.0.1', resolve));
  const { port } = outsider.address() as AddressInfo;
  opened.push({ close: () => new Promise((resolve) => outsider.close(() => resolve())) });
  const own = client();
  await expect(own.fetch(`http://127.0.0.1:${port}/`)).rejects.toThrow(/not one of the client's origins/);

  const sending = createServer((_, response) =>
    response.writeHead(302, { location: `http://127.0.0.1:${port}/` }).end(),
  );
  await new Promise<void>((resolve) => sending.listen(0, '127.0.0.1', resolve));
  opened.push({ close: () => new Promise((resolve) => sending.close(() => resolve())) });
  const sender = `http://127.0.0.1:${(sending.address() as AddressInfo).port}`;
  const trusting = client({ origins: [sender] });
  await expect(trusting.fetch(`${sender}/`)).rejects.toThrow();
  expect(seen).toEqual([]);
});

test('over plain http a token is sent to loopback addresses only', () => {
  expect(() => client({ url: 'http://api.example.test' })).toThrow(/https only/);
  expect(() => client({ url: 'http://127.0.0.1:1' })).not.toThrow();
});

test('an undici dispatcher of its own gets the token by an interceptor, and renews it when it is refused', async () => {
  const own = client({ scope: 'reports:write' });
  const agent = new Agent({ connect: { ca: gateway.ca.pem }, allowH2: false });
  const dispatcher = agent.compose(bearerInterceptor(own));
  opened.push(agent);
  const send = async (): Promise<number> => {
    const { statusCode, body } = await request(`${urlOf(gateway.port)}/reports/1`, {
      dispatcher,
      method: 'POST',
      body: 'x',
    });
    await body.dump();
    return statusCode;
  };
  expect(await send()).toBe(200);
  const token = await own.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
  expect(await send()).toBe(200);
  expect(await own.token()).not.toBe(token);
});

test('an interceptor without a better token passes the refusal on', async () => {
  const store = memoryCredentialStore();
  const token = await client({ store }).token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
  const agent = new Agent({ connect: { ca: gateway.ca.pem }, allowH2: false });
  opened.push(agent);
  const dispatcher = agent.compose(bearerInterceptor(deviceClient({ store })));
  const { statusCode, body } = await request(`${urlOf(gateway.port)}/files/a`, { dispatcher });
  expect(statusCode).toBe(401);
  expect(await body.json()).toMatchObject({ error: 'invalid_token' });
});

test('an interceptor whose dispatcher cannot send fails the request, and nothing else', async () => {
  const agent = new Agent({ connect: { ca: gateway.ca.pem }, allowH2: false });
  opened.push(agent);
  const own = client();
  /** Sends so many requests and no more. */
  const atMost = (most: number): Dispatcher.DispatcherComposeInterceptor => {
    let sent = 0;
    return (dispatch) => (options, handler) => {
      sent += 1;
      if (sent > most) throw new Error('it cannot be sent');
      return dispatch(options, handler);
    };
  };
  const ask = (most: number) =>
    request(`${urlOf(gateway.port)}/files/a`, {
      dispatcher: agent.compose(atMost(most), bearerInterceptor(own)),
    });
  await expect(ask(0)).rejects.toThrow('it cannot be sent');
  // The same for the second try, after a renewal.
  const token = await own.token();
  await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
  await expect(ask(1)).rejects.toThrow('it cannot be sent');
});

test('an interceptor does not buffer an endless error response: it is passed on as it arrives', async () => {
  const responses: ServerResponse[] = [];
  const endless = createServer((_, response) => {
    responses.push(response);
    response.writeHead(401, { 'www-authenticate': 'Bearer error="invalid_token"' });
    response.write('x'.repeat(200_000));
  });
  await new Promise<void>((resolve) => endless.listen(0, '127.0.0.1', resolve));
  opened.push({ close: () => new Promise((resolve) => endless.close(() => resolve())) });
  const origin = `http://127.0.0.1:${(endless.address() as AddressInfo).port}`;
  const agent = new Agent();
  opened.push(agent);
  const dispatcher = agent.compose(bearerInterceptor(client({ origins: [origin] })));
  const { statusCode, body } = await request(origin, { dispatcher });
  expect(statusCode).toBe(401);
  responses[0]?.end('the end');
  const text = await body.text();
  expect([text.length, text.endsWith('the end')]).toEqual([200_007, true]);
  expect(responses).toHaveLength(1);
});

test('a stored grant is a file of mode 0600, complete or absent, with no other file left behind', async () => {
  const file = join(folder, 'deep/kept.json');
  const own = client({ store: fileCredentialStore(file) });
  const token = await own.token();
  expect(statSync(file).mode & 0o777).toBe(0o600);
  expect(statSync(join(folder, 'deep')).mode & 0o777).toBe(0o700);
  expect(readdirSync(join(folder, 'deep')).sort()).toEqual(['kept.json', 'kept.json.lock']);
  expect(readFileSync(`${file}.lock`, 'utf8')).not.toContain(token);
  expect(await client({ store: fileCredentialStore(file) }).token()).toBe(token);
  expect(await own.logout()).toBe(true);
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect(await own.logout()).toBe(false);
});

test('a token file that others can read, or that is something else, is not used', async () => {
  const file = join(folder, 'open.json');
  const own = client({ store: fileCredentialStore(file) });
  await own.token();
  chmodSync(file, 0o644);
  await expect(own.token()).rejects.toThrow(/can be read by others/);
});

test('a grant of another service or integration in the same file is neither used nor shown', async () => {
  const file = join(folder, 'shared.json');
  const first = await client({ store: fileCredentialStore(file) }).token();
  const relay = await relayTo(gateway.port);
  const elsewhere = client({ url: urlOf(relay.port), store: fileCredentialStore(file) });
  expect(await elsewhere.token()).not.toBe(first);
  // The grant of the other service was not ours to end.
  expect((await gateway.api('/files/a', first)).status).toBe(200);
});

test('a new sign-in ends the grant before it', async () => {
  const own = client();
  const first = await own.token();
  await own.login();
  expect((await gateway.api('/files/a', first)).status).toBe(401);
});
