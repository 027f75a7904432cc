import { createHmac, hash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  createDataPathClients,
  DATA_PATHS,
  type DataPathClients,
  type DataPathReply,
  type DataPathRequest,
} from '../support/data-paths.ts';
import { FORM } from '../support/device-client.ts';
import { createDpopKey, type DpopKey, type ProofInput, signProof } from '../support/dpop-client.ts';
import { createForeignKey, type ForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { parseJson } from '../support/https-client.ts';
import { createOAuthClient, exchangeFields, JWT_BEARER } from '../support/oauth-client.ts';
import { withSettings } from '../support/reconfigure.ts';
import type { SettingsChange } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { chooseVariants } from '../support/variants.ts';
import {
  type CertificateName,
  CLIENT_SECRET,
  FILES_API,
  type IdentityGateway,
  PARTNER,
  startIdentityGateway,
} from './identity-gateway.ts';

/**
 * Every refusal of tokens, proofs, clients, certificates and quotas, sent over HTTP/1.1 on the fast path, on the full path and
 * over HTTP/2: the responses and log lines are equal, and the upstream never receives the request.
 */
const ORIGIN = 'https://localhost:8443';
const TOKEN_PATH = '/authsvc/oauth2/token';
const ASSERTION_TYPE = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';
const LOGOUT_EVENT = 'http://schemas.openid.net/event/backchannel-logout';

type Claims = Readonly<Record<string, unknown>>;
type Fields = Readonly<Record<string, string>>;
type CreateRequest = () => DataPathRequest | Promise<DataPathRequest>;

interface Expected {
  readonly status: number;
  readonly error: string;
  /** Part of the reason in the log, where it is not obvious from the error. */
  readonly reason?: string;
}

freezeClock();
let setUp: IdentityGateway;
let clients: DataPathClients;
let attacker: ForeignKey;
let proofKey: DpopKey;
/** Tokens of gatehouse: for its own API, for `FILES_API`, bound to `proofKey`. */
let own: string;
let ownForFiles: string;
let bound: string;
let usedAssertion: string;
let usedSubjectToken: string;
beforeAll(async () => {
  setUp = await startIdentityGateway();
  const { gateway, corp } = setUp;
  clients = createDataPathClients(gateway);
  [attacker, proofKey] = await Promise.all([createForeignKey('ES256', 'k1'), createDpopKey()]);
  own = (await gateway.grant()).access_token;
  const oauth = createOAuthClient(gateway);
  const obtain = async (fields: Fields, more = {}): Promise<string> => {
    const { status, text, json } = await oauth.post('token', fields, more);
    expect(status, text).toBe(200);
    return String(json['access_token']);
  };
  ownForFiles = await obtain({ grant_type: 'client_credentials', ...BILLING });
  const dpop = await prove({ method: 'POST', url: ORIGIN + TOKEN_PATH, token: undefined });
  const certificateGrant = {
    grant_type: 'client_credentials',
    client_id: 'report-runner',
    scope: 'files:read',
  };
  bound = await obtain(certificateGrant, { as: gateway.users.alice, headers: { dpop } });
  usedAssertion = await signAssertion();
  await obtain({ grant_type: 'client_credentials', ...asserted(usedAssertion) });
  usedSubjectToken = await corp.sign({ sub: 'once' });
  await obtain({ grant_type: JWT_BEARER, client_id: 'jobs', assertion: usedSubjectToken });
  for (const revocation of [
    { issuer: 'corp', jti: 'revoked-jti' },
    { issuer: 'corp', subject: 'revoked-subject' },
    { client: 'corp/revoked-client' },
    { issuer: 'strict' },
  ])
    expect((await revoke(revocation)).status).toBe(200);
  for (const claims of [{ sub: 'logged-out' }, { sid: 'logged-out' }])
    expect((await oauth.post('backchannel_logout', { logout_token: await signLogout(claims) })).status).toBe(
      200,
    );
  for (const path of ['/limited/1', '/per-client/1', '/per-route/1', '/open/1'])
    expect((await gateway.api(path, own)).status).toBe(200);
});
afterAll(async () => {
  clients?.close();
  await setUp?.close();
});
beforeEach(() => {
  setUp.gateway.upstream.requests.length = 0;
});

const now = (): number => Math.floor(setUp.gateway.clock.now());

function revoke(revocation: object): Promise<Response> {
  const { adminPort, folder } = setUp.gateway;
  const token = readFileSync(join(folder, 'data/admin-token'), 'utf8').trim();
  return fetch(`http://127.0.0.1:${adminPort}/admin/v1/revoke`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(revocation),
  });
}

// Requests.

const call = (token: string, path = '/files/1', more: Partial<DataPathRequest> = {}): DataPathRequest => ({
  path,
  ...more,
  headers: { authorization: `Bearer ${token}`, ...more.headers },
});
const callCorp =
  (claims: Claims, path?: string): CreateRequest =>
  async () =>
    call(await setUp.corp.sign(claims), path);
const post = (path: string, fields: Fields, more: Partial<DataPathRequest> = {}): DataPathRequest => ({
  method: 'POST',
  path,
  body: new URLSearchParams(fields).toString(),
  ...more,
  headers: { 'content-type': FORM, ...more.headers },
});
const requestToken = (fields: Fields, more?: Partial<DataPathRequest>): DataPathRequest =>
  post(TOKEN_PATH, fields, more);
const exchange = (token: string, more: Fields = {}): DataPathRequest =>
  requestToken({ ...exchangeFields(token), client_id: 'jobs', ...more });
const requestByJwtBearer = (token: string, more: Fields = {}): DataPathRequest =>
  requestToken({ grant_type: JWT_BEARER, client_id: 'jobs', assertion: token, ...more });
const authenticate = (fields: Fields, headers: Fields = {}): DataPathRequest =>
  requestToken({ grant_type: 'client_credentials', ...fields }, { headers });
const BILLING = { client_id: 'billing', client_secret: CLIENT_SECRET };
const basic = (id: string, secret: string): Fields => ({
  authorization: `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}`,
});
const asserted = (assertion: string): Fields => ({
  client_assertion: assertion,
  client_assertion_type: ASSERTION_TYPE,
});
const signAssertion = (claims: Claims = {}, header: Claims = {}, key = setUp.clientKey): Promise<string> =>
  signForeign(
    key,
    {
      iss: 'signing',
      sub: 'signing',
      aud: ORIGIN,
      iat: now(),
      exp: now() + 60,
      jti: crypto.randomUUID(),
      ...claims,
    },
    header,
  );
const signLogout = (claims: Claims, header: Claims = { typ: 'logout+jwt' }): Promise<string> =>
  signForeign(
    setUp.corp.published[0] as ForeignKey,
    {
      iss: setUp.corp.url,
      aud: 'gatehouse-client',
      iat: now(),
      exp: now() + 120,
      jti: crypto.randomUUID(),
      events: { [LOGOUT_EVENT]: {} },
      ...claims,
    },
    header,
  );
const logOut = (logoutToken: string): DataPathRequest =>
  post('/authsvc/oauth2/backchannel_logout', { logout_token: logoutToken });
const prove = (input: Partial<ProofInput> = {}, key = proofKey): Promise<string> =>
  signProof(key, { url: `${ORIGIN}/files/1`, token: bound, now: now(), ...input });
const callWithProof = (dpop: string | string[] | undefined, token = bound): DataPathRequest => ({
  path: '/files/1',
  headers: { authorization: `DPoP ${token}`, ...(dpop !== undefined && { dpop }) },
});
/** With a token that is bound to this certificate, over a connection with `as`. */
const callAs = async (
  name: CertificateName,
  as: CertificateName | undefined = name,
): Promise<DataPathRequest> => {
  const { certificates, corp } = setUp;
  const cnf = { 'x5t#S256': hash('sha256', certificates[name].der, 'base64url') };
  return call(await corp.sign({ cnf }), '/files/1', { as: as && certificates[as] });
};
const grantAs = (name: CertificateName): DataPathRequest =>
  requestToken({ grant_type: 'client_credentials', client_id: 'machines' }, { as: setUp.certificates[name] });
const grantOfTokenApiAs = (name: CertificateName): DataPathRequest => ({
  method: 'POST',
  path: '/authsvc/Authorize/Certificate',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ client_id: 'machines', scope: 'files:read' }),
  as: setUp.certificates[name],
});

// Expectations.

/** Fields that each connection or response has its own values of. */
const OWN_FIELDS = new Set([
  'connection',
  'content-length',
  'date',
  'keep-alive',
  'transfer-encoding',
  'x-request-id',
]);
/** The time until keys are fetched again passes while the test runs. */
const VARYING_FIELDS = new Set(['retry-after']);

const summarize = ({ status, headers, text }: DataPathReply) => {
  const { request_id: _, ...body } = parseJson(text);
  const fields = Object.entries(headers).filter(([name]) => !OWN_FIELDS.has(name));
  return {
    status,
    body,
    fields: Object.fromEntries(
      fields.map(([name, value]) => [
        name,
        VARYING_FIELDS.has(name) ? /^[1-9]\d*$/.test(String(value)) : value,
      ]),
    ),
  };
};

const findLogLine = async ({ headers }: DataPathReply) => {
  const { decision, reason, status } = await until('the request is logged', () =>
    setUp.gateway.log.find(
      (line) => line.event === 'request' && line['request_id'] === headers['x-request-id'],
    ),
  );
  return { decision, reason, status };
};

/** The fast path serves frequent refusals itself. The others, and the token service, are served on the full path. */
const getFastPathService = ({ path, headers }: DataPathRequest, status: number): string => {
  // Each proof is accepted once, so a request with one must not be authorized twice.
  if (headers?.['dpop'] !== undefined) return 'framing';
  if (path.startsWith('/authsvc')) return 'service';
  return headers?.['authorization']?.toString().startsWith('DPoP') || status === 503 ? 'refused' : 'fast';
};

async function expectRefused(create: CreateRequest, { status, error, reason }: Expected): Promise<void> {
  const all = [];
  for (const path of DATA_PATHS) {
    const request = await create();
    const reply = await clients.send(path, request);
    const summary = summarize(reply);
    expect([path, reply.status, reply.text]).toEqual([path, status, expect.stringContaining(`"${error}"`)]);
    expect([path, reply.servedBy]).toEqual([
      path,
      {
        'HTTP/1.1, fast path': getFastPathService(request, status),
        'HTTP/1.1, full path': 'service',
        'HTTP/2, fast path': getFastPathService(request, status),
        'HTTP/2, full path': 'framing',
      }[path],
    ]);
    all.push({ ...summary, log: await findLogLine(reply) });
  }
  const [fast, ...others] = all;
  for (const other of others) expect(other).toEqual(fast);
  if (status === 401 && error !== 'invalid_client')
    expect(String(fast?.fields['www-authenticate'])).toContain(`error="${error}"`);
  if (status === 429 || status === 503) expect(fast?.fields['retry-after']).toBe(true);
  if (reason !== undefined) expect(fast?.log.reason).toContain(reason);
  expect(setUp.gateway.upstream.requests).toEqual([]);
}

/** What shows that a refusal has the reason that its case names. */
async function expectAccepted(create: CreateRequest): Promise<void> {
  for (const path of DATA_PATHS) {
    const reply = await clients.send(path, await create());
    expect([path, reply.status, reply.text]).toEqual([path, 200, expect.any(String)]);
  }
}

/** `npm test` sends some of the cases of each kind. */
const choose = <T>(cases: readonly T[]): readonly T[] => chooseVariants(cases, cases.slice(0, 3));

const INVALID_TOKEN = { status: 401, error: 'invalid_token' };
const NOT_AUTHENTIC = { ...INVALID_TOKEN, reason: 'token_not_authentic' };
const REVOKED = { ...INVALID_TOKEN, reason: 'token_revoked' };
const WRONG_AUDIENCE = { ...INVALID_TOKEN, reason: 'token_wrong_audience' };
const INSUFFICIENT_SCOPE = { status: 403, error: 'insufficient_scope' };
const INVALID_PROOF = { status: 401, error: 'invalid_dpop_proof' };
const UNAVAILABLE = { status: 503, error: 'temporarily_unavailable' };
const INVALID_CLIENT = { status: 401, error: 'invalid_client' };
const refusal = (error: string, status = 400): Expected => ({ status, error });

describe('tokens of trusted issuers', () => {
  test('are accepted without the defects below', async () => {
    await expectAccepted(callCorp({}));
    await expectAccepted(callCorp({}, '/cli/1'));
    await expectAccepted(() => call(own));
  });

  test.each(
    choose<[string, Claims, string?]>([
      ['of another issuer', { iss: 'https://other.example.test' }],
      ['of an issuer that the route does not list', {}, '/own/1'],
      ['on a path without a route', {}, '/none'],
      ['for another API', { aud: 'billing-api' }],
      ['without an audience', { aud: undefined }],
      ['that are expired', { exp: 1_000 }],
      ['without an expiry', { exp: undefined }],
      ['without a time of issue', { iat: undefined }],
      ['that are not valid yet', { nbf: 9_999_999_999 }],
      ['without a subject', { sub: undefined }],
      ['with a line break in the subject', { sub: 'a\r\nX-Admin: 1' }],
      ['bound in an unknown way', { cnf: { kid: 'x' } }],
    ]),
  )('%s', (_, claims, path) => expectRefused(callCorp(claims, path), NOT_AUTHENTIC));

  test.each(
    choose<[string, Claims, Expected]>([
      ['token id', { jti: 'revoked-jti' }, REVOKED],
      ['subject', { sub: 'revoked-subject' }, REVOKED],
      ['client', { azp: 'revoked-client' }, REVOKED],
      ['subject that logged out', { sub: 'logged-out' }, REVOKED],
      ['session that logged out', { sid: 'logged-out' }, REVOKED],
    ]),
  )('of a revoked %s', (_, claims, expected) => expectRefused(callCorp(claims), expected));

  test('of a revoked issuer', () =>
    expectRefused(async () => {
      const claims = { iss: `${PARTNER}/strict`, tenant: '42' };
      return call(await setUp.signPartner(claims, { typ: 'at+jwt' }), '/strict/1');
    }, REVOKED));

  test.each(
    choose<[string, Claims, Claims?]>([
      ['without a required claim', {}],
      ['with another value of a required claim', { tenant: '43' }],
      ['of another type', { tenant: '42' }, { typ: 'JWT' }],
    ]),
  )('%s', (_, claims, header = { typ: 'at+jwt' }) =>
    expectRefused(
      async () => call(await setUp.signPartner({ iss: `${PARTNER}/strict`, ...claims }, header), '/strict/1'),
      NOT_AUTHENTIC,
    ),
  );

  test.each(
    choose<[string, Claims]>([
      ['with an unknown key id', { kid: 'unknown' }],
      ['that are logout tokens', { typ: 'logout+jwt' }],
      ['with a critical extension', { crit: ['b64'], b64: true }],
      ['with another algorithm', { alg: 'ES384' }],
    ]),
  )('%s', (_, header) =>
    expectRefused(async () => {
      const [, payload, signature] = (await setUp.corp.sign()).split('.');
      return call(`${encode({ alg: 'ES256', kid: 'k1', typ: 'JWT', ...header })}.${payload}.${signature}`);
    }, NOT_AUTHENTIC),
  );

  test.each(
    choose<[string, () => Claims]>([
      ['that another key signed', () => ({})],
      ['with their own key', () => ({ jwk: attacker.jwk })],
      ['with the address of their key', () => ({ jku: `${setUp.corp.url}/keys` })],
      ['with the address of their certificate', () => ({ x5u: setUp.corp.url })],
    ]),
  )('%s', (_, header) =>
    expectRefused(async () => {
      const [, payload = ''] = (await setUp.corp.sign()).split('.');
      const claims = JSON.parse(Buffer.from(payload, 'base64url').toString()) as Claims;
      return call(await signForeign(attacker, claims, header()));
    }, NOT_AUTHENTIC),
  );

  test('without a signature, and with the public key as an HMAC secret', async () => {
    const write = async (alg: string, sign: (input: string) => string): Promise<DataPathRequest> => {
      const [, payload] = (await setUp.corp.sign()).split('.');
      const input = `${encode({ alg, kid: 'k1', typ: 'JWT' })}.${payload}`;
      return call(`${input}.${sign(input)}`);
    };
    const secret = JSON.stringify(setUp.corp.published[0]?.jwk);
    await expectRefused(() => write('none', () => ''), refusal('invalid_token', 401));
    await expectRefused(
      () => write('HS256', (input) => createHmac('sha256', secret).update(input).digest('base64url')),
      NOT_AUTHENTIC,
    );
  });

  test('of another trusted issuer, under their own name and that of the first', async () => {
    await expectRefused(async () => call(await setUp.signPartner()), NOT_AUTHENTIC);
    await expectRefused(async () => call(await setUp.signPartner({ iss: setUp.corp.url })), NOT_AUTHENTIC);
  });

  test('of gatehouse, where only another issuer is listed', () =>
    expectRefused(() => call(own, '/corp/1'), NOT_AUTHENTIC));

  test('without the scope of the route, and of another client', async () => {
    await expectRefused(callCorp({}, '/admin/1'), INSUFFICIENT_SCOPE);
    await expectRefused(callCorp({ scope: 'files:read' }), INSUFFICIENT_SCOPE);
    await expectRefused(callCorp({ azp: 'other' }, '/cli/1'), INSUFFICIENT_SCOPE);
    await expectRefused(callCorp({ azp: 'report-runner' }, '/cli/1'), INSUFFICIENT_SCOPE);
  });

  test('whose keys cannot be fetched', () =>
    expectRefused(async () => call(await setUp.signUnreachable()), UNAVAILABLE));

  test('at the token API', () =>
    expectRefused(async () => call(await setUp.corp.sign(), '/authsvc/Authorize/Verify'), INVALID_TOKEN));
});

describe('audiences', () => {
  test('a token for its API is accepted', async () => {
    await expectAccepted(() => call(ownForFiles, '/api/1'));
    await expectAccepted(callCorp({ aud: FILES_API }, '/api/1'));
  });
  test.each(
    choose<[string, CreateRequest]>([
      ['a token of gatehouse for another API', () => call(own, '/api/1')],
      ['a token of a trusted issuer for another API', callCorp({}, '/api/1')],
      ['a token for one API at all others', () => call(ownForFiles)],
    ]),
  )('%s', (_, create) => expectRefused(create, WRONG_AUDIENCE));
  test('a resource that the client does not have', () =>
    expectRefused(
      () => authenticate({ ...BILLING, resource: 'https://other.example.test' }),
      refusal('invalid_target'),
    ));
});

describe('opaque tokens of a trusted issuer', () => {
  test('are accepted while they are active', () => expectAccepted(() => call(setUp.issueOpaque())));
  test.each(
    choose<[string, Claims, Expected?]>([
      ['that are inactive', { active: false }],
      ['for another API', { aud: 'other-api' }],
      ['of another issuer', { iss: 'https://other.example.test' }],
      ['that are expired', { exp: 1_000 }, INVALID_TOKEN],
      ['that are refresh tokens', { token_type: 'refresh_token' }],
      ['of a revoked subject', { sub: 'revoked-subject' }, REVOKED],
      ['bound to a certificate', { cnf: { 'x5t#S256': 'x' } }, INVALID_TOKEN],
      ['bound to a key', { cnf: { jkt: 'x' } }, INVALID_TOKEN],
      ['without the scope', { scope: 'other' }, INSUFFICIENT_SCOPE],
    ]),
  )('%s', (_, claims, expected = NOT_AUTHENTIC) =>
    expectRefused(() => call(setUp.issueOpaque(claims)), expected),
  );
  test('that the issuer does not know, that are too long, or on another route', async () => {
    await expectRefused(() => call(`op_${crypto.randomUUID()}`), NOT_AUTHENTIC);
    await expectRefused(() => call(`op_${'x'.repeat(2_048)}`), NOT_AUTHENTIC);
    await expectRefused(() => call(setUp.issueOpaque(), '/own/1'), NOT_AUTHENTIC);
  });
  test('whose issuer does not respond', () =>
    expectRefused(() => call(`no_${crypto.randomUUID()}`), UNAVAILABLE));
});

describe('token exchange and JWT bearer', () => {
  test('a valid token is accepted', async () => {
    await expectAccepted(async () => exchange(await setUp.corp.sign()));
    await expectAccepted(async () => requestByJwtBearer(await setUp.corp.sign()));
  });
  test.each(
    choose<[string, () => string | Promise<string>]>([
      ['a token of another subject', () => setUp.corp.sign({ sub: 'other' })],
      ['a token for another API', () => setUp.corp.sign({ aud: 'other' })],
      ['an expired token', () => setUp.corp.sign({ exp: 1_000 })],
      ['a revoked token', () => setUp.corp.sign({ jti: 'revoked-jti' })],
      ['a token that another key signed', () => setUp.corp.sign({}, attacker)],
      ['a token of another issuer with the same subject', () => setUp.signPartner()],
      ['a token of another issuer under this name', () => setUp.signPartner({ iss: setUp.corp.url })],
      ['a token bound to a certificate', () => setUp.corp.sign({ cnf: { 'x5t#S256': 'x'.repeat(43) } })],
      ['a token bound to a key', () => setUp.corp.sign({ cnf: { jkt: 'x'.repeat(43) } })],
      ['a token that was used', () => usedSubjectToken],
      ['a token of gatehouse', () => own],
      ['junk', () => 'a.b.c'],
    ]),
  )('%s', async (_, sign) => {
    await expectRefused(async () => exchange(await sign()), refusal('invalid_request'));
    await expectRefused(async () => requestByJwtBearer(await sign()), refusal('invalid_grant'));
  });
  test.each(
    choose<[string, Fields, Expected]>([
      ['of a client that may not', { client_id: 'report-runner' }, refusal('unauthorized_client')],
      ['of an unknown client', { client_id: 'unknown' }, refusal('invalid_client')],
      ['without a client', { client_id: '' }, refusal('invalid_request')],
      ['with more scope', { scope: 'files:write' }, refusal('invalid_scope')],
      ['for another API', { resource: 'https://other.example.test' }, refusal('invalid_target')],
    ]),
  )('a request %s', async (_, fields, expected) => {
    await expectRefused(async () => exchange(await setUp.corp.sign(), fields), expected);
    await expectRefused(async () => requestByJwtBearer(await setUp.corp.sign(), fields), expected);
  });
  test('an exchange with an actor, or for another type of token', async () => {
    const type = 'urn:ietf:params:oauth:token-type:refresh_token';
    for (const fields of [{ actor_token: own }, { requested_token_type: type }, { subject_token_type: type }])
      await expectRefused(async () => exchange(await setUp.corp.sign(), fields), refusal('invalid_request'));
  });
  test('an issuer whose keys cannot be fetched', async () => {
    await expectRefused(async () => exchange(await setUp.signUnreachable()), UNAVAILABLE);
    await expectRefused(async () => requestByJwtBearer(await setUp.signUnreachable()), UNAVAILABLE);
  });
});

describe('client authentication', () => {
  test('is accepted', async () => {
    await expectAccepted(() => authenticate(BILLING));
    await expectAccepted(() => authenticate({}, basic('billing', CLIENT_SECRET)));
    await expectAccepted(async () => authenticate(asserted(await signAssertion())));
  });
  test.each(
    choose<[string, Fields, Fields?]>([
      ['a wrong secret in the body', { client_id: 'billing', client_secret: 'wrong' }],
      ['a wrong secret in the header', {}, basic('billing', 'wrong')],
      ['no secret', { client_id: 'billing' }],
      ['the secret of a client without one', { client_id: 'jobs', client_secret: CLIENT_SECRET }],
    ]),
  )('%s', (_, fields, headers) => expectRefused(() => authenticate(fields, headers), INVALID_CLIENT));
  test.each(
    choose<[string, Fields, Fields]>([
      ['two methods', BILLING, basic('billing', CLIENT_SECRET)],
      ['a malformed header', {}, { authorization: 'Basic !!!' }],
    ]),
  )('%s', (_, fields, headers) =>
    expectRefused(() => authenticate(fields, headers), refusal('invalid_request')),
  );
  test.each(
    choose<[string, () => Claims, Claims?]>([
      ['for another server', () => ({ aud: 'https://other.example.test' })],
      ['of another client', () => ({ iss: 'billing', sub: 'billing' })],
      ['that is expired', () => ({ exp: now() - 1 })],
      ['without jti', () => ({ jti: undefined })],
      ['of another type', () => ({}), { typ: 'at+jwt' }],
      ['with an unknown key id', () => ({}), { kid: 'unknown' }],
    ]),
  )('an assertion %s', (_, claims, header) =>
    expectRefused(async () => authenticate(asserted(await signAssertion(claims(), header))), INVALID_CLIENT),
  );
  test('an assertion that another key signed, or that was used', async () => {
    await expectRefused(
      async () => authenticate(asserted(await signAssertion({}, { kid: 'signer' }, attacker))),
      INVALID_CLIENT,
    );
    await expectRefused(() => authenticate(asserted(usedAssertion)), INVALID_CLIENT);
  });
  test('after too many guesses', () =>
    withSettings(setUp.gateway, withRate('clientGuesses'), async () => {
      const guess = authenticate({ client_id: 'billing', client_secret: 'wrong' });
      await clients.send('HTTP/2, fast path', guess);
      await expectRefused(() => guess, refusal('temporarily_unavailable', 429));
    }));
});

describe('back-channel logout', () => {
  test.each(
    choose<[string, () => string | Promise<string>]>([
      ['a token for another client', () => signLogout({ sub: 'x', aud: 'files-api' })],
      ['a token of another issuer', () => signLogout({ sub: 'x', iss: PARTNER })],
      ['a token without the event', () => signLogout({ sub: 'x', events: {} })],
      ['a token with a nonce', () => signLogout({ sub: 'x', nonce: 'n' })],
      ['a token without subject and session', () => signLogout({})],
      ['an old token', () => signLogout({ sub: 'x', iat: now() - 400 })],
      ['a token of another type', () => signLogout({ sub: 'x' }, { typ: 'at+jwt' })],
      ['an access token', () => setUp.corp.sign()],
      ['no token', () => ''],
    ]),
  )('%s', (_, sign) => expectRefused(async () => logOut(await sign()), refusal('invalid_request')));
  test('of an issuer whose keys cannot be fetched', () =>
    expectRefused(
      async () =>
        logOut(await setUp.signUnreachable({ aud: 'gatehouse-client', events: { [LOGOUT_EVENT]: {} } })),
      UNAVAILABLE,
    ));
  test('after too many tokens', () =>
    withSettings(setUp.gateway, withRate('logout'), async () => {
      await clients.send('HTTP/2, fast path', logOut('junk'));
      await expectRefused(
        async () => logOut(await signLogout({ sub: 'x' })),
        refusal('temporarily_unavailable', 429),
      );
    }));
});

describe('DPoP', () => {
  test('a bound token with a proof is accepted', () =>
    expectAccepted(async () => callWithProof(await prove())));
  test.each(
    choose<[string, () => Partial<ProofInput>]>([
      ['for another method', () => ({ method: 'POST' })],
      ['for another path', () => ({ url: `${ORIGIN}/files/2` })],
      ['for another host', () => ({ url: 'https://other.example.test/files/1' })],
      ['for another token', () => ({ token: own })],
      ['that is too old', () => ({ now: now() - 62 })],
      ['from the future', () => ({ now: now() + 7 })],
      ['without jti', () => ({ claims: { jti: undefined } })],
      ['of another type', () => ({ header: { typ: 'JWT' } })],
      ['with a private key', () => ({ header: { jwk: proofKey.privateJwk } })],
      ['without a key', () => ({ header: { jwk: undefined } })],
      ['that is too long', () => ({ claims: { padding: 'p'.repeat(8_192) } })],
    ]),
  )('a proof %s', (_, input) =>
    expectRefused(async () => callWithProof(await prove(input())), INVALID_PROOF),
  );
  test('a proof with another key, two proofs, no proof, and a used one', async () => {
    const other = await createDpopKey();
    const used = await prove();
    await clients.send('HTTP/2, fast path', callWithProof(used));
    setUp.gateway.upstream.requests.length = 0;
    await expectRefused(async () => callWithProof(await prove({}, other)), INVALID_PROOF);
    await expectRefused(async () => callWithProof([await prove(), await prove()]), INVALID_PROOF);
    await expectRefused(() => callWithProof(undefined), INVALID_PROOF);
    await expectRefused(() => callWithProof(used), INVALID_PROOF);
  });
  test('a bound token with the Bearer scheme, also with a proof, and an unbound one with DPoP', async () => {
    await expectRefused(() => call(bound), { ...INVALID_TOKEN, reason: 'token_proof_missing' });
    await expectRefused(
      async () => call(bound, '/files/1', { headers: { dpop: await prove() } }),
      INVALID_TOKEN,
    );
    await expectRefused(async () => callWithProof(await prove({ token: own }), own), INVALID_TOKEN);
  });
  test('a token of a trusted issuer that is bound to another key, or without a proof', async () => {
    const sign = (): Promise<string> => setUp.corp.sign({ cnf: { jkt: 'x'.repeat(43) } });
    await expectRefused(async () => call(await sign()), INVALID_TOKEN);
    await expectRefused(async () => {
      const token = await sign();
      return callWithProof(await prove({ token }), token);
    }, INVALID_PROOF);
  });
  test('a proof without a nonce where one is required', () =>
    withSettings(
      setUp.gateway,
      (settings) => ({ ...settings, dpop: { enabled: true, nonce: 'required' } }),
      () => expectRefused(async () => callWithProof(await prove()), refusal('use_dpop_nonce', 401)),
    ));
  test('at the token endpoint: an invalid proof, and none where the client must have one', async () => {
    const request = (dpop?: string): DataPathRequest =>
      requestToken(
        { grant_type: 'client_credentials', client_id: 'proving' },
        { as: setUp.certificates.good, headers: { ...(dpop !== undefined && { dpop }) } },
      );
    await expectRefused(
      async () => request(await prove({ token: undefined })),
      refusal('invalid_dpop_proof'),
    );
    await expectRefused(() => request(), refusal('invalid_request'));
  });
});

describe('quotas', () => {
  test.each(
    choose<[string, string, string]>([
      ['an identity', '/limited/1', '"identity";q=1;w=3600'],
      ['a client', '/per-client/1', '"client";q=1;w=3600'],
      ['a route', '/per-route/1', '"route";q=1;w=3600, "identity";q=9;w=3600'],
      ['an address', '/open/1', '"address";q=1;w=3600'],
    ]),
  )('of %s', async (_, path, policy) => {
    await expectRefused(() => call(own, path), refusal('too_many_requests', 429));
    for (const dataPath of DATA_PATHS) {
      const { headers } = await clients.send(dataPath, call(own, path));
      expect([dataPath, headers['ratelimit-policy']]).toEqual([dataPath, policy]);
      expect(headers['ratelimit']).toMatch(/^"[a-z]+";r=0;t=\d+/);
    }
  });
  test('a refused token does not get 429, and takes nothing', async () => {
    await expectRefused(callCorp({ exp: 1_000, sub: 'unlimited' }, '/limited/1'), NOT_AUTHENTIC);
    expect(
      await clients.send('HTTP/2, fast path', await callCorp({ sub: 'unlimited' }, '/limited/1')()),
    ).toMatchObject({
      status: 200,
    });
  });
});

describe('client certificates', () => {
  test('are accepted without the defects below', async () => {
    await expectAccepted(() => callAs('good'));
    for (const name of ['good', 'dns', 'spiffe'] as const) {
      await expectAccepted(() => grantAs(name));
      await expectAccepted(() => grantOfTokenApiAs(name));
    }
  });
  const NOT_PRESENTED = { ...INVALID_TOKEN, reason: 'token_certificate_not_presented' };
  const REJECTED = { ...INVALID_TOKEN, reason: 'token_certificate_rejected' };
  test.each(
    choose<[string, CertificateName, Expected]>([
      ['revoked by a CRL', 'revokedByCrl', REJECTED],
      ['revoked by OCSP', 'revokedByOcsp', REJECTED],
      ['unknown to the OCSP responder', 'unknownToOcsp', REJECTED],
      ['of another CA', 'otherCa', REJECTED],
      ['whose OCSP responder does not respond', 'withoutOcspResponse', UNAVAILABLE],
      ['whose CRL was never fetched', 'withoutFetchedCrl', UNAVAILABLE],
    ]),
  )('%s', async (_, name, expected) => {
    await expectRefused(() => callAs(name), expected);
    const isOurs = expected === UNAVAILABLE;
    await expectRefused(() => grantAs(name), isOurs ? UNAVAILABLE : INVALID_CLIENT);
    // The token API has no 503: its description says that the failure is temporary.
    await expectRefused(() => grantOfTokenApiAs(name), isOurs ? refusal('invalid_request') : INVALID_CLIENT);
  });
  test.each<CertificateName>(['twoDnsNames', 'otherTrustDomain', 'notSpiffe'])(
    'with an unusable name: %s',
    async (name) => {
      await expectRefused(() => grantAs(name), INVALID_CLIENT);
      await expectRefused(() => grantOfTokenApiAs(name), INVALID_CLIENT);
    },
  );
  test('that a token is not bound to, and none', async () => {
    await expectRefused(() => callAs('good', 'dns'), NOT_PRESENTED);
    await expectRefused(async () => ({ ...(await callAs('good')), as: undefined }), NOT_PRESENTED);
  });
});

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');

const withRate =
  (name: 'clientGuesses' | 'logout'): SettingsChange =>
  (settings) => ({
    ...settings,
    limits: { ...settings.limits, rates: { ...settings.limits?.rates, [name]: '1/h' } },
  });
