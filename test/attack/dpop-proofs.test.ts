import { hash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { type ClientHttp2Session, connect } from 'node:http2';
import { join } from 'node:path';
import { SignJWT, UnsecuredJWT } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createDpopKey, type DpopKey, type ProofInput, signProof } from '../support/dpop-client.ts';
import { useExtAuthzClient } from '../support/ext-authz-client.ts';
import { createForeignKey, formatKeySet, signForeign } from '../support/foreign-issuer.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { withIntegration, withSettings, withTokens } from '../support/reconfigure.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { chooseVariants } from '../support/variants.ts';

/** DPoP (RFC 9449 §7): stolen tokens, stolen proofs, and proofs that are not quite right. */
const ORIGIN = 'https://localhost:8443';
const URL_OF_FILE = `${ORIGIN}/files/1`;

freezeClock();
let gateway: TestGateway;
let key: DpopKey;
let token: string;
let bearer: string;
const corp = await createForeignKey();
beforeAll(async () => {
  gateway = await startGateway(
    (settings) => ({
      ...settings,
      dpop: { enabled: true },
      trustedProxies: ['127.0.0.1'],
      hosts: { allowed: ['api.example.test'] },
      trustedIssuers: {
        corp: {
          issuer: 'https://corp.example.test',
          audience: 'gatehouse',
          jwksFile: 'corp.json',
          claims: { scope: ['scope'] },
        },
      },
      routes: [
        { path: '/foreign/**', requires: 'any-token', issuers: ['own', 'corp'] },
        { path: '/raw/**', requires: 'any-token', forwardAuthorization: true },
        ...(settings.routes ?? []),
      ],
    }),
    (folder) => writeFileSync(join(folder, 'corp.json'), formatKeySet(corp)),
  );
  key = await createDpopKey();
  token = await obtainToken(key);
  bearer = (await gateway.grant({ scope: 'files:read' })).access_token;
});
afterAll(async () => {
  session?.destroy();
  await gateway.close();
});
beforeEach(() => {
  gateway.upstream.requests.length = 0;
});

/** With a client certificate as its credential, and bound to a key. */
async function obtainToken(by: DpopKey, fields: Readonly<Record<string, string>> = {}): Promise<string> {
  const dpop = await signProof(by, {
    method: 'POST',
    url: `${ORIGIN}/authsvc/oauth2/token`,
    now: gateway.clock.now(),
  });
  const reply = await createOAuthClient(gateway).clientCredentials(
    { scope: 'files:read reports:write', ...fields },
    { as: gateway.users.alice, headers: { dpop } },
  );
  expect(reply.json, reply.text).toMatchObject({ token_type: 'DPoP' });
  return String(reply.json['access_token']);
}

interface Sent {
  readonly method?: string;
  readonly path?: string;
  readonly host?: string;
  readonly authorization: string;
  readonly dpop?: string | string[] | undefined;
}
interface Received {
  readonly status: number;
  readonly challenge: string;
  readonly nonce: string | undefined;
}
type Send = (sent: Sent) => Promise<Received>;

const toReceived = (status: number, headers: Readonly<Record<string, unknown>>): Received => ({
  status,
  challenge: (headers['www-authenticate'] ?? '') as string,
  nonce: headers['dpop-nonce'] as string | undefined,
});

const sendOverHttp1: Send = async ({ method = 'GET', path = '/files/1', host, authorization, dpop }) => {
  const reply = await gateway.request({
    path,
    method,
    headers: { authorization, ...(dpop !== undefined && { dpop }), ...(host !== undefined && { host }) },
  });
  return toReceived(reply.status, reply.headers);
};

let session: ClientHttp2Session | undefined;
const sendOverHttp2: Send = ({ method = 'GET', path = '/files/1', host, authorization, dpop }) => {
  session ??= connect(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
  const stream = session.request({
    ':method': method,
    ':path': path,
    ...(host !== undefined && { ':authority': host }),
    authorization,
    ...(dpop !== undefined && { dpop }),
  });
  return new Promise((resolve, reject) => {
    stream.once('error', reject).once('response', (head) => resolve(toReceived(Number(head[':status']), head)));
    stream.resume().end();
  });
};

const sendByForwardAuth: Send = async ({
  method = 'GET',
  path = '/files/1',
  host = 'localhost:8443',
  authorization,
  dpop,
}) => {
  const reply = await gateway.request({
    path: '/authsvc/check',
    headers: {
      authorization,
      ...(dpop !== undefined && { dpop }),
      'x-forwarded-method': method,
      'x-forwarded-uri': path,
      'x-forwarded-host': host,
      'x-forwarded-proto': 'https',
    },
  });
  return toReceived(reply.status, reply.headers);
};

const prove = (input: Partial<ProofInput> = {}, by = key): Promise<string> =>
  signProof(by, { url: URL_OF_FILE, token, now: gateway.clock.now(), ...input });

const INVALID_PROOF = {
  status: 401,
  challenge: expect.stringContaining('DPoP realm="gatehouse", error="invalid_dpop_proof"'),
};
const INVALID_TOKEN = { status: 401, challenge: expect.stringContaining('error="invalid_token"') };

const extAuthz = useExtAuthzClient(() => gateway);
const sendByExtAuthz: Send = async ({
  method = 'GET',
  path = '/files/1',
  host = 'localhost:8443',
  authorization,
  dpop,
}) => {
  const headers = { authorization, ...(dpop !== undefined && { dpop }) };
  const reply = await extAuthz.check({ method, path, host, headers, raw: true });
  return toReceived(reply.status, reply.headers);
};

const SEND = {
  'HTTP/1.1': sendOverHttp1,
  'HTTP/2': sendOverHttp2,
  'forward-auth': sendByForwardAuth,
  ext_authz: sendByExtAuthz,
};
const SENDERS = chooseVariants<keyof typeof SEND>(['HTTP/1.1', 'HTTP/2', 'forward-auth', 'ext_authz'], ['HTTP/1.1']);

describe.each(SENDERS)('over %s', (sender) => {
  const send = SEND[sender];
  const sendProof = (dpop: string | string[] | undefined, more: Partial<Sent> = {}): Promise<Received> =>
    send({ authorization: `DPoP ${token}`, dpop, ...more });

  test('a bound token with a proof is accepted, with any letter case of the scheme', async () => {
    expect(await sendProof(await prove())).toMatchObject({ status: 200 });
    expect(await sendProof(await prove(), { authorization: `dpop ${token}` })).toMatchObject({ status: 200 });
  });

  test('a stolen token without a proof is refused under both schemes', async () => {
    expect(await send({ authorization: `Bearer ${token}` })).toMatchObject({
      ...INVALID_TOKEN,
      challenge: expect.stringMatching(/^DPoP realm="gatehouse", error="invalid_token".*algs="ES256 /),
    });
    expect(await sendProof(undefined)).toMatchObject(INVALID_PROOF);
    expect(gateway.upstream.requests).toEqual([]);
  });

  test('a bound token with the Bearer scheme is refused even with a valid proof', async () => {
    expect(await sendProof(await prove(), { authorization: `Bearer ${token}` })).toMatchObject(INVALID_TOKEN);
  });

  test('a token that is not bound is refused with the DPoP scheme', async () => {
    const dpop = await prove({ token: bearer });
    expect(await sendProof(dpop, { authorization: `DPoP ${bearer}` })).toMatchObject(INVALID_TOKEN);
    expect(await send({ authorization: `Bearer ${bearer}` })).toMatchObject({ status: 200 });
  });

  test('a proof is accepted once', async () => {
    const dpop = await prove();
    expect(await sendProof(dpop)).toMatchObject({ status: 200 });
    expect(await sendProof(dpop)).toMatchObject(INVALID_PROOF);
  });

  test('of many concurrent uses of a proof, one succeeds', async () => {
    const dpop = await prove();
    const replies = await Promise.all(Array.from({ length: 10 }, () => sendProof(dpop)));
    expect(replies.map(({ status }) => status).filter((status) => status === 200)).toHaveLength(1);
  });

  test.each<[string, () => Partial<ProofInput>]>([
    ['for another method', () => ({ method: 'POST' })],
    ['for another letter case of the method', () => ({ method: 'get' })],
    ['for another path', () => ({ url: `${ORIGIN}/files/2` })],
    ['for a longer path', () => ({ url: `${ORIGIN}/files/1/` })],
    ['for another host', () => ({ url: 'https://evil.example.test/files/1' })],
    ['for another listed host', () => ({ url: 'https://api.example.test:8443/files/1' })],
    ['for another port', () => ({ url: 'https://localhost/files/1' })],
    ['for another scheme', () => ({ url: 'http://localhost:8443/files/1' })],
    ['with user information in htu', () => ({ url: 'https://localhost:8443@evil.example.test/files/1' })],
    ['with a relative htu', () => ({ url: '/files/1' })],
    ['with a dot segment in htu', () => ({ url: `${ORIGIN}/files/x/../1` })],
    ['with a backslash in htu', () => ({ url: `${ORIGIN}\\files\\1` })],
    ['without htu', () => ({ claims: { htu: undefined } })],
    ['without htm', () => ({ claims: { htm: undefined } })],
    ['that is too old', () => ({ now: gateway.clock.now() - 62 })],
    ['from the future', () => ({ now: gateway.clock.now() + 7 })],
    ['without iat', () => ({ claims: { iat: undefined } })],
    ['with iat as text', () => ({ claims: { iat: String(Math.floor(gateway.clock.now())) } })],
    ['without jti', () => ({ claims: { jti: undefined } })],
    ['with an empty jti', () => ({ claims: { jti: '' } })],
    ['with a long jti', () => ({ claims: { jti: 'j'.repeat(257) } })],
    ['with the hash of another token', () => ({ token: bearer })],
    ['without ath', () => ({ token: undefined })],
    ['with ath in hexadecimal', () => ({ claims: { ath: hash('sha256', token, 'hex') } })],
    ['of another type', () => ({ header: { typ: 'JWT' } })],
    ['without a type', () => ({ header: { typ: undefined } })],
    ['with a private key in its header', () => ({ header: { jwk: key.privateJwk } })],
    ['without a key', () => ({ header: { jwk: undefined } })],
    ['with a key id instead of a key', () => ({ header: { jwk: undefined, kid: 'k1' } })],
    ['with a key for another algorithm', () => ({ header: { jwk: { ...key.jwk, alg: 'ES384' } } })],
    ['that is too long', () => ({ claims: { padding: 'p'.repeat(8_192) } })],
  ])('a proof %s is refused', async (_name, input) => {
    expect(await sendProof(await prove(input()))).toMatchObject(INVALID_PROOF);
    expect(gateway.upstream.requests).toEqual([]);
    expect(await sendProof(await prove())).toMatchObject({ status: 200 });
  });

  test('a proof with another key is refused, although it names the key of the token', async () => {
    const other = await createDpopKey();
    expect(await sendProof(await prove({}, other))).toMatchObject(INVALID_PROOF);
    expect(await sendProof(await prove({ header: { jwk: key.jwk } }, other))).toMatchObject(INVALID_PROOF);
  });

  test('a proof whose signature is altered is refused, also after a valid one with the same header', async () => {
    const dpop = await prove();
    expect(await sendProof(await prove())).toMatchObject({ status: 200 });
    const [header, , signature] = dpop.split('.');
    const [, payload] = (await prove()).split('.');
    expect(await sendProof(`${header}.${payload}.${signature}`)).toMatchObject(INVALID_PROOF);
  });

  test('a proof without a signature, or with a symmetric one, is refused', async () => {
    const claims = {
      jti: 'j',
      htm: 'GET',
      htu: URL_OF_FILE,
      iat: Math.floor(gateway.clock.now()),
      ath: hash('sha256', token, 'base64url'),
    };
    const none = new UnsecuredJWT(claims).encode().split('.');
    const header = Buffer.from(JSON.stringify({ typ: 'dpop+jwt', alg: 'none', jwk: key.jwk })).toString('base64url');
    expect(await sendProof(`${header}.${none[1]}.`)).toMatchObject(INVALID_PROOF);
    const secret = Buffer.alloc(32, 7);
    const jwk = { kty: 'oct', k: secret.toString('base64url') };
    for (const alg of ['HS256', 'ES256']) {
      const signed = await new SignJWT(claims).setProtectedHeader({ typ: 'dpop+jwt', alg: 'HS256', jwk }).sign(secret);
      const [, payload, signature] = signed.split('.');
      const changed = Buffer.from(JSON.stringify({ typ: 'dpop+jwt', alg, jwk })).toString('base64url');
      expect(await sendProof(`${changed}.${payload}.${signature}`), alg).toMatchObject(INVALID_PROOF);
    }
  });

  test('two proofs are refused, as two fields and in one', async () => {
    const [first, second] = [await prove(), await prove()];
    expect(await sendProof([first, second])).toMatchObject(INVALID_PROOF);
    expect(await sendProof(`${first}, ${second}`)).toMatchObject(INVALID_PROOF);
    expect(await sendProof(first)).toMatchObject({ status: 200 });
  });

  test('two credentials are refused', async () => {
    const { status } = await sendProof(await prove(), { authorization: `DPoP ${token}, Bearer ${bearer}` });
    expect([400, 403]).toContain(status);
    expect(gateway.upstream.requests).toEqual([]);
  });

  test('htu may have a query, another letter case of the host and unnecessary percent-encoding', async () => {
    const path = '/files/1?page=2';
    for (const url of [`${URL_OF_FILE}?page=3#top`, 'HTTPS://LOCALHOST:8443/files/1', `${ORIGIN}/%66iles/1`])
      expect(await sendProof(await prove({ url }), { path }), url).toMatchObject({ status: 200 });
  });

  test('on a listed host, the proof is for that host', async () => {
    const host = 'api.example.test:8443';
    const url = `https://${host}/files/1`;
    expect(await sendProof(await prove({ url }), { host })).toMatchObject({ status: 200 });
    expect(await sendProof(await prove(), { host })).toMatchObject(INVALID_PROOF);
  });

  test('a host that is not listed does not let a proof for it in', async () => {
    const host = 'evil.example.test';
    const url = `https://${host}/files/1`;
    expect(await sendProof(await prove({ url }), { host })).toMatchObject(INVALID_PROOF);
    expect(await sendProof(await prove({ url: `https://${host}:8443/files/1` }), { host })).toMatchObject(
      INVALID_PROOF,
    );
  });

  test('proofs of the last minute are accepted, and a few seconds ahead', async () => {
    for (const seconds of [-58, 4])
      expect(await sendProof(await prove({ now: gateway.clock.now() + seconds }))).toMatchObject({
        status: 200,
      });
  });

  test.each(['ES384', 'EdDSA', 'PS256', 'RS256'])(
    'a proof with %s is accepted, unless it is not configured',
    async (alg) => {
      const other = await createDpopKey(alg);
      const bound = await obtainToken(other);
      const sendBound = async (): Promise<Received> =>
        send({ authorization: `DPoP ${bound}`, dpop: await prove({ token: bound }, other) });
      expect(await sendBound()).toMatchObject({ status: 200 });
    },
  );

  test('opaque tokens are bound as well', () =>
    withSettings(gateway, withTokens({ format: 'opaque' }), async () => {
      const opaque = await obtainToken(key);
      expect(opaque).toHaveLength(64);
      expect(await send({ authorization: `Bearer ${opaque}` })).toMatchObject(INVALID_TOKEN);
      const dpop = await prove({ token: opaque });
      expect(await send({ authorization: `DPoP ${opaque}`, dpop })).toMatchObject({ status: 200 });
    }));

  test('tokens of a trusted issuer that binds them need a proof', async () => {
    const path = '/foreign/1';
    const now = Math.floor(gateway.clock.now());
    const sign = (cnf?: object): Promise<string> =>
      signForeign(corp, {
        iss: 'https://corp.example.test',
        aud: 'gatehouse',
        sub: 'dave',
        iat: now,
        exp: now + 600,
        jti: crypto.randomUUID(),
        ...(cnf && { cnf }),
      });
    const foreign = await sign({ jkt: key.thumbprint });
    const url = `${ORIGIN}${path}`;
    expect(await send({ path, authorization: `Bearer ${foreign}` })).toMatchObject(INVALID_TOKEN);
    const sendBound = async (bound: string): Promise<Received> =>
      send({ path, authorization: `DPoP ${bound}`, dpop: await prove({ url, token: bound }) });
    expect(await sendBound(foreign)).toMatchObject({ status: 200 });
    expect(await sendBound(await sign({ jkt: 'x'.repeat(43) }))).toMatchObject(INVALID_PROOF);
    expect(await sendBound(await sign())).toMatchObject(INVALID_TOKEN);
    // The certificate is missing.
    expect(await sendBound(await sign({ jkt: key.thumbprint, 'x5t#S256': 'y'.repeat(43) }))).toMatchObject(
      INVALID_TOKEN,
    );
    // Keycloak adds a member of its own (RFC 7800 §3.1: members that are not understood are ignored).
    const ofKeycloak = await sign({ jkt: key.thumbprint, 'kc-jkt-type': 'dpop' });
    expect(await sendBound(ofKeycloak)).toMatchObject({ status: 200 });
    expect(await send({ path, authorization: `Bearer ${ofKeycloak}` })).toMatchObject(INVALID_TOKEN);
    for (const cnf of [{ jkt: 7 }, { 'kc-jkt-type': 'dpop' }, { kid: 'k' }, {}]) {
      const unchecked = await sign(cnf);
      expect(await sendBound(unchecked), JSON.stringify(cnf)).toMatchObject(INVALID_TOKEN);
      expect(await send({ path, authorization: `Bearer ${unchecked}` })).toMatchObject(INVALID_TOKEN);
      expect(gateway.log.findLast(({ event }) => event === 'request')?.['reason']).toBe(
        'token_not_authentic: binding_not_supported (issuer corp)',
      );
    }
  });

  test('with dpop.nonce required, a proof needs a current nonce of gatehouse', () =>
    withSettings(gateway, withNonce, async () => {
      const refused = await sendProof(await prove());
      expect(refused).toMatchObject({
        status: 401,
        challenge: expect.stringContaining('error="use_dpop_nonce"'),
      });
      const { nonce } = refused;
      expect(nonce).toMatch(/^[A-Za-z0-9_-]{22}$/);
      const dpop = await prove({ claims: { nonce } });
      expect(await sendProof(dpop)).toMatchObject({ status: 200 });
      expect(await sendProof(dpop)).toMatchObject(INVALID_PROOF);
      for (const forged of ['', 'x'.repeat(22), `${nonce}x`, 7])
        expect((await sendProof(await prove({ claims: { nonce: forged } }))).nonce, String(forged)).toBe(nonce);
    }));

  test('with DPoP off, bound tokens are refused under both schemes', () =>
    withSettings(
      gateway,
      (settings) => ({ ...settings, dpop: { enabled: false } }),
      async () => {
        expect(await sendProof(await prove())).toMatchObject({
          status: 401,
          challenge: expect.not.stringContaining('DPoP'),
        });
        expect(await send({ authorization: `Bearer ${token}` })).toMatchObject(INVALID_TOKEN);
      },
    ));

  test('a request without a token gets both challenges', async () => {
    const { status, challenge } = await send({ authorization: 'Basic eDp5' });
    expect(status).toBe(401);
    expect(challenge).toMatch(
      /^Bearer realm="gatehouse".*, DPoP realm="gatehouse", algs="ES256 ES384 EdDSA Ed25519 PS256 RS256"$/,
    );
  });
});

const withNonce: SettingsChange = (settings) => ({ ...settings, dpop: { enabled: true, nonce: 'required' } });

test('a nonce expires', () =>
  withSettings(gateway, withNonce, async () => {
    const send = async (nonce?: string): Promise<Received> =>
      sendOverHttp1({ authorization: `DPoP ${token}`, dpop: await prove({ claims: { nonce } }) });
    const { nonce } = await send();
    gateway.clock.advance(241);
    expect(await send(nonce)).toMatchObject({ status: 401, nonce: expect.not.stringMatching(`^${nonce}$`) });
  }));

test('a proof is not forwarded to the upstream, unless the token is', async () => {
  for (const [path, isForwarded] of [
    ['/files/1', false],
    ['/raw/1', true],
  ] as const) {
    gateway.upstream.requests.length = 0;
    const dpop = await prove({ url: `${ORIGIN}${path}` });
    expect(await sendOverHttp1({ path, authorization: `DPoP ${token}`, dpop })).toMatchObject({
      status: 200,
    });
    expect(gateway.upstream.requests[0]?.headers['dpop']).toBe(isForwarded ? dpop : undefined);
    expect(gateway.upstream.requests[0]?.headers['authorization']).toBe(isForwarded ? `DPoP ${token}` : undefined);
  }
});

test('a proof is not forwarded from public routes or under similar names', async () => {
  const dpop = await prove();
  await gateway.request({ path: '/health', headers: { dpop, d_pop: dpop, 'x-other': '1' } });
  expect(Object.keys(gateway.upstream.requests[0]?.headers ?? {})).not.toContain('dpop');
  expect(Object.values(gateway.upstream.requests[0]?.headers ?? {})).not.toContain(dpop);
});

test('behind a trusted proxy, the forwarded host is the host of the URL', async () => {
  const send = async (forwarded: string | string[], url: string): Promise<number> => {
    const reply = await gateway.request({
      path: '/files/1',
      headers: {
        authorization: `DPoP ${token}`,
        dpop: await prove({ url }),
        'x-forwarded-host': forwarded,
      },
    });
    return reply.status;
  };
  const url = 'https://api.example.test:8443/files/1';
  expect(await send('api.example.test', url)).toBe(200);
  expect(await send('evil.example.test', 'https://evil.example.test:8443/files/1')).toBe(401);
  expect(await send(['api.example.test', 'localhost'], url)).toBe(401);
  await withSettings(
    gateway,
    (settings) => ({ ...settings, trustedProxies: [] }),
    async () => expect(await send('api.example.test', url)).toBe(401),
  );
});

test('behind a trusted proxy, a proof with several forwarded hosts is refused, for API and token requests', async () => {
  const tokenPath = '/authsvc/oauth2/token';
  const send = async (forwarded: string | string[] | undefined): Promise<readonly number[]> => {
    const headers = { host: 'api.example.test', ...(forwarded && { 'x-forwarded-host': forwarded }) };
    const proof = { url: `${ORIGIN}/files/1` };
    const api = await gateway.request({
      path: '/files/1',
      headers: { ...headers, authorization: `DPoP ${token}`, dpop: await prove(proof) },
    });
    const dpop = await signProof(key, {
      method: 'POST',
      url: `${ORIGIN}${tokenPath}`,
      now: gateway.clock.now(),
    });
    const issued = await createOAuthClient(gateway).clientCredentials(
      { scope: 'files:read' },
      { as: gateway.users.alice, headers: { ...headers, dpop } },
    );
    return [api.status, issued.status];
  };
  // The proofs are for the public URL, and the requests for another host.
  expect(await send(undefined)).toEqual([401, 400]);
  expect(await send('api.example.test')).toEqual([401, 400]);
  expect(await send('localhost')).toEqual([200, 200]);
  for (const forwarded of ['x, api.example.test', 'localhost,localhost', ['x', 'api.example.test'], 'x,'])
    expect(await send(forwarded)).toEqual([401, 400]);
});

test('used proofs are remembered across a reload', async () => {
  const dpop = await prove();
  const sent = { authorization: `DPoP ${token}`, dpop };
  expect(await sendOverHttp1(sent)).toMatchObject({ status: 200 });
  await gateway.reload(withIntegration('other-app', { name: 'Renamed' }));
  expect(await sendOverHttp1(sent)).toMatchObject(INVALID_PROOF);
});

test('neither proofs nor tokens are logged', async () => {
  gateway.clearLog();
  const dpop = await prove();
  await sendOverHttp1({ authorization: `DPoP ${token}`, dpop });
  await sendOverHttp1({ authorization: `DPoP ${token}`, dpop });
  const text = gateway.logLines.join('\n');
  expect(text).toContain('proof_invalid: it was used before');
  for (const part of [...dpop.split('.'), ...token.split('.').slice(1)]) expect(text).not.toContain(part);
});
