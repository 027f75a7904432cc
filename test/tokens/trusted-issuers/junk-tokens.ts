import { randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import type { VerifiedToken } from '../../../src/domain/grant.ts';
import { createScopeMapping } from '../../../src/tokens/trusted-issuers/claim-mapping.ts';
import { IssuerKeys } from '../../../src/tokens/trusted-issuers/issuer-keys.ts';
import { parseKeySet } from '../../../src/tokens/trusted-issuers/key-set.ts';
import { TrustedIssuer } from '../../../src/tokens/trusted-issuers/trusted-issuer.ts';
import { createTrustedTokenReader, TrustedIssuers } from '../../../src/tokens/trusted-issuers/trusted-issuers.ts';
import { createForeignKey, formatKeySet, signForeign } from '../../support/foreign-issuer.ts';
import { scope } from '../../support/proxy-harness.ts';

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
const random = (): string => randomBytes(12).toString('hex');

/** Tokens that claim to be of a trusted issuer. None of them was signed with its key. */
export const createJunkToken = (issuer: string, index: number): string => {
  const now = Math.floor(Date.now() / 1_000);
  const claims = {
    iss: issuer,
    aud: 'files-api',
    sub: random(),
    iat: now - 1,
    exp: now + 300,
    jti: random(),
  };
  const [header, changes] = [
    [{ kid: random() }, {}],
    [{ kid: 'k1' }, {}],
    [{ kid: 'k1' }, { iss: `https://${random()}.example.test` }],
    [{ kid: 'k1' }, { aud: random() }],
  ][index % 4] as [object, object];
  const head = encode({ alg: 'ES256', typ: 'JWT', ...header });
  return `${head}.${encode({ ...claims, ...changes })}.${randomBytes(64).toString('base64url')}`;
};

const ISSUER = 'https://id.example.test';
const COOLDOWN = 30;
const CACHE_SIZE = 100;

/** The verification of tokens of an issuer with one key, and a clock of its own. */
export async function setUpVerification() {
  const key = await createForeignKey('ES256', 'k1');
  const state = { fetches: 0, seconds: 1_000 };
  const keys = new IssuerKeys({
    name: 'corp',
    fetch() {
      state.fetches += 1;
      return parseKeySet(formatKeySet(key));
    },
    refreshInterval: 86_400,
    cooldown: COOLDOWN,
    maxStaleness: 86_400,
    now: () => state.seconds,
  });
  await keys.start();
  const issuer = new TrustedIssuer({
    name: 'corp',
    issuer: ISSUER,
    audience: ['files-api'],
    algorithms: ['ES256'],
    tokenTypes: new Set(['jwt']),
    clockTolerance: 0,
    requiredClaims: new Map(),
    label: 'corp',
    claims: {
      identity: 'sub',
      name: 'name',
      email: 'email',
      groups: 'groups',
      clientId: ['azp'],
      scope: ['scope'],
      trustsEmail: false,
    },
    scope: createScopeMapping({ 'files.read': scope('files:read') }),
    keys,
  });
  const reader = createTrustedTokenReader(new TrustedIssuers([issuer]), CACHE_SIZE);
  const now = (): number => Math.floor(Date.now() / 1_000);
  return {
    state,
    reader,
    close: () => keys.close(),
    read: async (token: string): Promise<VerifiedToken | undefined> => {
      const found = await reader.read(token, now());
      return found?.rejection === undefined ? found : undefined;
    },
    sign: (claims: Readonly<Record<string, unknown>> = {}): Promise<string> =>
      signForeign(key, {
        iss: ISSUER,
        aud: 'files-api',
        sub: 'f3c1',
        iat: now() - 1,
        exp: now() + 300,
        ...claims,
      }),
  };
}

type Verification = Awaited<ReturnType<typeof setUpVerification>>;

/** A hundred tokens per second of the clock of the issuer's keys; with each hundred, a valid token. */
export async function floodVerification({ state, reader, read, sign }: Verification, count: number): Promise<void> {
  const [fetchesBefore, start] = [state.fetches, state.seconds];
  for (let sent = 0; sent < count; sent += 100) {
    const junk = Array.from({ length: 100 }, (_, index) => read(createJunkToken(ISSUER, index)));
    const valid = read(await sign({ jti: `valid ${sent}` }));
    // With the key of the issuer, and for another API.
    const other = read(await sign({ aud: random() }));
    expect(reader.size).toBeLessThanOrEqual(CACHE_SIZE + 102);
    expect((await valid)?.identity).toBe('corp:f3c1');
    expect([...(await Promise.all(junk)), await other].some((token) => token !== undefined)).toBe(false);
    state.seconds += 1;
  }
  expect(reader.size).toBeLessThanOrEqual(CACHE_SIZE);
  // Documented: three, then one per cooldown for all requests together.
  expect(state.fetches - fetchesBefore).toBeLessThanOrEqual(2 + Math.ceil((state.seconds - start) / COOLDOWN));
}
