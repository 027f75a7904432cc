import { describe, expect, test } from 'vitest';
import { forwardedCertificateHeaders } from '../support/forwarded-certificate.ts';
import { type IssuedCertificate, issue } from '../support/pki.ts';
import { withSettings } from '../support/reconfigure.ts';
import { headerValues } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { ALICE, type SettingsChange } from '../support/test-gateway.ts';
import { useAttackGateway } from './attack-gateway.ts';
import type { Message } from './framing-cases.ts';

/** Rows I01–I16 through a complete gateway: only gatehouse sets the caller's identity. */
const attack = useAttackGateway();

const GET: Message = { line: 'GET /files/1 HTTP/1.1' };
const PUBLIC: Message = { line: 'GET /public/a HTTP/1.1', token: null };
const IDENTITY_NAMES = ['x-forwarded-user', 'x-forwarded-client-id', 'x-forwarded-scope'];

/** Fields whose name could be read as `name` by a server that folds separators. */
const valuesLike = (name: string): string[] =>
  (attack.upstream.requests[0]?.headers ?? [])
    .filter(([given]) => given.replace(/[^a-z0-9]/g, '') === name.replace(/[^a-z0-9]/g, ''))
    .map(([, value]) => value);

/** Sends a request and returns the status; `attack.upstream` then holds only this request. */
async function send(message: Message): Promise<number> {
  attack.upstream.reset();
  return (await attack.request(message)).status;
}

/** Expects that the upstream got the identity headers of gatehouse and no others. */
function expectGatewayHeaders(): void {
  expect(IDENTITY_NAMES.map(valuesLike)).toEqual([[ALICE], ['report-runner'], ['files:read']]);
  expect(valuesLike('x-gatehouse-identity')).toEqual([]);
  expect(attack.upstream.bytes()).not.toContain('root');
}

const withChange = <T>(change: SettingsChange, run: () => Promise<T>): Promise<T> =>
  withSettings(attack.gateway, change, run);

describe('identity headers', () => {
  test('I01 a spoofed identity header is replaced', async () => {
    expect(await send({ ...GET, headers: ['X-Gatehouse-Identity: root', 'X-Forwarded-User: root'] })).toBe(200);
    expectGatewayHeaders();
    await attack.expectHealthy();
  });

  test('I02 no other spelling of an identity header is forwarded, on public routes either', async () => {
    const spellings = [...IDENTITY_NAMES, 'x-gatehouse-identity'].flatMap((name) => [
      name,
      name.toUpperCase(),
      name.replaceAll('-', '_'),
      name.replace('-', '_'),
      name.replaceAll('-', '.'),
      name.replaceAll('-', '+'),
      name.replaceAll('-', '~'),
      name.replaceAll('-', '--'),
      name.replaceAll('-', ''),
      `${name.replace('-', '!')}'`,
    ]);
    const headers = spellings.map((name) => `${name}: root`);
    expect(await send({ ...GET, headers })).toBe(200);
    expectGatewayHeaders();
    for (const token of [null, attack.token]) {
      expect(await send({ ...PUBLIC, headers, token })).toBe(200);
      expect([...IDENTITY_NAMES, 'x-gatehouse-identity'].flatMap(valuesLike)).toEqual([]);
      expect(attack.upstream.bytes()).not.toContain('root');
    }
    await attack.expectHealthy();
  });

  test('I02 no other spelling of a name that gatehouse reserves is forwarded, whether it is set or not', () =>
    withChange(
      (settings) => ({
        ...settings,
        headers: { user: 'Remote-User' },
        upstreams: {
          ...settings.upstreams,
          signed: { url: attack.upstream.url, assertion: { header: 'Signed-Caller' } },
        },
      }),
      async () => {
        const names = [
          'Remote-User',
          'Signed-Caller',
          'X-Forwarded-For',
          'X-Forwarded-Host',
          'X-Original-URL',
          'X-HTTP-Method-Override',
          'X-SSL-Client-Cert',
          'X-Request-Id',
          'Forwarded',
          'Transfer-Encoding',
          'Content-Length',
          'Authorization',
        ];
        const headers = names.flatMap((name) =>
          ['+', '|', '_'].map((mark) => `${name.includes('-') ? name.replaceAll('-', mark) : name + mark}: root`),
        );
        for (const message of [GET, PUBLIC]) {
          expect(await send({ ...message, headers: [...headers, 'X-Kept: 1'] })).toBe(200);
          expect(attack.upstream.bytes()).not.toContain('root');
          expect(valuesLike('x-kept')).toEqual(['1']);
        }
        await attack.expectHealthy();
      },
    ));

  test('I03 an identity header sent three times is forwarded once, with the value set by gatehouse', async () => {
    expect(await send({ ...GET, headers: Array<string>(3).fill('X-Forwarded-User: root') })).toBe(200);
    expectGatewayHeaders();
    await attack.expectHealthy();
  });

  test('I04 Connection cannot remove the identity headers', async () => {
    const list = 'Connection: close, X-Gatehouse-Identity, X-Forwarded-User, Authorization, X-Forwarded-For, X-Mine';
    const headers = [list, 'X-Mine: root', 'X-Forwarded-For: 6.6.6.6', 'X-Kept: 1'];
    expect(await send({ ...GET, headers })).toBe(200);
    expectGatewayHeaders();
    expect(['x-forwarded-for', 'x-mine', 'x-kept'].map(valuesLike)).toEqual([['127.0.0.1'], [], ['1']]);
    await attack.expectHealthy();
  });

  test('I05 Connection cannot name host or framing', async () => {
    for (const name of ['transfer-encoding', 'content-length', 'Host', 'close, HOST'])
      await attack.expectRejected([400], attack.write({ ...GET, headers: [`Connection: ${name}`] }));
  });

  test('I15 headers named like JavaScript properties have no special meaning; too many or too long headers are refused', async () => {
    const headers = ['__proto__: x', 'constructor: y', 'toString: z', 'hasOwnProperty: w'];
    expect(await send({ ...GET, headers })).toBe(200);
    expectGatewayHeaders();
    expect([valuesLike('constructor'), valuesLike('__proto__')]).toEqual([['y'], []]);
    expect(await send({ ...GET, headers: [`${'n'.repeat(8_000)}: 1`] })).toBe(200);
    expectGatewayHeaders();
    const many = Array.from({ length: 2_001 }, (_, index) => `a${index}: 1`);
    await attack.expectRejected([431], attack.write({ ...GET, headers: many }));
    await attack.expectRejected([431], attack.write({ ...GET, headers: [`${'n'.repeat(17_000)}: 1`] }));
  });

  test('I16 a common name with a line break or a homograph is not accepted as an identity', async () => {
    const { gateway } = attack;
    for (const commonName of ['alice\r\nX-Evil: 1', 'alice\n', 'alic\u00e9', '\u0430lice', 'alice\0']) {
      const as = await issue(gateway.ca, { commonName });
      const reply = await gateway.post(
        '/Authorize/Certificate',
        { client_id: 'report-runner', scope: 'files:read' },
        { as },
      );
      expect([commonName, reply.status]).toEqual([commonName, 401]);
      expect(Object.values(reply.headers).join()).not.toMatch(/evil/i);
    }
    await attack.expectHealthy();
  });
});

describe('client addresses', () => {
  const forwardedHeaders = [
    'X-Forwarded-For: 6.6.6.6',
    'Forwarded: for=6.6.6.6;host=evil.test;proto=gopher',
    'X-Real-IP: 6.6.6.6',
    'X-Forwarded-Host: evil.test',
    'X-Forwarded-Proto: http',
    'X-Forwarded-Port: 666',
    'X-Request-Id: evil-request-id',
  ];
  const NAMES = [
    'x-forwarded-for',
    'x-forwarded-proto',
    'x-forwarded-host',
    'forwarded',
    'x-real-ip',
    'x-forwarded-port',
  ];
  const seen = (): string[][] => NAMES.map((name) => headerValues(attack.upstream.requests[0], name));
  /** The client address in the log line of a request, which is written after its response. */
  const loggedClient = async (path: string): Promise<unknown> =>
    (
      await until('the request is logged', () =>
        attack.gateway.log.find((line) => line.event === 'request' && line['path'] === path),
      )
    )['from'];
  const CONNECTION_VALUES = [['127.0.0.1'], ['https'], ['gate.test'], [], [], []];

  test('I06 forwarded headers of an untrusted client are replaced by the values of its connection', () =>
    withChange(
      (settings) => ({ ...settings, trustedProxies: ['10.0.0.0/8'] }),
      async () => {
        expect(await send({ ...GET, headers: forwardedHeaders })).toBe(200);
        expect(seen()).toEqual(CONNECTION_VALUES);
        expect(attack.upstream.bytes()).not.toMatch(/6\.6\.6\.6|evil|gopher|: 666\b/);
        await attack.expectHealthy();
      },
    ));

  test('I07 forwarded headers of a listed proxy are kept, its address is added, and the rightmost unlisted one is the client', () =>
    withChange(
      (settings) => ({ ...settings, trustedProxies: ['127.0.0.1', '10.0.0.0/8'] }),
      async () => {
        const headers = [
          'X-Forwarded-For: 6.6.6.6, 9.9.9.9',
          'X-Forwarded-For: 10.1.1.1',
          'X-Forwarded-Host: api.test',
          'X-Forwarded-Proto: http',
          'X-Forwarded-User: root',
        ];
        expect(await send({ line: 'GET /files/behind HTTP/1.1', headers })).toBe(200);
        expectGatewayHeaders();
        expect(seen()).toEqual([['6.6.6.6, 9.9.9.9, 10.1.1.1, 127.0.0.1'], ['http'], ['api.test'], [], [], []]);
        expect(await loggedClient('/files/behind')).toBe('9.9.9.9');
        await attack.expectHealthy();
      },
    ));

  test('I08 with no proxy listed forwarded headers are not trusted', async () => {
    expect(await send({ line: 'GET /files/direct HTTP/1.1', headers: forwardedHeaders })).toBe(200);
    expect(seen()).toEqual(CONNECTION_VALUES);
    expect(await loggedClient('/files/direct')).toBe('127.0.0.1');
    await attack.expectHealthy();
  });
});

describe('certificates in headers', () => {
  const certificateHeaders = (certificate: IssuedCertificate): readonly string[] =>
    forwardedCertificateHeaders(certificate.der).map(([name, value]) => `${name}: ${value}`);
  const authorize = async (headers: readonly string[]): Promise<number> => {
    const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
    attack.upstream.reset();
    const { status } = await attack.request({
      line: 'POST /authsvc/Authorize/Certificate HTTP/1.1',
      headers: ['Content-Type: application/json', `Content-Length: ${body.length}`, ...headers],
      body,
      token: null,
    });
    expect(attack.upstream.bytes()).toBe('');
    return status;
  };
  const trustCertificatesFrom =
    (...forwardedFrom: string[]): SettingsChange =>
    (settings) => ({
      ...settings,
      certificates: {
        ...settings.certificates,
        forwardedFrom,
        forwardedHeader: 'x-forwarded-client-cert',
      },
    });

  test('I09 a certificate in a header of an untrusted client is ignored, and not forwarded', async () => {
    const { alice } = attack.gateway.users;
    const more = [
      'X-ARR-ClientCert',
      'X-SSL-Client-Verify',
      'X-SSL-Client-S-DN',
      'X_SSL_Client_Cert',
      'Client-Cert-Chain',
    ];
    for (const header of certificateHeaders(alice)) expect([header, await authorize([header])]).toEqual([header, 401]);
    for (const name of more)
      expect([name, await authorize([`${name}: ${alice.der.toString('base64')}`])]).toEqual([name, 401]);
    expect(
      await send({
        ...PUBLIC,
        headers: [...certificateHeaders(alice), ...more.map((name) => `${name}: forged`)],
      }),
    ).toBe(200);
    expect(attack.upstream.bytes()).not.toMatch(/[-_]cert|forged|^(?:x.)?ssl|-----BEGIN/im);
    await attack.expectHealthy();
  });

  // Trust is configured as a list of addresses (`certificates.forwardedFrom`), empty by default.
  test('I10 a proxy that is trusted for addresses is not thereby trusted for certificates', () =>
    withChange(
      (settings) => trustCertificatesFrom('10.9.9.9')({ ...settings, trustedProxies: ['127.0.0.1'] }),
      async () => {
        for (const header of certificateHeaders(attack.gateway.users.alice))
          expect([header, await authorize([header])]).toEqual([header, 401]);
        // X-Forwarded-For does not change the address that is checked.
        expect(
          await authorize([...certificateHeaders(attack.gateway.users.alice).slice(0, 1), 'X-Forwarded-For: 10.9.9.9']),
        ).toBe(401);
        await attack.expectHealthy();
      },
    ));

  test('I11 a header of a listed front proxy with two elements or a wrong hash is ignored; a duplicate or another spelling is refused', () =>
    withChange(trustCertificatesFrom('127.0.0.1'), async () => {
      const { alice, bob } = attack.gateway.users;
      const envoy = (certificate: IssuedCertificate): string =>
        forwardedCertificateHeaders(certificate.der)[1]?.[1] ?? '';
      const name = 'X-Forwarded-Client-Cert';
      expect(await authorize([`${name}: ${envoy(alice)}`])).toBe(200);
      const hash = /Hash=([0-9a-f]+)/.exec(envoy(bob))?.[1] ?? '';
      for (const headers of [
        [`${name}: ${envoy(alice)},${envoy(bob)}`],
        [`${name}: ${envoy(alice).replace(/Hash=[0-9a-f]+/, `Hash=${hash}`)}`],
        [`${name}: ${envoy(alice).replace(/Hash=[0-9a-f]+;/, '')}`],
        [`${name}: Subject="\\",${envoy(alice)}`],
        [`${name}: Subject="a\\";${envoy(alice)}`],
        [`${name}: ${envoy(alice)};Cert="${encodeURIComponent(bob.pem)}"`],
        [`Client-Cert: :${alice.der.toString('base64')}:`],
      ])
        expect([headers, await authorize(headers)]).toEqual([headers, 401]);
      for (const headers of [
        [`${name}: ${envoy(alice)}`, `${name}: ${envoy(bob)}`],
        [`${name}: ${envoy(alice)}`, `X_Forwarded_Client_Cert: ${envoy(bob)}`],
        [`X.Forwarded.Client.Cert: ${envoy(alice)}`],
      ])
        expect([headers, await authorize(headers)]).toEqual([headers, 400]);
      await attack.expectHealthy();
    }));
});

describe('the token', () => {
  const withFields = (target: string, ...headers: readonly string[]): Promise<number> =>
    send({ line: `GET ${target} HTTP/1.1`, headers, token: null });

  test('I12 a request has at most one token, sent by one method; on public routes too', async () => {
    const { token } = attack;
    for (const path of ['/files/1', '/public/a', '/nowhere']) {
      expect(await withFields(path, `Authorization: Bearer ${token}`, `authorization: Bearer ${token}`)).toBe(400);
      expect(await withFields(path, `Authorization: Bearer ${token}, Bearer ${token}`)).toBe(400);
      expect(await withFields(`${path}?access_token=${token}`)).toBe(400);
      expect(await withFields(`${path}?a=1&access%5ftoken=${token}`, `Authorization: Bearer ${token}`)).toBe(400);
      expect(attack.upstream.bytes()).toBe('');
    }
    await attack.expectHealthy();
  });

  test('I12 the scheme is accepted in any case with one space; every other form is rejected', async () => {
    const { token } = attack;
    expect(await withFields('/files/1', `Authorization: bearer ${token}`)).toBe(200);
    expect(await withFields('/files/1', `Authorization: BEARER ${token}`)).toBe(200);
    for (const value of [`Bearer  ${token}`, 'Basic x', `Bearer\t${token}`, 'Bearer', token, `Token ${token}`])
      expect([value, await withFields('/files/1', `Authorization: ${value}`)]).toEqual([value, 401]);
    const body = `access_token=${token}`;
    const form = ['Content-Type: application/x-www-form-urlencoded', `Content-Length: ${body.length}`];
    expect(await send({ line: 'POST /files/1 HTTP/1.1', headers: form, body, token: null })).toBe(401);
    expect(attack.upstream.bytes()).toBe('');
    await attack.expectHealthy();
  });

  test('I14 the token is not forwarded unless a route enables it; the session cookie never is', async () => {
    const cookie = 'Cookie: a=1; __Host-gatehouse=secret; b=2';
    expect(await send({ ...GET, headers: [cookie] })).toBe(200);
    expect([valuesLike('authorization'), valuesLike('cookie')]).toEqual([[], ['a=1; b=2']]);
    expect(await send({ ...PUBLIC, token: attack.token })).toBe(200);
    expect(valuesLike('authorization')).toEqual([]);
    expect(await send({ line: 'GET /keeps/1 HTTP/1.1', headers: [cookie] })).toBe(200);
    expect([valuesLike('authorization'), valuesLike('cookie')]).toEqual([[`Bearer ${attack.token}`], ['a=1; b=2']]);
    await attack.expectHealthy('__Host-gatehouse=secret');
  });
});

test('I13 an upstream cannot set headers or cookies of gatehouse', async () => {
  attack.upstream.reset();
  attack.upstream.respondWith((socket) =>
    socket.write(
      'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Gatehouse-Thing: 1\r\nX_Forwarded_User: root\r\nX-Forwarded-Scope: all\r\n' +
        'Set-Cookie: __Host-gatehouse=stolen; Path=/\r\nSet-Cookie: theirs=1\r\nX-Request-Id: theirs\r\n' +
        `Server-Timing: t;desc="${attack.token}"\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Kept: yes\r\n\r\nok`,
    ),
  );
  const { head, status } = await attack.request(GET);
  expect(status).toBe(200);
  expect(head).not.toMatch(/gatehouse|root|x.forwarded|server-timing|x-hop|request-id: theirs/i);
  expect(head).not.toContain(attack.token);
  expect(head.match(/set-cookie: [^\r]*/gi)).toEqual(['Set-Cookie: theirs=1']);
  expect(head).toMatch(/x-kept: yes/i);
  await attack.expectHealthy();
});
