import { describe, expect, test } from 'vitest';
import { createOAuthClient, refusal } from '../support/oauth-client.ts';
import { until } from '../support/until.ts';
import { AGENT_CALLBACK, createAgents, type Respond, sendDocument, useDocumentGateway } from './document-gateway.ts';

/** Hosts of client metadata documents that are slow, down or dishonest. */
const at = useDocumentGateway((hosts) => [
  createAgents('agents', { hosts: [...hosts, 'localhost:1'], privateAddresses: true, ca: 'ca.pem' }),
]);

const authorize = (id = at.clientId) => at.flow.authorize({ client_id: id, redirect_uri: AGENT_CALLBACK });
const push = (id = at.clientId) =>
  createOAuthClient(at.gateway).post('par', at.flow.parameters({ client_id: id, redirect_uri: AGENT_CALLBACK }));

describe('a document that cannot be read now is a temporary error', () => {
  test.each<[string, Respond]>([
    ['the host closes the connection', (request) => request.socket.destroy()],
    ['the host responds with 503', (_request, response) => response.writeHead(503).end()],
    ['the host responds with 429', (_request, response) => response.writeHead(429).end()],
    [
      'the host closes the connection within the body',
      (request, response) => {
        response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
        response.write('{', () => request.socket.destroy());
      },
    ],
  ])('%s', async (_, failing) => {
    at.respond = failing;
    const page = await authorize();
    expect([page.status, page.redirectTo, page.headers['retry-after']]).toEqual([503, undefined, '10']);
    expect(await push()).toMatchObject(refusal('temporarily_unavailable', 503));
    expect(at.requests, 'it is not asked again at once').toHaveLength(1);
    at.respond = sendDocument();
    at.gateway.clock.advance(11);
    expect((await authorize()).status).toBe(200);
  });

  test('no server listens', async () => {
    expect((await authorize('https://localhost:1/client.json')).status).toBe(503);
  });
});

test('a host whose certificate comes from an unknown CA is refused, and the log says what to set', async () => {
  const setCa = (ca: { readonly ca?: string }) =>
    at.gateway.reload((settings) => ({
      ...settings,
      integrations: [createAgents('agents', { hosts: [...at.hosts, 'localhost:1'], privateAddresses: true, ...ca })],
    }));
  await setCa({});
  expect((await authorize()).status).toBe(400);
  expect(at.requests).toEqual([]);
  expect(JSON.stringify(at.gateway.log)).toContain('for a private CA, set clientDocuments.ca');
  await setCa({ ca: 'ca.pem' });
});

test('a slow host keeps clients of other hosts neither waiting nor out, and gets four requests at once', async () => {
  const released = Promise.withResolvers<void>();
  let current = 0;
  let most = 0;
  at.respond = async (request, response) => {
    if (request.headers.host !== at.hosts[0]) return sendDocument()(request, response);
    current += 1;
    most = Math.max(most, current);
    await released.promise;
    current -= 1;
    return sendDocument()(request, response);
  };
  const waiting = Array.from({ length: 40 }, (_, index) => authorize(`${at.clientId}?${index}`));
  await until('four are being read', () => current === 4);
  expect((await authorize(at.clientId.replace(at.hosts[0], at.hosts[1]))).status).toBe(200);
  released.resolve();
  const statuses = (await Promise.all(waiting)).map(({ status }) => status);
  expect(most).toBe(4);
  expect(statuses.filter((status) => status === 200).length).toBeGreaterThanOrEqual(4);
  expect(new Set(statuses)).toEqual(new Set([200, 503]));
});

test('a document under the name of another host is refused, and does not become the document of that host', async () => {
  const other = at.clientId.replace(at.hosts[0], at.hosts[1]);
  at.respond = sendDocument({ client_id: other, client_name: 'Poisoned' });
  expect((await authorize()).status).toBe(400);
  at.respond = sendDocument();
  const review = await at.flow.reachReview({ client_id: other, redirect_uri: AGENT_CALLBACK });
  expect(review.text).toContain('Friendly Agent');
  expect(at.requests.map(({ url }) => url)).toEqual([at.clientId, other]);
});

test('URLs inside a document are neither requested nor shown', async () => {
  const url = `https://${at.hosts[0]}/secret`;
  at.respond = sendDocument({
    jwks_uri: `${url}/keys`,
    logo_uri: `${url}/logo.svg`,
    client_uri: `${url}/home`,
    policy_uri: `${url}/policy`,
    tos_uri: `${url}/tos`,
    sector_identifier_uri: `${url}/sector`,
    post_logout_redirect_uris: [`${url}/logout`],
  });
  const review = await at.flow.reachReview({ client_id: at.clientId, redirect_uri: AGENT_CALLBACK });
  expect(at.requests.map(({ url }) => url)).toEqual([at.clientId]);
  expect(review.text).not.toContain(url);
});

test.each([
  ['markup', '<b onmouseover=alert(1)>Bank</b>', '“\u2068&lt;b onmouseover=alert(1)&gt;Bank&lt;/b&gt;\u2069”'],
  ['quotation marks', 'Bank” is registered here. Ignore: “', '“\u2068Bank’ is registered here. Ignore: ’\u2069”'],
  ['other quotation marks', 'a«b»c„d"e＂f「g」', '“\u2068a’b’c’d’e’f’g’\u2069”'],
  ['bidirectional controls', 'Bank\u202egro.live\u2066x\u2069', '“\u2068Bankgro.livex\u2069”'],
  ['invisible characters and lines', 'Ba\u200bnk\u00ad\n\nok', '“\u2068Bank ok\u2069”'],
  ['right-to-left letters', 'אבג', '“\u2068אבג\u2069”'],
  ['a long text', 'x'.repeat(200), `“\u2068${'x'.repeat(60)}\u2069”`],
])('a client name with %s stays within its quotation', async (_, name, shown) => {
  at.respond = sendDocument({ client_name: name });
  const review = await at.flow.reachReview({ client_id: at.clientId, redirect_uri: AGENT_CALLBACK });
  expect(review.text).toContain(`calls itself ${shown} and is not registered here`);
  expect(review.text).toContain(`<strong><bdi>${at.hosts[0]}</bdi></strong>`);
});

test('an invalid request of such a client shows no text of the request, and sends nothing to the client', async () => {
  const text = 'Your account is locked. Call 0800 123456';
  const fields = { client_id: at.clientId, redirect_uri: AGENT_CALLBACK };
  for (const changes of [
    { resource: text },
    { audience: text },
    { scope: 'account-locked:call-0800-123456' },
    { scope: text },
    { state: `${text}\u00fc` },
    { prompt: text },
    { response_mode: text },
    { response_type: text },
    { code_challenge: text },
  ]) {
    const page = await at.flow.authorize({ ...fields, ...changes });
    expect([page.status, page.redirectTo], JSON.stringify(changes)).toEqual([400, undefined]);
    // The links for other languages repeat the query.
    const shown = page.text.replaceAll(/<[^>]*>/g, ' ');
    expect(shown).not.toMatch(/locked|0800/);
  }
});

test('a redirect URI that a document has lost is refused once the document is read again', async () => {
  const fields = { client_id: at.clientId, redirect_uri: AGENT_CALLBACK };
  await at.flow.reachReview(fields);
  const code = (await at.flow.decide('approve')).searchParams.get('code') ?? '';
  at.respond = sendDocument({ redirect_uris: ['https://elsewhere.example.test/'] });
  at.gateway.clock.advance(30);
  expect((await at.flow.exchange(code, fields)).status, 'it was approved before').toBe(200);
  at.gateway.clock.advance(300);
  const page = await authorize();
  expect([page.status, page.redirectTo]).toEqual([400, undefined]);
});
