import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { sendRequest } from '../support/https-client.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import {
  AGENT_CALLBACK,
  createAgents,
  createDocument,
  type Respond,
  sendDocument,
  useDocumentGateway,
} from './document-gateway.ts';

/** Clients that are not registered: their id is the URL of a document. */
const at = useDocumentGateway(([host, address]) => [
  createAgents('agents', { hosts: [host, '*.agents.example.test'], privateAddresses: true, ca: 'ca.pem' }),
  createAgents('internet', { hosts: [address, 'localhost'], ca: 'ca.pem' }),
]);

const client = (client_id = at.clientId) => ({ client_id, redirect_uri: AGENT_CALLBACK });

test('a client is approved under the host of its document, exchanges its code, and has a grant like any other', async () => {
  const review = await at.flow.reachReview(client());
  expect(review.text).toContain(`<strong><bdi>${at.hosts[0]}</bdi></strong> wants to act on your behalf`);
  expect(review.text).toContain('calls itself “\u2068Friendly Agent\u2069” and is not registered here');
  expect(review.text).toContain(at.clientId);
  const code = (await at.flow.decide('approve')).searchParams.get('code') ?? '';
  const reply = await at.flow.exchange(code, client());
  const token = getAccessToken(reply);
  expect((await at.gateway.api('/files/a', token)).status).toBe(200);
  const refreshed = await createOAuthClient(at.gateway).refresh(String(reply.json['refresh_token']), {
    client_id: at.clientId,
  });
  expect(refreshed.status, refreshed.text).toBe(200);
  expect(at.gateway.auditEvents('grant_issued')).toMatchObject([{ client: at.clientId }]);
  expect(at.requests.map(({ url, headers }) => [url, headers.authorization, headers.cookie])).toEqual([
    [at.clientId, undefined, undefined],
  ]);
  const { json } = await at.gateway.request({ path: '/.well-known/oauth-authorization-server' });
  expect(json).toMatchObject({ client_id_metadata_document_supported: true });

  // Removing the host ends the access of its clients.
  const elsewhere = withIntegration('agents', { clientDocuments: { hosts: ['other.example.test'] } });
  await withSettings(at.gateway, elsewhere, async () => {
    expect((await at.gateway.api('/files/a', token)).status).toBe(401);
  });
});

test('the tokens of a client are revoked by its URL, and not with the integration', async () => {
  const adminToken = readFileSync(join(at.gateway.folder, 'data/admin-token'), 'utf8').trim();
  const revoke = (id: string) =>
    sendRequest({
      port: at.gateway.adminPort,
      method: 'POST',
      path: '/admin/v1/revoke',
      headers: { authorization: `Bearer ${adminToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ client: id }),
      plain: true,
    });
  await at.flow.reachReview(client());
  const code = (await at.flow.decide('approve')).searchParams.get('code') ?? '';
  const token = getAccessToken(await at.flow.exchange(code, client()));
  expect((await revoke('agents')).json).toMatchObject({ document_clients_not_included: true });
  expect((await at.gateway.api('/files/a', token)).status).toBe(200);
  expect(await revoke(at.clientId)).toMatchObject({ status: 200, json: { ended: { client: at.clientId } } });
  expect((await at.gateway.api('/files/a', token)).status).toBe(401);
});

test('a document is cached as long as it says, within limits, and read once for concurrent requests', async () => {
  at.respond = sendDocument({}, { 'cache-control': 'public, max-age=600' });
  await Promise.all([at.flow.authorize(client()), at.flow.authorize(client()), at.flow.authorize(client())]);
  at.gateway.clock.advance(599);
  await at.flow.authorize(client());
  expect(at.requests).toHaveLength(1);
  at.gateway.clock.advance(2);
  await at.flow.authorize(client());
  expect(at.requests).toHaveLength(2);
});

test('a client that asks for all scopes of the API gets those that the integration and the user allow', async () => {
  const review = await at.flow.reachReview(
    { ...client(), scope: 'openid files:read,delete reports:read admin:manage' },
    'bob',
  );
  expect(review.text).toContain('<code>files:read</code>');
  const code = (await at.flow.decide('approve')).searchParams.get('code') ?? '';
  expect((await at.flow.exchange(code, client())).json).toMatchObject({ scope: 'files:read' });
  const none = await at.flow.authorize({ ...client(), scope: 'admin:manage' });
  expect([none.status, none.redirectTo], 'nothing is sent to it without the user').toEqual([400, undefined]);
  expect(none.text).toContain('does not allow the requested scope');
});

test('a pushed request of such a client is accepted', async () => {
  const reply = await createOAuthClient(at.gateway).post('par', at.flow.parameters(client()));
  expect(reply.status, reply.text).toBe(201);
});

test('a redirect URI that is not in the document is refused on a page', async () => {
  const page = await at.flow.authorize({ ...client(), redirect_uri: 'https://evil.example.test/callback' });
  expect([page.status, page.redirectTo]).toEqual([400, undefined]);
});

const expectRefused = async (reason: RegExp, clientId?: string): Promise<void> => {
  const page = await at.flow.authorize(client(clientId));
  expect([page.status, page.redirectTo]).toEqual([400, undefined]);
  expect(at.gateway.log.find(({ event }) => event === 'client_document_refused')?.['reason']).toMatch(reason);
  expect(await createOAuthClient(at.gateway).post('par', at.flow.parameters(client(clientId)))).toMatchObject(
    refusal('invalid_client'),
  );
};

describe('a document is refused', () => {
  test.each<[string, RegExp, () => Respond]>([
    ['of another client', /client_id/, () => sendDocument({ client_id: 'https://other.example.test/x' })],
    ['with a client secret', /secret/, () => sendDocument({ client_secret: 'x' })],
    ['of a confidential client', /auth_method/, () => sendDocument({ token_endpoint_auth_method: 'private_key_jwt' })],
    ['without redirect URIs', /redirect_uris/, () => sendDocument({ redirect_uris: [] })],
    ['with a script as redirect URI', /redirect_uris/, () => sendDocument({ redirect_uris: ['javascript:alert(1)'] })],
    ['with an http redirect URI', /https/, () => sendDocument({ redirect_uris: ['http://evil.example.test/'] })],
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
          .end(`{"client_id":"x",${JSON.stringify(createDocument(at.clientId)).slice(1)}`),
    ],
    [
      'that is a list',
      /JSON object/,
      () => (_request, response) => void response.writeHead(200, { 'content-type': 'application/json' }).end('[]'),
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
    at.respond = create();
    await expectRefused(reason);
    expect(at.requests.every(({ url }) => !url.endsWith('/target'))).toBe(true);
  });
});

describe('nothing is requested', () => {
  test.each<[string, () => string]>([
    ['from a host that is not listed', () => 'https://evil.example.test/client.json'],
    ['from a host that ends like a listed one', () => 'https://evilagents.example.test/client.json'],
    ['from a listed name without a label before it', () => 'https://agents.example.test/client.json'],
    ['from another port', () => 'https://localhost:1/client.json'],
    ['over http', () => `http://${at.hosts[0]}/client.json`],
    ['without a path', () => `https://${at.hosts[0]}/`],
    ['with a fragment', () => `https://${at.hosts[0]}/client.json#x`],
    ['with user information', () => `https://user@${at.hosts[0]}/client.json`],
    ['with a backslash', () => `https://${at.hosts[0]}\\client.json`],
    ['with dot segments', () => `https://${at.hosts[0]}/a/../client.json`],
    ['in another spelling', () => `https://LOCALHOST:${at.hosts[0].split(':')[1]}/client.json`],
    ['from a URL that is too long', () => `https://${at.hosts[0]}/${'a'.repeat(300)}`],
  ])('%s', async (_, create) => {
    const page = await at.flow.authorize(client(create()));
    expect([page.status, page.redirectTo]).toEqual([400, undefined]);
    expect(at.requests).toEqual([]);
  });

  test.each<[string, () => string]>([
    ['a private address', () => `https://${at.hosts[1]}/client.json`],
    ['a name with a private address', () => 'https://localhost/client.json'],
  ])('from %s, although the host is listed', async (_, create) => {
    await expectRefused(/not public/, create());
    expect(at.requests).toEqual([]);
  });
});

test('a document that is still being read does not delay other clients', async () => {
  const slow = at.clientId;
  const released = Promise.withResolvers<void>();
  at.respond = async (request, response) => {
    if (request.url === new URL(slow).pathname) await released.promise;
    sendDocument()(request, response);
  };
  const waiting = at.flow.authorize(client());
  expect((await at.flow.authorize(client(`${slow}?other`))).status).toBe(200);
  released.resolve();
  expect((await waiting).status).toBe(200);
});

test('a URL is not a client at other endpoints', async () => {
  const reply = await createOAuthClient(at.gateway).post('device_authorization', {
    client_id: at.clientId,
    scope: 'files:read',
  });
  expect(reply).toMatchObject(refusal('unauthorized_client'));
  expect(at.requests).toEqual([]);
});
