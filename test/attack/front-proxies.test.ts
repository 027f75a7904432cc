import { once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect as connectNet } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { FLAG, FRAME, frame, frameClient, headerBlock, requestFields } from '../support/http2-frames.ts';
import { beginRequest, type Headers } from '../support/https-client.ts';
import type { IssuedCertificate } from '../support/pki.ts';
import { withBoundApp, withForwardedCertificates, withIntegration, withSettings } from '../support/reconfigure.ts';
import { until } from '../support/serve-process.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const clientCert = (certificate: IssuedCertificate) => ({
  'client-cert': `:${certificate.der.toString('base64')}:`,
});
const authorize = (headers: Record<string, string>) =>
  gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }, { headers });

test('a certificate-bound token works with the certificate that the front proxy forwards, and with no other', () =>
  withSettings(
    gateway,
    (settings) => withForwardedCertificates()(withIntegration('report-runner', { bindToCertificate: true })(settings)),
    async () => {
      const { alice, bob } = gateway.users;
      const token = String((await authorize(clientCert(alice))).json['access_token']);
      expect((await gateway.api('/files/a', token, { headers: clientCert(alice) })).status).toBe(200);
      expect((await gateway.api('/files/a', token, { headers: clientCert(bob) })).status).toBe(401);
      expect((await gateway.api('/files/a', token)).status).toBe(401);
      // The front proxy's own certificate does not identify its client.
      expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(401);
    },
  ));

test('with forwardedHeader set, a forwarded certificate in any other header is ignored', () =>
  withSettings(gateway, withForwardedCertificates('ssl-client-cert'), async () => {
    const { alice } = gateway.users;
    expect((await authorize(clientCert(alice))).status).toBe(401);
    expect((await authorize({ 'ssl-client-cert': encodeURIComponent(alice.pem) })).status).toBe(200);
  }));

test('a proxy removed from trustedProxies by a reload can no longer name the client address', async () => {
  const clientAddress = async (path: string): Promise<unknown> => {
    await gateway.api(path, undefined, { headers: { 'x-forwarded-for': '203.0.113.9' } });
    const line = await until('the request is logged', () =>
      gateway.log.find((entry) => entry.event === 'request' && entry['path'] === path),
    );
    return line['from'];
  };
  await withSettings(
    gateway,
    (settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }),
    async () => expect(await clientAddress('/listed')).toBe('203.0.113.9'),
  );
  expect(await clientAddress('/removed')).toBe('127.0.0.1');
});

describe('a front proxy that overwrites the certificate header but forwards other spellings of it', () => {
  const withFrontProxy: SettingsChange = (settings) =>
    withForwardedCertificates()(withBoundApp({ ...settings, trustedProxies: ['127.0.0.1'] }));
  const value = (certificate: IssuedCertificate): string => `:${certificate.der.toString('base64')}:`;
  const getBoundToken = async (): Promise<string> => {
    const body = { client_id: 'bound-app', scope: 'files:read' };
    const { json } = await gateway.post('/Authorize/Certificate', body, {
      headers: clientCert(gateway.users.alice),
    });
    return String(json['access_token']);
  };
  const form = { 'content-type': 'application/x-www-form-urlencoded' };
  const CERTIFICATE_BODY = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
  /** Method, path, further headers, body, and the status for an ambiguous certificate. */
  const requests = (token: string): readonly (readonly [string, string, Record<string, string>, string, number])[] => [
    ['POST', '/authsvc/Authorize/Certificate', { 'content-type': 'application/json' }, CERTIFICATE_BODY, 400],
    ['POST', '/authsvc/oauth2/token', form, 'grant_type=client_credentials&client_id=report-runner', 400],
    ['GET', '/authsvc/Authorize/Verify', { authorization: `Bearer ${token}` }, '', 400],
    ['GET', '/authsvc/device', {}, '', 400],
    ['GET', '/files/a', { authorization: `Bearer ${token}` }, '', 400],
    ['GET', '/health', {}, '', 400],
    // Gateways do not expect 400 from a forward-auth endpoint (docs/forward-auth.md).
    [
      'GET',
      '/authsvc/check',
      { authorization: `Bearer ${token}`, 'x-original-method': 'GET', 'x-original-uri': '/files/a' },
      '',
      403,
    ],
  ];
  const spellings = (certificate: IssuedCertificate): readonly Headers[] => [
    { Client_Cert: value(certificate) },
    { 'Client.Cert': value(certificate) },
    { 'client~cert': value(certificate) },
    { Client_Cert: value(certificate), 'client-cert': '' },
    { Client_Cert: value(certificate), 'Client-Cert': value(certificate) },
    { 'Client-Cert': [value(certificate), value(certificate)] },
    { 'Client-Cert': [value(gateway.users.bob), value(certificate)] },
  ];

  test('HTTP/1.1: the request is refused, and not forwarded', () =>
    withSettings(gateway, withFrontProxy, async () => {
      const token = await getBoundToken();
      const before = gateway.upstream.requests.length;
      for (const [method, path, headers, body, status] of requests(token))
        for (const spelled of spellings(gateway.users.alice)) {
          const reply = await gateway.request({ method, path, headers: { ...headers, ...spelled }, body });
          expect([path, spelled, reply.status]).toEqual([path, spelled, status]);
        }
      expect(gateway.upstream.requests.length).toBe(before);
      for (const [method, path, headers, body] of requests(token)) {
        const given = { ...headers, ...clientCert(gateway.users.alice) };
        expect([path, (await gateway.request({ method, path, headers: given, body })).status]).toEqual([path, 200]);
      }
    }));

  test('HTTP/2: the request is refused, and not forwarded', () =>
    withSettings(gateway, withFrontProxy, async () => {
      const token = await getBoundToken();
      const session = connectHttp2(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
      onTestFinished(() => session.destroy());
      const send = (
        method: string,
        path: string,
        headers: Record<string, string | string[]>,
        body: string,
      ): Promise<number> =>
        new Promise((resolve, reject) => {
          const stream = session.request({ ':method': method, ':path': path, ...headers });
          stream.on('response', (response) => resolve(Number(response[':status']))).on('error', reject);
          stream.resume();
          if (body !== '') stream.end(body);
        });
      const before = gateway.upstream.requests.length;
      for (const [method, path, headers, body, status] of requests(token))
        for (const spelled of spellings(gateway.users.alice)) {
          const given = { ...headers, ...(spelled as Record<string, string>) };
          expect([path, spelled, await send(method, path, given, body)]).toEqual([path, spelled, status]);
        }
      expect(gateway.upstream.requests.length).toBe(before);
      for (const [method, path, headers, body] of requests(token)) {
        const given = { ...headers, ...clientCert(gateway.users.alice) };
        expect([path, await send(method, path, given, body)]).toEqual([path, 200]);
      }
    }));

  test('HTTP/2: a certificate in a joined value, a pseudo-header, another format or trailers is not trusted', () =>
    withSettings(gateway, withFrontProxy, async () => {
      const token = await getBoundToken();
      const [alice, bob] = [value(gateway.users.alice), value(gateway.users.bob)];
      const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
      onTestFinished(() => client.destroy());
      const bearer = ['authorization', `Bearer ${token}`] as const;
      const outcome = async (stream: number) => {
        await client.until(() => client.outcome(stream) !== undefined || client.isOver());
        return client.outcome(stream);
      };
      const send = (...fields: readonly (readonly [string, string])[]) =>
        outcome(client.request([...requestFields('/files/a'), bearer, ...fields]));
      expect(await send(['client-cert', alice])).toEqual({ status: 200 });
      expect(await send(['client-cert', `${alice}, ${bob}`])).toEqual({ status: 401 });
      expect(await send(['client-cert', `${bob}, ${alice}`])).toEqual({ status: 401 });
      expect(await send(['x-ssl-client-cert', encodeURIComponent(gateway.users.alice.pem)])).toEqual({
        status: 401,
      });
      expect(await send(['client-cert', alice], ['client-cert', bob])).toEqual({ status: 400 });
      const pseudo = client.request([[':client-cert', alice], ...requestFields('/files/a'), bearer]);
      expect((await outcome(pseudo))?.status).not.toBe(200);
      // The certificate is in the trailers, after the body.
      const trailing = client.request([...requestFields('/files/a'), bearer], { end: false });
      const trailers = headerBlock([['client-cert', alice]]);
      client.send(
        frame(FRAME.data, 0, trailing, Buffer.from('a')),
        frame(FRAME.headers, FLAG.endStream | FLAG.endHeaders, trailing, trailers),
      );
      expect((await outcome(trailing))?.status).not.toBe(200);
      expect(await send()).toEqual({ status: 401 });
    }));
});

test('a certificate in the trailers of a request is not trusted, over HTTP/1.1 and HTTP/2', () =>
  withSettings(gateway, withForwardedCertificates(), async () => {
    const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
    const { sent, reply } = beginRequest({
      port: gateway.port,
      path: '/authsvc/Authorize/Certificate',
      method: 'POST',
      ca: gateway.ca.pem,
      headers: { 'content-type': 'application/json', trailer: 'client-cert' },
    });
    sent.write(body);
    sent.addTrailers(clientCert(gateway.users.alice));
    sent.end();
    expect((await reply).status).toBe(401);

    const session = connectHttp2(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
    onTestFinished(() => session.destroy());
    const stream = session.request(
      {
        ':method': 'POST',
        ':path': '/authsvc/Authorize/Certificate',
        'content-type': 'application/json',
        'content-length': body.length,
      },
      { waitForTrailers: true },
    );
    stream.on('wantTrailers', () => stream.sendTrailers(clientCert(gateway.users.alice)));
    stream.resume();
    stream.end(body);
    const [head] = (await once(stream, 'response')) as [Record<string, unknown>];
    expect(head[':status']).toBe(401);
  }));

describe('the PROXY protocol before a front proxy that is trusted for certificates', () => {
  const V2 = Buffer.from('0d0a0d0a000d0a515549540a', 'hex');
  const local = Buffer.concat([V2, Buffer.from([0x20, 0, 0, 0])]);
  const mapped = Buffer.concat([
    V2,
    Buffer.from([0x21, 0x21, 0, 36]),
    Buffer.from(`${'00'.repeat(10)}ffffc0000201${'00'.repeat(20)}`, 'hex'),
  ]);

  test('an IPv4-mapped source is the listed IPv4 address; UNKNOWN and LOCAL never match a listed proxy', async () => {
    const other = await startGateway((settings) => ({
      ...settings,
      listen: { ...settings.listen, proxyProtocol: ['127.0.0.1'] },
      trustedProxies: ['127.0.0.1', '192.0.2.1'],
      certificates: {
        ...settings.certificates,
        forwardedFrom: ['127.0.0.1', '192.0.2.1'],
        forwardedHeader: 'client-cert',
      },
    }));
    onTestFinished(() => other.close());
    const authorizeBehind = async (header: Buffer | string): Promise<number> => {
      const raw = connectNet(other.port, '127.0.0.1');
      await once(raw, 'connect');
      raw.write(header);
      const socket = connectTls({ socket: raw, ca: other.ca.pem, servername: 'localhost' });
      onTestFinished(() => void socket.destroy());
      const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
      const fields = {
        Host: 'localhost:8443',
        Connection: 'close',
        'Content-Type': 'application/json',
        'Content-Length': body.length,
        'X-Forwarded-For': '203.0.113.9',
        ...clientCert(other.users.alice),
      };
      const head = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
      socket.write(`POST /authsvc/Authorize/Certificate HTTP/1.1\r\n${head.join('')}\r\n${body}`);
      let text = '';
      for await (const part of socket) text += String(part);
      return Number(text.slice(9, 12));
    };
    expect(await authorizeBehind(mapped)).toBe(200);
    expect(await authorizeBehind('PROXY TCP6 ::ffff:c000:0201 ::1 4096 443\r\n')).toBe(200);
    expect(await authorizeBehind('PROXY TCP6 0:0:0:0:0:FFFF:192.0.2.1 ::1 4096 443\r\n')).toBe(200);
    expect(await authorizeBehind('PROXY TCP4 192.0.2.1 10.0.0.1 4096 443\r\n')).toBe(200);
    // Only the load balancer's own address is listed; the source behind it is unknown.
    expect(await authorizeBehind('PROXY UNKNOWN\r\n')).toBe(401);
    expect(await authorizeBehind(local)).toBe(401);
    expect(await authorizeBehind('PROXY TCP4 192.0.2.2 10.0.0.1 4096 443\r\n')).toBe(401);
    const from = other.log.filter(({ event }) => event === 'request').map((line) => line['from']);
    expect(from).toEqual([...Array.from({ length: 4 }, () => '203.0.113.9'), '127.0.0.1', '127.0.0.1', '192.0.2.2']);
  });
});
