import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { forwardedCertificateHeaders } from '../support/forwarded-certificate.ts';
import {
  type FrontProxy,
  type FrontProxyProgram,
  freePort,
  nginxArguments,
  startFrontProxy,
} from '../support/front-proxy.ts';
import { createHttpsClient, type Headers, type HttpsClient } from '../support/https-client.ts';
import type { IssuedCertificate } from '../support/pki.ts';
import { withBoundApp } from '../support/reconfigure.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';

needs('nginx', 'haproxy');

/** Front proxies that terminate TLS, as in docs/forward-auth.md, and misconfigured to forward other header spellings. */
const nginx =
  (careless: boolean) =>
  (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
    program: 'nginx',
    arguments: (folder, write) => {
      const front = fillPlaceholders(readDocumentedConfig('nginx client-certificates'), {
        '127.0.0.1:9443': `127.0.0.1:${port}`,
        '127.0.0.1:8443': `127.0.0.1:${gateway.port}`,
        'gate.example.test': 'localhost',
        '/etc/nginx/tls': gateway.folder,
        '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
        '/etc/gatehouse/issuers.pem': `${gateway.folder}/ca.pem`,
      });
      write('front.conf', front);
      return nginxArguments(folder, write, [
        '  access_log off;',
        ...(careless ? ['  underscores_in_headers on;', '  ignore_invalid_headers off;'] : []),
        `  include ${folder}/front.conf;`,
      ]);
    },
  });
const haproxy =
  (careless: boolean) =>
  (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
    program: 'haproxy',
    arguments: (_folder, write) => {
      const both = ['server.pem', 'server-key.pem'].map((name) =>
        readFileSync(join(gateway.folder, name), 'utf8'),
      );
      const snippet = readDocumentedConfig('haproxy client-certificates');
      const configuration = careless
        ? fillPlaceholders(snippet, { '^client[^a-z0-9]cert -m reg': 'client-cert' })
        : snippet;
      const front = fillPlaceholders(configuration, {
        '127.0.0.1:9443': `127.0.0.1:${port}`,
        '127.0.0.1:8443': `127.0.0.1:${gateway.port}`,
        'gate.example.test': 'localhost',
        '/etc/haproxy/server.pem': write('server.pem', both.join('')),
        '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
        '/etc/gatehouse/issuers.pem': `${gateway.folder}/ca.pem`,
      });
      const defaults = 'defaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n';
      return ['-db', '-f', write('haproxy.cfg', defaults + front)];
    },
  });

describe.each([
  ['nginx', 'x-ssl-client-cert', nginx(false), false],
  ['nginx that passes other spellings on', 'x-ssl-client-cert', nginx(true), true],
  ['HAProxy', 'client-cert', haproxy(false), false],
  ['HAProxy that passes other spellings on', 'client-cert', haproxy(true), true],
] as const)('%s', (_name, forwardedHeader, program, isCareless) => {
  let gateway: TestGateway;
  let front: FrontProxy;
  const clients: HttpsClient[] = [];
  beforeAll(async () => {
    gateway = await startGateway((settings) =>
      withBoundApp({
        ...settings,
        certificates: { ...settings.certificates, forwardedFrom: ['127.0.0.1'], forwardedHeader },
      }),
    );
    const port = await freePort();
    front = await startFrontProxy({ port, ...program(port, gateway) });
  });
  afterAll(async () => {
    for (const client of clients) client.close();
    await front?.close();
    await gateway?.close();
  });
  const createClient = (as?: IssuedCertificate): HttpsClient => {
    const client = createHttpsClient({ port: front.port, ca: gateway.ca.pem, ...(as && { as }) });
    clients.push(client);
    return client;
  };
  const authorize = (client: HttpsClient, headers: Headers = {}) =>
    client.request({
      path: '/authsvc/Authorize/Certificate',
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify({ client_id: 'bound-app', scope: 'files:read' }),
    });

  test('the client’s certificate is forwarded, regardless of the headers that the client sends', async () => {
    const [as, without] = [createClient(gateway.users.alice), createClient()];
    const granted = await authorize(as);
    expect([granted.status, granted.json['identity']], front.output()).toEqual([200, ALICE]);
    for (const [name, value] of forwardedCertificateHeaders(gateway.users.bob.der))
      expect((await authorize(as, { [name]: value })).json['identity']).toBe(ALICE);
    const token = String(granted.json['access_token']);
    expect((await as.getWithToken('/files/a', token)).status).toBe(200);
    expect((await without.getWithToken('/files/a', token)).status).toBe(401);
    expect((await authorize(without)).status).toBe(401);
  });

  test('a client without a certificate cannot forge one in a header, in any spelling', async () => {
    const { alice } = gateway.users;
    const token = String((await authorize(createClient(alice))).json['access_token']);
    const client = createClient();
    const before = gateway.upstream.requests.length;
    for (const [name, value] of forwardedCertificateHeaders(alice.der))
      for (const spelling of [
        name,
        name.toUpperCase(),
        name.replaceAll('-', '_'),
        name.replaceAll('-', '.'),
      ]) {
        const headers = { [spelling]: value };
        const statuses = [
          (await authorize(client, headers)).status,
          (
            await client.request({
              path: '/files/a',
              headers: { ...headers, authorization: `Bearer ${token}` },
            })
          ).status,
        ];
        const isOther = name.toLowerCase() === forwardedHeader && /[_.]/.test(spelling);
        const expected = isCareless && isOther ? [400, 400] : [401, 401];
        expect([spelling, ...statuses]).toEqual([spelling, ...expected]);
      }
    expect(gateway.upstream.requests.length).toBe(before);
  });
});
