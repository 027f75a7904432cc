import { createHmac, createPublicKey, generateKeyPairSync } from 'node:crypto';
import { CompactSign, exportJWK } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { base64url, decodeJwt, loadKeyring, signJwtWith } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Rows T01–T14: tokens that gatehouse did not issue, or not in this form. Signed tokens use the real key. */
freezeClock();
let gateway: TestGateway;
let good: TokenGrant;
beforeAll(async () => {
  gateway = await startGateway();
  good = await gateway.grant();
});
afterAll(() => gateway.close());

const call = async (token: string, path = '/files/1'): Promise<number> => (await gateway.api(path, token)).status;
const expectRefused = async (token: string, why = ''): Promise<void> => {
  const reply = await gateway.api('/files/1', token);
  expect(reply.status, `${why} ${token.slice(0, 80)}`).toBe(401);
  expect(reply.headers['www-authenticate'], why).toContain('error="invalid_token"');
};
/** Claims of a token issued now. */
const claims = (): Readonly<Record<string, unknown>> => {
  const now = Math.floor(gateway.clock.now());
  return { ...decodeJwt(good.access_token).claims, iat: now, exp: now + 600 };
};
/** The valid token with some claims changed, with the real header and key. */
const signWithClaims = (changed: Readonly<Record<string, unknown>>): string =>
  signJwtWith(loadKeyring(gateway), JSON.stringify({ ...claims(), ...changed }));
const signWithHeader = (changed: Readonly<Record<string, unknown>>): string =>
  signJwtWith(loadKeyring(gateway), JSON.stringify(claims()), changed);
const kid = (): string => loadKeyring(gateway).signing[0]?.kid ?? '';
const publicKey = () => createPublicKey({ key: loadKeyring(gateway).signing[0]?.jwk ?? {}, format: 'jwk' });

test('a token signed by these tests without changes is accepted, so the refusals below are due to the change alone', async () => {
  expect(await call(signWithClaims({}))).toBe(200);
  expect(await call(good.access_token)).toBe(200);
});

describe('header', () => {
  test('T01: alg none in any case, with and without a signature', async () => {
    const [, payload, signature] = decodeJwt(good.access_token).parts;
    for (const alg of ['none', 'None', 'nOnE', 'NONE', ''])
      for (const header of [{ alg, typ: 'at+jwt', kid: kid() }, { alg }])
        for (const last of ['', signature]) await expectRefused(`${base64url(header)}.${payload}.${last}`, alg);
  });

  test('T02: HS256 keyed with the public key', async () => {
    const pem = publicKey().export({ type: 'spki', format: 'pem' });
    const der = publicKey().export({ type: 'spki', format: 'der' });
    const raw = Buffer.from(String(publicKey().export({ format: 'jwk' }).x), 'base64url');
    const [, payload] = decodeJwt(good.access_token).parts;
    for (const secret of [pem, pem.trim(), ` ${pem}`, `${pem}\n`, der, raw])
      for (const header of [
        { alg: 'HS256', typ: 'at+jwt', kid: kid() },
        { alg: 'EdDSA', typ: 'at+jwt', kid: kid() },
      ]) {
        const input = `${base64url(header)}.${payload}`;
        await expectRefused(`${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`);
      }
  });

  test('T03: another key under the same kid, with EdDSA, ES256 and RS256', async () => {
    const body = Buffer.from(JSON.stringify(claims()));
    const keys = [
      ['EdDSA', generateKeyPairSync('ed25519').privateKey],
      ['ES256', generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey],
      ['RS256', generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey],
    ] as const;
    for (const [alg, key] of keys)
      await expectRefused(
        await new CompactSign(body).setProtectedHeader({ alg, typ: 'at+jwt', kid: kid() }).sign(key),
        alg,
      );
  });

  test('T04: a kid that is a path, an injection, huge, a number, missing or unknown', async () => {
    for (const wrong of [
      '../../dev/null',
      "' or 1=1",
      'x'.repeat(5_000),
      7,
      undefined,
      'unknown',
      `${kid()} `,
      '__proto__',
      null,
    ])
      await expectRefused(signWithHeader({ kid: wrong }), String(wrong));
  });

  test('T05: a key supplied in jwk, jku, x5u or x5c', async () => {
    const ownKey = generateKeyPairSync('ed25519');
    const jwk = await exportJWK(ownKey.publicKey);
    const body = Buffer.from(JSON.stringify(claims()));
    for (const suppliedKey of [
      { jwk },
      { jku: 'https://127.0.0.1:1/jwks.json' },
      { x5u: 'https://127.0.0.1:1/x.pem' },
      { x5c: [gateway.ca.der.toString('base64')] },
    ]) {
      const header = { alg: 'EdDSA', typ: 'at+jwt', kid: kid(), ...suppliedKey };
      await expectRefused(await new CompactSign(body).setProtectedHeader(header).sign(ownKey.privateKey));
      // Even with a valid signature: gatehouse never writes such a header.
      await expectRefused(signWithHeader(suppliedKey));
    }
  });

  test('T06: crit and b64', async () => {
    for (const more of [{ crit: ['x'], x: 1 }, { crit: ['b64'], b64: false }, { crit: [] }, { b64: true }])
      await expectRefused(signWithHeader(more), JSON.stringify(more));
  });

  test('T08: a typ that is missing, JWT or rt+jwt; a refresh token as access token; an access token as refresh token', async () => {
    for (const typ of [undefined, 'JWT', 'jwt', 'rt+jwt', 'AT+JWT', 'application/at+jwt'])
      await expectRefused(signWithHeader({ typ }), String(typ));
    await expectRefused(good.refresh_token);
    expect(await gateway.refresh(good.access_token)).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
  });
});

describe('claims', () => {
  test('T07: iss wrong, aud wrong, aud an array of the right one and another', async () => {
    const issuer = String(claims()['iss']);
    for (const iss of [`${issuer}/`, issuer.toUpperCase(), 'https://evil.test', undefined, [issuer], null])
      await expectRefused(signWithClaims({ iss }), `iss ${String(iss)}`);
    for (const aud of ['https://evil.test', undefined, [issuer, 'https://evil.test'], [issuer], `${issuer} x`, null])
      await expectRefused(signWithClaims({ aud }), `aud ${String(aud)}`);
  });

  test('T09: exp now, a second ago, as a string, absent, infinite, negative, a fraction', async () => {
    const now = Math.floor(gateway.clock.now());
    for (const exp of [now, now - 1, String(now + 600), undefined, 1e300, -1, now + 600.5, null, true, [now + 600]])
      await expectRefused(signWithClaims({ exp }), `exp ${String(exp)}`);
  });

  test('T09: a token works up to the second before exp and not at exp', async () => {
    const { access_token, expires } = await gateway.grant();
    gateway.clock.advance(expires - gateway.clock.now() - 0.5);
    expect(await call(access_token)).toBe(200);
    gateway.clock.advance(0.5);
    await expectRefused(access_token);
  });

  test('T10: nbf or iat 4 s ahead is allowed, 60 s ahead is not', async () => {
    const now = Math.floor(gateway.clock.now());
    for (const name of ['nbf', 'iat']) {
      expect(await call(signWithClaims({ [name]: now + 4 })), name).toBe(200);
      await expectRefused(signWithClaims({ [name]: now + 60 }), name);
      await expectRefused(signWithClaims({ [name]: String(now) }), name);
    }
    const later = signWithClaims({ iat: now + 60 });
    await expectRefused(later);
    gateway.clock.advance(60);
    expect(await call(later), 'the refusal was not cached').toBe(200);
  });

  test('T14: a duplicate claim name', async () => {
    const text = JSON.stringify(claims());
    const signWithDuplicate = (more: string): string =>
      signJwtWith(loadKeyring(gateway), text.replace(/}$/, `,${more}}`));
    expect(await call(signJwtWith(loadKeyring(gateway), text))).toBe(200);
    for (const more of [
      '"aud":"https://evil.test"',
      `"aud":${JSON.stringify(claims()['aud'])}`,
      '"scope":"reports:write"',
      '"exp":9999999999',
      '"\\u0065xp":9999999999',
    ])
      await expectRefused(signWithDuplicate(more), more);
  });

  test('T14: claims that are not one JSON object of the right types', async () => {
    for (const text of ['', 'null', '[]', '7', '"x"', '{}', '{', '\u{feff}{}'])
      await expectRefused(signJwtWith(loadKeyring(gateway), text), text);
    for (const changed of [
      { sub: 7 },
      { sub: undefined },
      { client_id: ['report-runner'] },
      { gid: null },
      { gen: '1' },
      { gen: 1.5 },
      { scope: ['files:read'] },
      { cnf: {} },
      { cnf: 'x' },
      { cnf: null },
    ])
      await expectRefused(signWithClaims(changed), JSON.stringify(changed));
  });

  test('T16: scopes match by whole words: the resource in any case, the permission exactly, never by prefix', async () => {
    const callWithScope = async (scope: string): Promise<number> => call(signWithClaims({ scope }));
    expect(await callWithScope('Files:read')).toBe(200);
    expect(await callWithScope('files:read reports:write')).toBe(200);
    expect(await callWithScope('reports:write files:read')).toBe(200);
    for (const scope of [
      'files:readwrite',
      'files:rea',
      'files',
      'file:read',
      'filesx:read',
      'reports:read',
      'reports:read files',
    ])
      expect(await callWithScope(scope), scope).toBe(403);
    for (const scope of [
      'files:Read',
      'files:read,',
      'files: read',
      '*:*',
      'files:*',
      '',
      ' ',
      'files:read  reports:read',
    ])
      expect(await callWithScope(scope), scope).toBe(401);
  });

  test('T16: a token with more scope than its integration is limited to the scope of the integration', async () => {
    const wide = signWithClaims({ client_id: 'other-app', scope: 'files:read;reports:write' });
    expect(await call(wide, '/other/1')).toBe(200);
    expect(await call(wide, '/reports/1')).toBe(403);
  });

  test('T18: a token of one integration on a route for another is 403', async () => {
    const { access_token } = await gateway.grant();
    expect(await call(access_token, '/other/1')).toBe(403);
    expect(await call((await gateway.grant({ clientId: 'other-app' })).access_token, '/other/1')).toBe(200);
  });
});

describe('encoding', () => {
  /** Other spellings of the same token, as some parsers would read it. */
  const spellings = (token: string): readonly (readonly [string, string])[] => {
    const [header, payload, signature] = decodeJwt(token).parts;
    const last = signature.at(-1) ?? '';
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const sibling = alphabet[alphabet.indexOf(last) ^ 1] ?? '';
    const body = signature.slice(0, -1);
    const standard = (part: string): string => part.replaceAll('-', '+').replaceAll('_', '/');
    return [
      ['last unused bit', `${header}.${payload}.${body}${sibling}`],
      ['padding', `${token}=`],
      ['two paddings', `${token}==`],
      ['padding inside', `${header}=.${payload}.${signature}`],
      ['four segments', `${token}.`],
      ['four segments, the last not empty', `${token}.e30`],
      ['five segments', `${token}..`],
      ['leading dot', `.${token}`],
      ['empty header', `.${payload}.${signature}`],
      ['empty payload', `${header}..${signature}`],
      ['empty signature', `${header}.${payload}.`],
      ['no signature', `${header}.${payload}`],
      ['only dots', '..'],
      ['standard alphabet', `${standard(header)}.${standard(payload)}.${standard(`${body}-`)}`],
      ['a tilde', `${token}~`],
      ['one character less', token.slice(0, -1)],
      ['one character more', `${token}A`],
    ];
  };
  const RAW = [
    ['trailing space', (token: string) => `Bearer ${token} `],
    ['trailing tab', (token: string) => `Bearer ${token}\t`],
    ['two spaces', (token: string) => `Bearer  ${token}`],
    ['a tab', (token: string) => `Bearer\t${token}`],
    ['a space inside', (token: string) => `Bearer ${token.slice(0, 50)} ${token.slice(50)}`],
    ['quotes', (token: string) => `Bearer "${token}"`],
    ['another scheme', (token: string) => `Token ${token}`],
    ['no scheme', (token: string) => token],
  ] as const;

  test('T12: every other spelling of a valid token is refused, before and after the valid one was cached', async () => {
    const fresh = await gateway.grant();
    for (const [name, spelled] of spellings(fresh.access_token)) await expectRefused(spelled, name);
    expect(await call(fresh.access_token)).toBe(200);
    for (const [name, spelled] of spellings(fresh.access_token)) await expectRefused(spelled, name);
  });

  test('T12: white space is accepted only around the field value', async () => {
    const { access_token } = await gateway.grant();
    for (const [name, write] of RAW) {
      const { status } = await gateway.request({
        path: '/files/1',
        headers: { authorization: write(access_token) },
      });
      // RFC 9110 §5.5: white space around a field value is not part of it, so the parser removes it.
      expect(status, name).toBe(name.startsWith('trailing') ? 200 : 401);
    }
  });

  test('T12: the scheme name is accepted in any case', async () => {
    for (const scheme of ['bearer', 'BEARER', 'bEaReR']) {
      const headers = { authorization: `${scheme} ${(await gateway.grant()).access_token}` };
      expect((await gateway.request({ path: '/files/1', headers })).status).toBe(200);
    }
  });

  test('T13: a revoked token is refused in every spelling', async () => {
    const { access_token } = await gateway.grant();
    expect(await call(access_token)).toBe(200);
    const headers = { authorization: `Bearer ${access_token}` };
    expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    await expectRefused(access_token);
    for (const [name, spelled] of spellings(access_token)) await expectRefused(spelled, name);
    for (const [name, write] of RAW) {
      const { status } = await gateway.request({
        path: '/files/1',
        headers: { authorization: write(access_token) },
      });
      expect(status, name).toBe(401);
    }
  });
});
