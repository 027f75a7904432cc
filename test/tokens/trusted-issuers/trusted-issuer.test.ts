import { createHmac, createPublicKey } from 'node:crypto';
import { CompactSign } from 'jose';
import { describe, expect, test } from 'vitest';
import { findTokenFault, type VerifiedToken } from '../../../src/domain/grant.ts';
import { formatScope } from '../../../src/domain/scope.ts';
import { createScopeMapping } from '../../../src/tokens/trusted-issuers/claim-mapping.ts';
import type { IssuerKeys } from '../../../src/tokens/trusted-issuers/issuer-keys.ts';
import {
  deriveTokenId,
  type TokenReading,
  TrustedIssuer,
  type TrustedIssuerOptions,
} from '../../../src/tokens/trusted-issuers/trusted-issuer.ts';
import { createSubjectTokenReader, TrustedIssuers } from '../../../src/tokens/trusted-issuers/trusted-issuers.ts';
import { createFixedKeys, createForeignKey, signForeign } from '../../support/foreign-issuer.ts';
import { scope } from '../../support/proxy-harness.ts';

const NOW = 1_900_000_000;
const CORP = 'https://id.example.com/realms/corp';

const key = await createForeignKey('ES256', 'k1');
const keys = await createFixedKeys(key);

const MAPPING: TrustedIssuerOptions['claims'] = {
  identity: 'sub',
  name: 'preferred_username',
  email: 'email',
  trustsEmail: false,
  groups: 'groups',
  clientId: ['azp', 'client_id', 'appid'],
  scope: ['scope', 'scp', 'roles', '/realm_access/roles'],
};

const createIssuer = (options: Partial<TrustedIssuerOptions> = {}, issuerKeys: IssuerKeys = keys): TrustedIssuer =>
  new TrustedIssuer({
    name: 'corp',
    issuer: CORP,
    audience: ['files-api'],
    algorithms: ['ES256'],
    tokenTypes: new Set(['at+jwt', 'jwt', undefined]),
    clockTolerance: 0,
    requiredClaims: new Map(),
    label: 'corp',
    claims: MAPPING,
    scope: createScopeMapping({ 'files.read': scope('files:read'), writer: scope('files:write') }),
    keys: issuerKeys,
    ...options,
  });

const CLAIMS = {
  iss: CORP,
  aud: 'files-api',
  sub: 'f3c1',
  azp: 'report-runner',
  scope: 'files.read openid',
  iat: NOW - 10,
  exp: NOW + 300,
  jti: 'one',
};

const read = async (token: string, issuer = createIssuer(), now = NOW): Promise<VerifiedToken | undefined> =>
  getVerified(await readFrom(new TrustedIssuers([issuer]), token, now));

/** Tests of single checks only need to know whether the token is accepted. */
const getVerified = (reading: TokenReading | undefined): VerifiedToken | undefined =>
  reading?.rejection === undefined ? reading : undefined;
async function readFrom(issuers: TrustedIssuers, token: string, now = NOW): Promise<TokenReading | undefined> {
  const prepared = issuers.prepare(token, now);
  return typeof prepared === 'function' ? prepared() : prepared;
}
const sign = (
  changes: Readonly<Record<string, unknown>> = {},
  header: Readonly<Record<string, unknown>> = {},
): Promise<string> => signForeign(key, { ...CLAIMS, ...changes }, header);

const readFault = async (changes: Readonly<Record<string, unknown>>): Promise<string | undefined> =>
  (await readFrom(new TrustedIssuers([createIssuer()]), await sign(changes)))?.rejection?.fault;

describe('a token of a trusted issuer', () => {
  test('has identity, client, scope and profile from its claims', async () => {
    const token = await sign({
      preferred_username: 'carol',
      email: 'carol@example.com',
      email_verified: true,
      groups: ['ops', 'dev'],
      realm_access: { roles: ['writer'] },
    });
    const verified = await read(token);
    expect(verified).toMatchObject({
      issuer: 'corp',
      identity: 'corp:f3c1',
      clientId: 'corp/report-runner',
      issuedAt: NOW - 10,
      expires: NOW + 300,
      profile: { name: 'carol', email: 'carol@example.com', groups: ['ops', 'dev'] },
      grantId: deriveTokenId('corp', 'jti one'),
    });
    expect(verified && formatScope(verified.scope)).toBe('files:read,write');
  });

  test('gets no scope from words that are not mapped, whatever their form', async () => {
    const verified = await read(await sign({ scope: 'files:read admin:manage openid', roles: ['files:read'] }));
    expect(verified?.scope.size).toBe(0);
  });

  test('gets the scope that every token of the issuer has', async () => {
    const issuer = createIssuer({ scope: createScopeMapping({}, scope('files:read')) });
    const verified = await read(await sign({ scope: undefined }), issuer);
    expect(verified && formatScope(verified.scope)).toBe('files:read');
  });

  test.each([
    ['as a list', { scp: ['files.read'] }],
    ['as text', { scp: 'files.read' }],
    ['below another claim', { realm_access: { roles: ['files.read'] } }],
  ])('may have its scope %s', async (_, claims) => {
    const verified = await read(await sign({ scope: undefined, ...claims }));
    expect(verified && formatScope(verified.scope)).toBe('files:read');
  });

  test('has an e-mail address only if `email_verified` is true, or the settings trust its addresses', async () => {
    const createWith = (claims: Partial<TrustedIssuerOptions['claims']>): TrustedIssuer =>
      createIssuer({ claims: { ...MAPPING, ...claims } });
    const readProfile = async (claims: object, issuer = createIssuer()): Promise<unknown> =>
      (await read(await sign({ ...claims }), issuer))?.profile;
    const email = 'ceo@example.com';
    const trusting = createWith({ trustsEmail: true });
    for (const email_verified of [false, 'false', 0, null, 'no', 'true'])
      for (const issuer of [createIssuer(), trusting])
        expect(await readProfile({ email, email_verified }, issuer)).toBeUndefined();
    expect(await readProfile({ email, email_verified: true })).toEqual({ email });
    expect(await readProfile({ email })).toBeUndefined();
    expect(await readProfile({ email }, trusting)).toEqual({ email });
    // Another claim than the one that email_verified is about.
    const other = { upn: email, email: 'x@example.com', email_verified: true };
    expect(await readProfile(other, createWith({ email: 'upn' }))).toBeUndefined();
    expect(await readProfile(other, createWith({ email: 'upn', trustsEmail: true }))).toEqual({ email });
  });

  test('is refused if its identity is an e-mail address that is not verified', async () => {
    const identify = async (
      claims: Readonly<Record<string, unknown>>,
      mapping: Partial<TrustedIssuerOptions['claims']>,
    ) => (await read(await sign(claims), createIssuer({ claims: { ...MAPPING, ...mapping } })))?.identity;
    const email = 'ceo@example.com';
    for (const identity of ['email', '/email']) {
      expect(await identify({ email }, { identity })).toBeUndefined();
      expect(await identify({ email, email_verified: false }, { identity, trustsEmail: true })).toBeUndefined();
      expect(await identify({ email, email_verified: true }, { identity })).toBe(`corp:${email}`);
      expect(await identify({ email }, { identity, trustsEmail: true })).toBe(`corp:${email}`);
    }
    expect(await identify({ upn: email }, { identity: 'upn', email: 'upn' })).toBeUndefined();
  });

  test.each(['email', '/email', 'upn', '/upn'])(
    'uses an e-mail address (%s) as name, client id, scope, group or required claim only if it is verified',
    async (path) => {
      const email = path.includes('upn') ? 'upn' : 'email';
      const address = 'files.read';
      const mapping = { ...MAPPING, email, name: path, groups: path, clientId: [path, 'azp'], scope: [path] };
      const describeToken = async (claims: Readonly<Record<string, unknown>>, trustsEmail = false) => {
        const token = await sign({ [email]: address, azp: 'cli', ...claims });
        const found = await read(token, createIssuer({ claims: { ...mapping, trustsEmail } }));
        return found && [found.profile?.name, found.clientId, formatScope(found.scope)];
      };
      const used = [address, `corp/${address}`, 'files:read'];
      for (const claims of [{}, { email_verified: false }, { email_verified: 'true' }])
        expect(await describeToken(claims)).toEqual([undefined, 'corp/cli', '']);
      expect(await describeToken({}, true)).toEqual(used);
      expect(await describeToken({ email_verified: false }, true)).toEqual([undefined, 'corp/cli', '']);
      // Verified is the claim `email`, and no other.
      expect(await describeToken({ email_verified: true })).toEqual(
        email === 'email' ? used : [undefined, 'corp/cli', ''],
      );

      const isAccepted = async (
        value: string | undefined,
        claims: Readonly<Record<string, unknown>>,
        trustsEmail = false,
      ): Promise<boolean> => {
        const options = {
          claims: { ...MAPPING, email, trustsEmail },
          requiredClaims: new Map([[email, value]]),
        };
        return (await read(await sign({ [email]: address, ...claims }), createIssuer(options))) !== undefined;
      };
      for (const value of [undefined, address]) {
        expect(await isAccepted(value, {})).toBe(false);
        expect(await isAccepted(value, { email_verified: false }, true)).toBe(false);
        expect(await isAccepted(value, {}, true)).toBe(true);
        expect(await isAccepted(value, { email_verified: true })).toBe(email === 'email');
      }
      const groups = { [email]: [address] };
      expect((await read(await sign(groups), createIssuer({ claims: mapping })))?.profile).toBeUndefined();
    },
  );

  test('that is an ID token is refused, unless it is exchanged or its header declares an access token', async () => {
    const reader = createSubjectTokenReader(new TrustedIssuers([createIssuer()]));
    for (const claims of [
      { typ: 'ID' },
      { token_use: 'id' },
      { at_hash: 'x' },
      { c_hash: '' },
      { nonce: 'x', scope: undefined },
    ]) {
      const token = await sign(claims);
      expect(await read(token)).toBeUndefined();
      expect(await reader.read(token, 'id_token', NOW)).toMatchObject({ subject: 'f3c1' });
      expect(await read(await sign(claims, { typ: 'at+jwt' }))).toBeDefined();
    }
    for (const claims of [{ nonce: 'x' }, { nonce: 'x', scope: undefined, scp: ['a'] }, { typ: 'Bearer' }])
      expect(await read(await sign(claims))).toBeDefined();
  });

  test('that is exchanged has an e-mail address only if it is verified', async () => {
    const reader = createSubjectTokenReader(new TrustedIssuers([createIssuer()]));
    const readEmail = async (claims: Readonly<Record<string, unknown>>): Promise<unknown> => {
      const found = await reader.read(await sign(claims), 'jwt', NOW);
      if (found === undefined || 'rejection' in found) throw new Error('the token was refused');
      return found.readClaim('email');
    };
    const email = 'ceo@example.com';
    expect(await readEmail({ email, email_verified: true })).toBe(email);
    expect(await readEmail({ email })).toBeUndefined();
    expect(await readEmail({ email, email_verified: false })).toBeUndefined();
  });

  test('bound to a certificate, a key or both stays bound, whatever else cnf contains', async () => {
    expect((await read(await sign({ cnf: { 'x5t#S256': 'abc' } })))?.boundTo).toBe('abc');
    expect((await read(await sign({ cnf: { jkt: 'abc' } })))?.proofKey).toBe('abc');
    expect(await read(await sign({ cnf: { 'x5t#S256': 'abc', jkt: 'def' } }))).toMatchObject({
      boundTo: 'abc',
      proofKey: 'def',
    });
    for (const others of [{ 'kc-jkt-type': 'dpop' }, { kid: 'def' }, { jwk: {} }, { constructor: 1 }]) {
      expect((await read(await sign({ cnf: { jkt: 'abc', ...others } })))?.proofKey).toBe('abc');
      expect((await read(await sign({ cnf: { 'x5t#S256': 'abc', ...others } })))?.boundTo).toBe('abc');
    }
  });

  test('whose cnf has no binding that can be checked is refused', async () => {
    for (const cnf of [
      {},
      { jkt: 7 },
      { 'x5t#S256': 7 },
      { jkt: 'abc', 'x5t#S256': null },
      { jkt: ['abc'], 'x5t#S256': 'abc' },
      { jwk: {} },
      { JKT: 'abc' },
      { 'kc-jkt-type': 'dpop' },
      [],
      null,
      'abc',
    ])
      expect(await readFault({ cnf }), JSON.stringify(cnf)).toBe('binding_not_supported');
  });

  test('with an audience list is accepted if one of them is configured', async () => {
    expect(await read(await sign({ aud: ['account', 'files-api'] }))).toBeDefined();
    expect(await read(await sign({ aud: ['account'] }))).toBeUndefined();
  });

  test('of an issuer whose clock is ahead within the tolerance is accepted, and cannot outlive a revocation', async () => {
    const issuer = createIssuer({ clockTolerance: 60 });
    const token = await sign({ iat: NOW + 50, nbf: NOW + 50 });
    expect((await read(token, issuer))?.issuedAt).toBe(NOW - 10);
    expect(await read(token)).toBeUndefined();
    expect(await read(await sign({ nbf: NOW + 61 }), issuer)).toBeUndefined();
    expect(await read(await sign({ exp: NOW - 59 }), issuer)).toBeDefined();
    expect(await read(await sign({ exp: NOW - 60 }), issuer)).toBeUndefined();
  });

  test.each<[tolerance: number, claims: Readonly<Record<string, number>>, accepted: boolean]>([
    [0, { exp: NOW + 1 }, true],
    [0, { exp: NOW }, false],
    [0, { nbf: NOW }, true],
    [0, { nbf: NOW + 1 }, false],
    // Processes of gatehouse may differ by this much.
    [0, { iat: NOW + 5 }, true],
    [0, { iat: NOW + 6 }, false],
    [60, { exp: NOW - 59 }, true],
    [60, { exp: NOW - 60 }, false],
    [60, { nbf: NOW + 60 }, true],
    [60, { nbf: NOW + 61 }, false],
    [60, { iat: NOW + 65 }, true],
    [60, { iat: NOW + 66 }, false],
  ])('with a clock tolerance of %i s and %j is accepted: %s', async (clockTolerance, claims, accepted) => {
    const verified = await read(await sign(claims), createIssuer({ clockTolerance }));
    const facts = { now: NOW, revoked: false, clientKnown: true, certificate: () => undefined };
    expect(verified !== undefined && findTokenFault(verified, facts) === undefined).toBe(accepted);
  });

  test('must have the required claims, with their values', async () => {
    const issuer = createIssuer({
      requiredClaims: new Map([
        ['tenant', '42'],
        ['session', undefined],
      ]),
    });
    expect(await read(await sign({ tenant: '42', session: 'x' }), issuer)).toBeDefined();
    expect(await read(await sign({ tenant: '43', session: 'x' }), issuer)).toBeUndefined();
    expect(await read(await sign({ tenant: '42' }), issuer)).toBeUndefined();
    expect(await read(await sign({ tenant: 42, session: 'x' }), issuer)).toBeUndefined();
  });
});

describe('refused', () => {
  test.each([
    ['another issuer', { iss: 'https://evil.example.com' }],
    ['the issuer with a slash', { iss: `${CORP}/` }],
    ['the issuer in other letters', { iss: CORP.toUpperCase() }],
    ['no issuer', { iss: undefined }],
    ['an issuer list', { iss: [CORP] }],
    ['another audience', { aud: 'billing-api' }],
    ['no audience', { aud: undefined }],
    ['expired', { exp: NOW }],
    ['no expiry', { exp: undefined }],
    ['an expiry as text', { exp: String(NOW + 300) }],
    ['no issue time', { iat: undefined }],
    ['not valid yet', { nbf: NOW + 1 }],
    ['no subject', { sub: undefined }],
    ['an empty subject', { sub: '' }],
    ['a line break in the subject', { sub: 'a\r\nX-Admin: 1' }],
    ['a subject that is a list', { sub: ['f3c1'] }],
    ['a subject that is not well-formed', { sub: 'a\ud800' }],
    ['a very long subject', { sub: 'a'.repeat(257) }],
  ])('%s', async (_, changes) => {
    expect(await read(await sign())).toBeDefined();
    expect(await read(await sign(changes))).toBeUndefined();
  });

  test.each([
    ['a logout token', { typ: 'logout+jwt' }],
    ['a DPoP proof', { typ: 'dpop+jwt' }],
    ['a type that is not text', { typ: 1 }],
    ['a kid that is not text', { kid: 1 }],
    ['an unknown kid', { kid: '../../dev/null' }],
    ['a kid with SQL', { kid: "k1' OR '1'='1" }],
  ])('%s in the header', async (_, header) => {
    expect(await read(await sign({}, header))).toBeUndefined();
  });

  test('the public key used as an HMAC secret', async () => {
    const pem = createPublicKey({ key: key.jwk, format: 'jwk' }).export({ type: 'spki', format: 'pem' });
    const input = `${encode({ alg: 'HS256', kid: 'k1', typ: 'JWT' })}.${encode(CLAIMS)}`;
    for (const secret of [pem, pem.trim(), JSON.stringify(key.jwk)]) {
      const token = `${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`;
      expect(await read(token)).toBeUndefined();
    }
  });

  test.each(['none', 'None', 'HS256', 'RS256', 'ES384', '__proto__', 'constructor'])('alg %s', async (alg) => {
    const [, payload, signature] = (await sign()).split('.');
    expect(await read(`${encode({ alg, kid: 'k1', typ: 'JWT' })}.${payload}.${signature}`)).toBeUndefined();
    expect(await read(`${encode({ alg, kid: 'k1', typ: 'JWT' })}.${payload}.`)).toBeUndefined();
  });

  test('a token that brings its own key', async () => {
    const own = await createForeignKey('ES256', 'k1');
    for (const header of [
      { jwk: own.jwk },
      { jku: 'https://evil.example.com/keys' },
      { x5u: 'https://evil.example.com/cert' },
    ])
      expect(await read(await signForeign(own, CLAIMS, header))).toBeUndefined();
  });

  test('a critical extension', async () => {
    const token = await new CompactSign(Buffer.from(JSON.stringify(CLAIMS)))
      .setProtectedHeader({ alg: 'ES256', kid: 'k1', typ: 'JWT', crit: ['exp'], exp: 1 })
      .sign(key.privateKey, { crit: { exp: true } });
    expect(await read(token)).toBeUndefined();
  });

  test('repeated names in the payload, although the signature is valid', async () => {
    const json = JSON.stringify(CLAIMS);
    for (const payload of [`{"aud":"files-api",${json.slice(1)}`, `{"sub":"admin",${json.slice(1)}`]) {
      const token = await new CompactSign(Buffer.from(payload))
        .setProtectedHeader({ alg: 'ES256', kid: 'k1', typ: 'JWT' })
        .sign(key.privateKey);
      expect(await read(token)).toBeUndefined();
    }
  });

  test('another spelling of the same bytes', async () => {
    const token = await sign();
    for (const spelling of [`${token}=`, `${token}.`, ` ${token}`, `${token}\n`, token.replaceAll('.', '..')])
      expect(await read(spelling)).toBeUndefined();
  });

  test('a token of one issuer under the name of another, with the same kid', async () => {
    const otherKey = await createForeignKey('ES256', 'k1');
    const other = createIssuer(
      { name: 'partner', issuer: 'https://partner.example.com', label: 'partner' },
      await createFixedKeys(otherKey),
    );
    const both = new TrustedIssuers([createIssuer(), other]);
    const readBoth = async (token: string): Promise<VerifiedToken | undefined> =>
      getVerified(await readFrom(both, token));
    expect((await readBoth(await sign()))?.issuer).toBe('corp');
    const partner = { ...CLAIMS, iss: 'https://partner.example.com' };
    expect((await readBoth(await signForeign(otherKey, partner)))?.issuer).toBe('partner');
    expect(await readBoth(await signForeign(otherKey, CLAIMS))).toBeUndefined();
    expect(await readBoth(await signForeign(key, partner))).toBeUndefined();
  });

  test('longer than any token', async () => {
    expect(await read(await sign({ groups: Array.from({ length: 2_000 }, (_, index) => `group-${index}`) }))).toBe(
      undefined,
    );
  });
});

test('a key verifies tokens whatever `ext` says; one that cannot be imported verifies none', async () => {
  const readWith = async (changes: object): Promise<unknown> => {
    const issuer = createIssuer({}, await createFixedKeys({ ...key, jwk: { ...key.jwk, ...changes } }));
    const reading = await readFrom(new TrustedIssuers([issuer]), await sign());
    return reading?.rejection?.fault ?? 'accepted';
  };
  expect(await readWith({ ext: true })).toBe('accepted');
  expect(await readWith({ ext: false })).toBe('accepted');
  expect(await readWith({ key_ops: ['verify'] })).toBe('accepted');
  expect(await readWith({ key_ops: ['verify', 'verify'] })).toBe('malformed');
  expect(await readWith({ key_ops: ['sign', 'verify'] })).toBe('malformed');
});

describe('the reason for the log', () => {
  const explain = async (token: string, issuer = createIssuer()): Promise<unknown> =>
    (await readFrom(new TrustedIssuers([issuer]), token))?.rejection;

  test.each([
    ['wrong_audience', { aud: ['other-api'] }],
    ['expired', { exp: NOW - 1 }],
    ['not_yet_valid', { nbf: NOW + 60 }],
  ])('is %s, and that the token is authentic', async (fault, claims) => {
    const attacker = await createForeignKey('ES256', 'k1');
    expect(await explain(await sign(claims))).toEqual({ fault, issuer: 'corp', isAuthentic: true });
    expect(await explain(await signForeign(attacker, { ...CLAIMS, ...claims }))).toEqual({
      fault: 'invalid_signature',
      issuer: 'corp',
    });
  });

  test.each<[string, Readonly<Record<string, unknown>>, Readonly<Record<string, unknown>>]>([
    ['unknown_key', {}, { kid: 'k9' }],
    ['type_not_accepted', {}, { typ: 'secevent+jwt' }],
    ['id_token', { at_hash: 'x' }, {}],
    ['logout_token', { events: { 'http://schemas.openid.net/event/backchannel-logout': {} } }, {}],
  ])('is %s', async (fault, claims, header) => {
    expect(await explain(await sign(claims, header))).toEqual({ fault, issuer: 'corp' });
  });

  test('names the claim that is missing or differs, never its value', async () => {
    const issuer = createIssuer({ requiredClaims: new Map([['tid', 'ours']]) });
    expect(await explain(await sign({ tid: 'theirs' }), issuer)).toEqual({
      fault: 'claim_mismatch',
      issuer: 'corp',
      claim: 'tid',
    });
    for (const [claims, claim] of [
      [{}, 'tid'],
      [{ tid: 'ours', sub: undefined }, 'sub'],
      [{ tid: 'ours', aud: undefined }, 'aud'],
    ] as const)
      expect(await explain(await sign(claims), issuer)).toMatchObject({
        fault: 'claim_missing',
        issuer: 'corp',
        claim,
      });
  });

  test('is the signature, the algorithm or the issuer', async () => {
    const forged = await signForeign(await createForeignKey('ES256', 'k1'), CLAIMS);
    expect(await explain(forged)).toEqual({ fault: 'invalid_signature', issuer: 'corp' });
    const token = await sign();
    expect(await explain(token, createIssuer({ algorithms: ['RS256'] }))).toEqual({
      fault: 'algorithm_not_allowed',
      issuer: 'corp',
    });
    expect(await explain(await sign({ iss: 'https://evil.example.com' }))).toEqual({
      fault: 'unknown_issuer',
    });
    expect(await explain('not-a-jwt')).toBeUndefined();
  });
});

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
