import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { forwardedCertificateHeaders } from '../support/forwarded-certificate.ts';
import { type FrontProxy, type FrontProxyProgram, freePort, startFrontProxy } from '../support/front-proxy.ts';
import { createHttpsClient, type Headers, type HttpsClient } from '../support/https-client.ts';
import { createCa, type IssuedCertificate, issueServer } from '../support/pki.ts';
import { withBoundApp, withForwardedCertificates } from '../support/reconfigure.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

export interface CertificateProxy {
  /** The header in which the proxy forwards the certificate. */
  readonly forwardedHeader: Parameters<typeof withForwardedCertificates>[0];
  /** The certificate and key of the proxy are in the folder `front` of the gateway's. */
  readonly program: (port: number, gateway: TestGateway) => Omit<FrontProxyProgram, 'port'>;
  /** Other spellings of the header that the proxy forwards although a client sent them. Default: none. */
  readonly passedOn?: RegExp;
}

/** Tests a real proxy that terminates TLS and forwards client certificates, with the configuration of docs/forward-auth.md. */
export function testClientCertificates({ forwardedHeader, program, passedOn }: CertificateProxy): void {
  let gateway: TestGateway;
  let front: FrontProxy;
  let frontCa: IssuedCertificate;
  const clients: HttpsClient[] = [];
  beforeAll(async () => {
    gateway = await startGateway((settings) => withBoundApp(withForwardedCertificates(forwardedHeader)(settings)));
    // The server certificate has a CA of its own: OpenSSL adds the CAs that a client trusts to the chain of its
    // certificate, and Traefik forwards the chain.
    frontCa = await createCa({ name: 'CN=Front CA' });
    const server = await issueServer(frontCa);
    mkdirSync(join(gateway.folder, 'front'));
    writeFileSync(join(gateway.folder, 'front/server.pem'), server.pem);
    writeFileSync(join(gateway.folder, 'front/server-key.pem'), server.keyPem);
    const port = await freePort();
    front = await startFrontProxy({ port, ...program(port, gateway) });
    // Traefik listens before it has loaded its certificate and the route.
    const isReady = (): Promise<boolean> =>
      createClient()
        .request({ path: '/health' })
        .then(
          ({ status }) => status === 200,
          () => false,
        );
    await until('the proxy forwards requests', isReady);
  });
  afterAll(async () => {
    for (const client of clients) client.close();
    await front?.close();
    await gateway?.close();
  });
  const createClient = (as?: IssuedCertificate): HttpsClient => {
    const client = createHttpsClient({ port: front.port, ca: frontCa.pem, ...(as && { as }) });
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
      for (const spelling of [name, name.toUpperCase(), name.replaceAll('-', '_'), name.replaceAll('-', '.')]) {
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
        const isPassedOn = name.toLowerCase() === forwardedHeader && passedOn?.test(spelling) === true;
        const expected = isPassedOn ? [400, 400] : [401, 401];
        expect([spelling, ...statuses]).toEqual([spelling, ...expected]);
      }
    expect(gateway.upstream.requests.length).toBe(before);
  });
}
