import { errors, exportJWK, generateKeyPair, type JWTVerifyOptions, jwtVerify, SignJWT } from 'jose';
import { expect, test } from 'vitest';
import type { JsonObject } from '../../src/lib/strict-json.ts';
import { type ClaimFault, type ClaimRules, findClaimFault } from '../../src/tokens/access-token.ts';

const NOW = 1_900_000_000;
const ISSUER = 'https://id.example.com';
const VALID = { iss: ISSUER, aud: 'files', sub: 'x', iat: NOW - 10, exp: NOW + 300, jti: 'one' };
const RULES: ClaimRules = {
  issuer: ISSUER,
  audience: ['files', 'reports'],
  required: ['iss', 'aud', 'iat', 'exp'],
  clockTolerance: 30,
};

const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
const jwk = await exportJWK(publicKey);

/** What jose says about the same claims and the same rules. */
async function findFaultWithJose(
  claims: Readonly<Record<string, unknown>>,
  { issuer, audience, required, clockTolerance, maxAge }: ClaimRules,
  now: number,
): Promise<ClaimFault | undefined> {
  const options: JWTVerifyOptions = {
    requiredClaims: required.filter((name) => name !== 'iss' && name !== 'aud').toReversed(),
    clockTolerance,
    currentDate: new Date(now * 1_000),
    ...(issuer !== undefined && { issuer }),
    ...(audience !== undefined && { audience: [...audience] }),
    ...(maxAge !== undefined && { maxTokenAge: maxAge }),
  };
  const token = await new SignJWT(claims).setProtectedHeader({ alg: 'ES256' }).sign(privateKey);
  try {
    await jwtVerify(token, jwk, options);
    return undefined;
  } catch (error) {
    if (error instanceof errors.JWTExpired) return ['expired'];
    if (!(error instanceof errors.JWTClaimValidationFailed)) throw error;
    const { claim, reason } = error;
    if (reason !== 'check_failed') return ['claim_missing', claim];
    if (claim === 'aud') return ['wrong_audience'];
    return claim === 'nbf' || claim === 'iat' ? ['not_yet_valid'] : ['claim_mismatch', claim];
  }
}

test.each<[string, Readonly<Record<string, unknown>>, ClaimFault | undefined]>([
  ['valid', {}, undefined],
  ['another issuer', { iss: `${ISSUER}/` }, ['claim_mismatch', 'iss']],
  ['an issuer list', { iss: [ISSUER] }, ['claim_mismatch', 'iss']],
  ['no issuer', { iss: undefined }, ['claim_missing', 'iss']],
  ['an audience list', { aud: ['other', 'reports'] }, undefined],
  ['another audience', { aud: 'other' }, ['wrong_audience']],
  ['an audience that only begins alike', { aud: 'files-2' }, ['wrong_audience']],
  ['an empty audience list', { aud: [] }, ['wrong_audience']],
  ['an audience within a list', { aud: [['files']] }, ['wrong_audience']],
  ['an audience object', { aud: { files: true } }, ['wrong_audience']],
  ['no audience', { aud: undefined }, ['claim_missing', 'aud']],
  ['no expiry', { exp: undefined }, ['claim_missing', 'exp']],
  ['an expiry as text', { exp: String(NOW + 300) }, ['claim_missing', 'exp']],
  ['an expiry of null', { exp: null }, ['claim_missing', 'exp']],
  ['expired within the tolerance', { exp: NOW - 29 }, undefined],
  ['expired', { exp: NOW - 30 }, ['expired']],
  ['nbf within the tolerance', { nbf: NOW + 30 }, undefined],
  ['nbf in the future', { nbf: NOW + 31 }, ['not_yet_valid']],
  ['nbf as text', { nbf: '0' }, ['claim_missing', 'nbf']],
  ['no iat', { iat: undefined }, ['claim_missing', 'iat']],
  ['iat as text', { iat: 'yesterday' }, ['claim_missing', 'iat']],
])('%s', async (_, changes, expected) => {
  const claims = { ...VALID, ...changes };
  expect(findClaimFault(claims as JsonObject, RULES, NOW)).toEqual(expected);
  expect(await findFaultWithJose(claims, RULES, NOW)).toEqual(expected);
});

test.each<[string, Readonly<Record<string, unknown>>, ClaimFault | undefined]>([
  ['as old as allowed', { iat: NOW - 330 }, undefined],
  ['older', { iat: NOW - 331 }, ['expired']],
  ['within the tolerance ahead', { iat: NOW + 30 }, undefined],
  ['further ahead', { iat: NOW + 31 }, ['not_yet_valid']],
  ['without iat', { iat: undefined }, ['claim_missing', 'iat']],
])('with a maximum age: %s', async (_, changes, expected) => {
  const [claims, rules] = [
    { ...VALID, ...changes },
    { ...RULES, maxAge: 300 },
  ];
  expect(findClaimFault(claims as JsonObject, rules, NOW)).toEqual(expected);
  expect(await findFaultWithJose(claims, rules, NOW)).toEqual(expected);
});

test('300 random sets of claims are judged as by jose', async () => {
  let state = 5;
  const random = (below: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };
  const offsets = [0, 0.5, 30, 31, 300, 330, 400].flatMap((offset) => [NOW - offset, NOW + offset]);
  const times = [undefined, undefined, undefined, ...offsets, 'x', null];
  const values: Readonly<Record<string, readonly unknown[]>> = {
    iss: [ISSUER, ISSUER, ISSUER, 'other', undefined, 7],
    aud: ['files', 'files', ['x', 'reports'], 'other', [], undefined, 7, null],
    iat: times,
    nbf: times,
    exp: times,
    tenant: ['42', undefined],
  };
  const verdicts = new Set<string>();
  for (let count = 0; count < 300; count += 1) {
    const claims = Object.fromEntries(Object.entries(values).map(([name, list]) => [name, list[random(list.length)]]));
    const rules: ClaimRules = {
      ...RULES,
      required: ['iss', 'aud', 'tenant', 'iat', 'exp'],
      clockTolerance: random(2) * 30,
      ...(random(2) === 0 && { maxAge: 300 }),
    };
    const now = NOW + random(1_000) / 1_000;
    const expected = await findFaultWithJose(claims, rules, now);
    // The names of missing claims may differ where several are missing and there is a maximum age.
    expect([claims, rules, toVerdict(findClaimFault(claims as JsonObject, rules, now), rules)]).toEqual([
      claims,
      rules,
      toVerdict(expected, rules),
    ]);
    verdicts.add(String(expected));
  }
  expect(verdicts.size).toBeGreaterThanOrEqual(9);
});

const toVerdict = (fault: ClaimFault | undefined, { maxAge }: ClaimRules): string =>
  maxAge !== undefined && fault?.[0] === 'claim_missing' ? 'claim_missing' : String(fault);
