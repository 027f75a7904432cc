import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { APP, type CodeFlow, createCodeFlow } from '../support/code-client.ts';
import { sendRequest } from '../support/https-client.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { issueServer } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Clients that are not registered: their id is the URL of a document. */
let gateway: TestGateway;
let server: Server;
let host = '';
let clientId = '';
let requests: IncomingMessage[] = [];
let respond: (request: IncomingMessage, response: ServerResponse) => unknown = () => {};
let flow: CodeFlow;

const CALLBACK = 'https://agent.example.test/callback';
const createDocument = (changes: object = {}) => ({
  client_id: clientId,
  client_name: 'Friendly Agent',
  redirect_uris: [CALLBACK, 'http://127.0.0.1/callback'],
  token_endpoint_auth_method: 'none',
  ...changes,
});
const sendDocument =
  (changes: object = {}, headers: Readonly<Record<string, string>> = {}): typeof respond =>
  (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify(createDocument(changes)));
  };

beforeAll(async () => {
  gateway = await startGateway();
  const { pem, keyPem } = await issueServer(gateway.ca);
  server = createServer({ cert: pem, key: keyPem }, (request, response) => {
    requests.push(request);
    respond(request, response);
  });
  await once(server.listen(0), 'listening');
  const { port } = server.address() as AddressInfo;
  host = `localhost:${port}`;
  const { redirectUris: _redirectUris, ...agent } = APP;
  await gateway.reload((settings) => ({
    ...settings,
    integrations: [
      {
        ...agent,
        clientId: 'agents',
        clientDocuments: { hosts: [host, '*.agents.example.test'], privateAddresses: true, ca: 'ca.pem' },
      },
      {
        ...agent,
        clientId: 'internet',
        clientDocuments: { hosts: [`127.0.0.1:${port}`, 'localhost'], ca: 'ca.pem' },
      },
    ],
    routes: [{ path: '/files/**', requires: 'files:read' }],
  }));
});
afterAll(async () => {
  await gateway?.close();
  server?.close();
  server?.closeAllConnections();
});
let documents = 0;
beforeEach(() => {
  documents += 1;
  clientId = `https://${host}/agents/${documents}.json`;
  requests = [];
  respond = sendDocument();
  flow = createCodeFlow(gateway);
  gateway.clearLog();
});
afterEach(() => flow[Symbol.asyncDispose]());

const client = () => ({ client_id: clientId, redirect_uri: CALLBACK });

test('a client is approved under the host of its document, exchanges its code, and has a grant like any other', async () => {
  const review = await flow.reachReview(client());
  expect(review.text).toContain(`<strong><bdi>${host}</bdi></strong> wants to act on your behalf`);
  expect(review.text).toContain('calls itself “\u2068Friendly Agent\u2069” and is not registered here');
  expect(review.text).toContain(clientId);
  const code = (await flow.decide('approve')).searchParams.get('code') ?? '';
  const reply = await flow.exchange(code, client());
  const token = getAccessToken(reply);
  expect((await gateway.api('/files/a', token)).status).toBe(200);
  const refreshed = await createOAuthClient(gateway).refresh(String(reply.json['refresh_token']), {
    client_id: clientId,
  });
  expect(refreshed.status, refreshed.text).toBe(200);
  expect(gateway.auditEvents('grant_issued')).toMatchObject([{ client: clientId }]);
  expect(requests.map(({ url, headers }) => [url, headers.authorization, headers.cookie])).toEqual([
    [new URL(clientId).pathname, undefined, undefined],
  ]);
  const { json } = await gateway.request({ path: '/.well-known/oauth-authorization-server' });
  expect(json).toMatchObject({ client_id_metadata_document_supported: true });

  // Removing the host ends the access of its clients.
  const before = gateway.server.settings().integrations;
  await gateway.reload((settings) => ({
    ...settings,
    integrations: settings.integrations?.map((one) =>
      one.clientId === 'agents' ? { ...one, clientDocuments: { hosts: ['other.example.test'] } } : one,
    ),
  }));
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  await gateway.reload((settings) => ({
    ...settings,
    integrations: settings.integrations?.map((one) =>
      one.clientId === 'agents'
        ? {
            ...one,
            clientDocuments: {
              hosts: before[0]?.clientDocuments.hosts ?? [],
              privateAddresses: true,
              ca: 'ca.pem',
            },
          }
        : one,
    ),
  }));
});

test('the tokens of a client are revoked by its URL, and not with the integration', async () => {
  const adminToken = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
  const revoke = (id: string) =>
    sendRequest({
      port: gateway.adminPort,
      method: 'POST',
      path: '/admin/v1/revoke',
      headers: { authorization: `Bearer ${adminToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ client: id }),
      plain: true,
    });
  await flow.reachReview(client());
  const code = (await flow.decide('approve')).searchParams.get('code') ?? '';
  const token = getAccessToken(await flow.exchange(code, client()));
  expect((await revoke('agents')).json).toMatchObject({ document_clients_not_included: true });
  expect((await gateway.api('/files/a', token)).status).toBe(200);
  expect(await revoke(clientId)).toMatchObject({ status: 200, json: { ended: { client: clientId } } });
  expect((await gateway.api('/files/a', token)).status).toBe(401);
});

test('a document is cached as long as it says, within limits, and read once for concurrent requests', async () => {
  respond = sendDocument({}, { 'cache-control': 'public, max-age=600' });
  await Promise.all([flow.authorize(client()), flow.authorize(client()), flow.authorize(client())]);
  gateway.clock.advance(599);
  await flow.authorize(client());
  expect(requests).toHaveLength(1);
  gateway.clock.advance(2);
  await flow.authorize(client());
  expect(requests).toHaveLength(2);
});

test('a client that asks for all scopes of the API gets those that the integration and the user allow', async () => {
  const review = await flow.reachReview(
    { ...client(), scope: 'openid files:read,delete reports:read admin:manage' },
    'bob',
  );
  expect(review.text).toContain('<code>files:read</code>');
  const code = (await flow.decide('approve')).searchParams.get('code') ?? '';
  expect((await flow.exchange(code, client())).json).toMatchObject({ scope: 'files:read' });
  const none = await flow.authorize({ ...client(), scope: 'admin:manage' });
  expect([none.status, none.redirectTo], 'nothing is sent to it without the user').toEqual([400, undefined]);
  expect(none.text).toContain('exceeds the scope');
});

test('a pushed request of such a client is accepted', async () => {
  const reply = await createOAuthClient(gateway).post('par', flow.parameters(client()));
  expect(reply.status, reply.text).toBe(201);
});

test('a redirect URI that is not in the document is refused on a page', async () => {
  const page = await flow.authorize({ ...client(), redirect_uri: 'https://evil.example.test/callback' });
  expect([page.status, page.redirectTo]).toEqual([400, undefined]);
});

const expectRefused = async (reason?: RegExp): Promise<void> => {
  const page = await flow.authorize(client());
  expect([page.status, page.redirectTo]).toEqual([400, undefined]);
  if (reason !== undefined)
    expect(gateway.log.find(({ event }) => event === 'client_document_refused')?.['reason']).toMatch(reason);
  expect(await createOAuthClient(gateway).post('par', flow.parameters(client()))).toMatchObject(
    refusal('invalid_client'),
  );
};

describe('a document is refused', () => {
  test.each<[string, RegExp, () => typeof respond]>([
    ['of another client', /client_id/, () => sendDocument({ client_id: 'https://other.example.test/x' })],
    ['with a client secret', /secret/, () => sendDocument({ client_secret: 'x' })],
    [
      'of a confidential client',
      /auth_method/,
      () => sendDocument({ token_endpoint_auth_method: 'private_key_jwt' }),
    ],
    ['without redirect URIs', /redirect_uris/, () => sendDocument({ redirect_uris: [] })],
    [
      'with a script as redirect URI',
      /redirect_uris/,
      () => sendDocument({ redirect_uris: ['javascript:alert(1)'] }),
    ],
    [
      'with an http redirect URI',
      /https/,
      () => sendDocument({ redirect_uris: ['http://evil.example.test/'] }),
    ],
    ['with a wildcard', /wildcard/, () => sendDocument({ redirect_uris: ['https://*.example.test/'] })],
    ['as HTML', /content type/, () => sendDocument({}, { 'content-type': 'text/html' })],
    ['that is compressed', /content coding/, () => sendDocument({}, { 'content-encoding': 'gzip' })],
    ['that is too large', /longer than/, () => sendDocument({ filler: 'x'.repeat(20_000) })],
    [
      'with a repeated name',
      /./,
      () => (_request, response) =>
        void response
          .writeHead(200, { 'content-type': 'application/json' })
          .end(`{"client_id":"x",${JSON.stringify(createDocument()).slice(1)}`),
    ],
    [
      'that is a list',
      /JSON object/,
      () => (_request, response) =>
        void response.writeHead(200, { 'content-type': 'application/json' }).end('[]'),
    ],
    ['that does not exist', /404/, () => (_request, response) => void response.writeHead(404).end()],
    [
      'behind a redirect',
      /302/,
      () => (request, response) =>
        request.url === '/target'
          ? sendDocument()(request, response)
          : void response.writeHead(302, { location: '/target' }).end(),
    ],
  ])('%s', async (_, reason, create) => {
    respond = create();
    await expectRefused(reason);
    expect(requests.every(({ url }) => url !== '/target')).toBe(true);
  });
});

describe('nothing is requested', () => {
  test.each<[string, () => string]>([
    ['from a host that is not listed', () => 'https://evil.example.test/client.json'],
    ['from a host that ends like a listed one', () => 'https://evilagents.example.test/client.json'],
    ['from a listed name without a label before it', () => 'https://agents.example.test/client.json'],
    ['from another port', () => 'https://localhost:1/client.json'],
    ['over http', () => `http://${host}/client.json`],
    ['without a path', () => `https://${host}/`],
    ['with a fragment', () => `https://${host}/client.json#x`],
    ['with user information', () => `https://user@${host}/client.json`],
    ['with a backslash', () => `https://${host}\\client.json`],
    ['with dot segments', () => `https://${host}/a/../client.json`],
    ['in another spelling', () => `https://LOCALHOST:${host.split(':')[1]}/client.json`],
    ['from a URL that is too long', () => `https://${host}/${'a'.repeat(300)}`],
  ])('%s', async (_, create) => {
    clientId = create();
    const page = await flow.authorize(client());
    expect([page.status, page.redirectTo]).toEqual([400, undefined]);
    expect(requests).toEqual([]);
  });

  test.each<[string, () => string]>([
    ['a private address', () => `https://127.0.0.1:${host.split(':')[1]}/client.json`],
    ['a name with a private address', () => 'https://localhost/client.json'],
  ])('from %s, although the host is listed', async (_, create) => {
    clientId = create();
    await expectRefused(/not public/);
    expect(requests).toEqual([]);
  });
});

test('a document that is still being read does not delay other clients', async () => {
  const slow = clientId;
  const released = Promise.withResolvers<void>();
  respond = async (request, response) => {
    if (request.url === new URL(slow).pathname) await released.promise;
    clientId = request.url === new URL(slow).pathname ? slow : other;
    sendDocument()(request, response);
  };
  const waiting = flow.authorize(client());
  const other = `https://${host}/agents/other-${documents}.json`;
  expect((await flow.authorize({ ...client(), client_id: other })).status).toBe(200);
  released.resolve();
  expect((await waiting).status).toBe(200);
});

test('a URL is not a client at other endpoints', async () => {
  const reply = await createOAuthClient(gateway).post('device_authorization', {
    client_id: clientId,
    scope: 'files:read',
  });
  expect(reply).toMatchObject(refusal('unauthorized_client'));
  expect(requests).toEqual([]);
});
