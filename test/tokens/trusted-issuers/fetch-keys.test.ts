import { createServer, type RequestListener } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { expect, onTestFinished, test } from 'vitest';
import { createHttpClient } from '../../../src/lib/http-client.ts';
import { type FetchKeysOptions, fetchKeys } from '../../../src/tokens/trusted-issuers/fetch-keys.ts';
import type { IssuerKey } from '../../../src/tokens/trusted-issuers/key-set.ts';
import { createForeignKey, formatKeySet } from '../../support/foreign-issuer.ts';
import { createCa, issue, issueServer, writePki } from '../../support/pki.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { startGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

const key = await createForeignKey('ES256', 'k1');
const TIMEOUT = /timeout|abort/i;
const JSON_TYPE = { 'content-type': 'application/json' };

async function startIssuer(onRequest: (url: string) => RequestListener, timeoutMs = 30_000) {
  const requests: string[] = [];
  const server = createServer((request, response) => {
    requests.push(`${request.url} ${request.headers.authorization ?? ''}`.trim());
    onRequest(origin)(request, response);
  }).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const httpClient = createHttpClient({ timeoutMs });
  onTestFinished(async () => {
    await httpClient.destroy();
    server.closeAllConnections();
    server.close();
  });
  const fetch = (options: Partial<FetchKeysOptions> = {}): Promise<readonly IssuerKey[]> =>
    fetchKeys({
      issuer: `${origin}/realms/corp`,
      httpClient,
      anonymousHttpClient: httpClient,
      ...options,
    });
  return { origin, requests, fetch };
}

const respondJson =
  (routes: Readonly<Record<string, unknown>>): RequestListener =>
  (request, response) => {
    const body = routes[request.url ?? ''];
    if (body === undefined) response.writeHead(404, JSON_TYPE).end('{}');
    else response.writeHead(200, JSON_TYPE).end(typeof body === 'string' ? body : JSON.stringify(body));
  };

test('keys are found by OpenID Connect Discovery', async () => {
  const { requests, fetch, origin } = await startIssuer((url) =>
    respondJson({
      '/realms/corp/.well-known/openid-configuration': {
        issuer: `${url}/realms/corp`,
        jwks_uri: `${url}/certs`,
      },
      '/certs': formatKeySet(key),
    }),
  );
  expect(await fetch()).toHaveLength(1);
  expect(requests).toEqual(['/realms/corp/.well-known/openid-configuration', '/certs']);
  expect(origin).toMatch(/^http:/);
});

test('keys are found by authorization server metadata where there is no OpenID configuration', async () => {
  const { requests, fetch } = await startIssuer((url) =>
    respondJson({
      '/.well-known/oauth-authorization-server/realms/corp': {
        issuer: `${url}/realms/corp`,
        jwks_uri: `${url}/certs`,
      },
      '/certs': formatKeySet(key),
    }),
  );
  expect(await fetch()).toHaveLength(1);
  expect(requests).toHaveLength(3);
});

test('a configured key set needs no discovery, and a bearer token is sent where one is configured', async () => {
  const { requests, fetch, origin } = await startIssuer(() => respondJson({ '/keys': formatKeySet(key) }));
  expect(await fetch({ jwksUri: `${origin}/keys`, readBearerToken: () => 'pod' })).toHaveLength(1);
  expect(requests).toEqual(['/keys Bearer pod']);
});

test('a bearer token and a client certificate are sent to the issuer, but not to another host that its metadata names', async () => {
  const requests: string[] = [];
  const ca = await createCa();
  const { pem, keyPem } = await issueServer(ca);
  const startServer = async (name: string, createBody: (port: number) => string) => {
    const server = createTlsServer(
      { cert: pem, key: keyPem, ca: ca.pem, requestCert: true, rejectUnauthorized: false },
      (request, response) => {
        const { subject } = (request.socket as TLSSocket).getPeerCertificate();
        const { authorization = 'no token' } = request.headers;
        requests.push(`${name}: ${authorization}, ${subject === undefined ? 'no certificate' : 'certificate'}`);
        response.writeHead(200, JSON_TYPE).end(createBody(port));
      },
    );
    const { port, close } = await listenTcp(server);
    onTestFinished(() => {
      server.closeAllConnections();
      return close();
    });
    return port;
  };
  const keysPort = await startServer('keys', () => formatKeySet(key));
  const jwksUri = `https://localhost:${keysPort}/keys`;
  const issuerPort = await startServer('issuer', (port) =>
    JSON.stringify({ issuer: `https://localhost:${port}`, jwks_uri: jwksUri }),
  );
  const client = await issue(ca);
  const corp = {
    issuer: `https://localhost:${issuerPort}`,
    audience: 'files-api',
    ca: 'issuer-ca.pem',
    certificate: 'client.pem',
    key: 'client-key.pem',
    bearerTokenFile: 'token',
  };
  const gateway = await startGateway(
    (settings) => ({ ...settings, trustedIssuers: { corp } }),
    (folder) =>
      writePki(folder, {
        'issuer-ca.pem': ca.pem,
        'client.pem': client.pem,
        'client-key.pem': client.keyPem,
        token: 'pod',
      }),
  );
  onTestFinished(() => gateway.close());
  await until('the keys are fetched', () => requests.length === 2);
  expect(requests).toEqual(['issuer: Bearer pod, certificate', 'keys: no token, no certificate']);
  await gateway.reload((settings) => ({ ...settings, trustedIssuers: { corp: { ...corp, jwksUri } } }));
  await until('the keys are fetched', () => requests.length === 3);
  expect(requests[2]).toBe('keys: Bearer pod, certificate');
});

test('keys are fetched from a server that serves key sets only as application/jwk-set+json, as Kubernetes does', async () => {
  const types: Readonly<Record<string, string>> = {
    '/realms/corp/.well-known/openid-configuration': 'application/json',
    '/openid/v1/jwks': 'application/jwk-set+json',
  };
  const { fetch } = await startIssuer((url) => (request, response) => {
    const type = types[request.url ?? ''] ?? '';
    // Like go-restful, which compares the types exactly.
    if (!(request.headers.accept ?? '').split(/, */).includes(type)) return response.writeHead(406).end();
    const metadata = JSON.stringify({ issuer: `${url}/realms/corp`, jwks_uri: `${url}/openid/v1/jwks` });
    const body = type === 'application/json' ? metadata : formatKeySet(key);
    return response.writeHead(200, { 'content-type': type }).end(body);
  });
  expect(await fetch()).toHaveLength(1);
});

test.each([
  ['names another issuer', (url: string) => ({ issuer: url, jwks_uri: `${url}/certs` }), 'another issuer'],
  ['has no jwks_uri', (url: string) => ({ issuer: `${url}/realms/corp` }), 'no usable jwks_uri'],
  [
    'has a jwks_uri that is no web address',
    (url: string) => ({ issuer: `${url}/realms/corp`, jwks_uri: 'file:///etc/passwd' }),
    'no usable jwks_uri',
  ],
  ['is a list', () => [], 'not a JSON object'],
])('metadata that %s is refused', async (_, createMetadata, problem) => {
  const { fetch } = await startIssuer((url) =>
    respondJson({
      '/realms/corp/.well-known/openid-configuration': createMetadata(url),
      '/certs': formatKeySet(key),
    }),
  );
  await expect(fetch()).rejects.toThrow(problem);
});

test.each([
  [
    'a trailing slash',
    (url: string) => `${url}/realms/corp/`,
    (url: string) => `issuer, ${url}/realms/corp/: the setting`,
  ],
  ['a control character', () => 'a\u001b[2Jb', () => 'issuer, a\\u{1b}[2Jb: the setting'],
  ['a long name', () => 'x'.repeat(10_000), () => `issuer, ${'x'.repeat(200)}…: the setting`],
  ['no name', () => 7, () => 'names no issuer'],
])('the error names the issuer that was found in the metadata: %s', async (_, createName, describe) => {
  const { fetch, origin } = await startIssuer((url) =>
    respondJson({
      '/realms/corp/.well-known/openid-configuration': { issuer: createName(url), jwks_uri: `${url}/certs` },
    }),
  );
  await expect(fetch()).rejects.toThrow(describe(origin));
});

test.each<[string, RequestListener, RegExp]>([
  ['a redirect', (_request, response) => response.writeHead(302, { location: '/other' }).end(), /302/],
  ['an error', (_request, response) => response.writeHead(500).end(), /500/],
  ['HTML', (_request, response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<html>'), /JSON/],
  [
    'too much',
    (_request, response) => response.writeHead(200, JSON_TYPE).end(`{"keys":[],"x":"${'.'.repeat(600_000)}"}`),
    /longer than/,
  ],
  [
    'a compressed body',
    (_request, response) =>
      response.writeHead(200, { ...JSON_TYPE, 'content-encoding': 'gzip' }).end(Buffer.alloc(100)),
    /content coding/,
  ],
  ['nothing in time', () => {}, TIMEOUT],
  [
    'a body that never ends',
    (_request, response) => {
      response.writeHead(200, JSON_TYPE);
      response.write('{"keys":[');
    },
    TIMEOUT,
  ],
])('a server that responds with %s is refused, in place of keys and of metadata', async (_, onRequest, problem) => {
  const { fetch, origin, requests } = await startIssuer(() => onRequest, problem === TIMEOUT ? 500 : undefined);
  await expect(fetch({ jwksUri: `${origin}/keys` })).rejects.toThrow(problem);
  await expect(fetch()).rejects.toThrow(problem);
  expect(requests, 'no redirect is followed').toEqual(['/keys', '/realms/corp/.well-known/openid-configuration']);
});
