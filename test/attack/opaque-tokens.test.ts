import { createHmac, randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { Grant } from '../../src/domain/grant.ts';
import { createTokenIssuer } from '../../src/tokens/issuer.ts';
import { openKeyring, openSealingKeys } from '../../src/tokens/keyring.ts';
import { rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { createOpaqueToken, createOpaqueTokenReader } from '../../src/tokens/opaque-token.ts';
import { withFailure } from '../support/fault-injection.ts';
import { keyFilePath, loadKeyring } from '../support/forged-tokens.ts';
import { heapAfterCollection } from '../support/heap.ts';
import { withIntegration, withoutIntegration, withSettings, withTokens } from '../support/reconfigure.ts';
import { ALICE, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** The catalogue of access tokens, for opaque tokens: handles that are forged, misspelled or no longer valid. */
let gateway: TestGateway;
beforeAll(async () => {
  // Time advances only through `gateway.clock`, so a slow machine cannot make a token expire.
  vi.useFakeTimers({ toFake: ['Date'] });
  gateway = await startGateway((settings) => ({
    ...withTokens({ format: 'opaque' })(settings),
    trustedProxies: ['127.0.0.1'],
  }));
});
afterAll(async () => {
  await gateway?.close();
  vi.useRealTimers();
});

const PUBLIC_URL = 'https://localhost:8443';
const call = async (token: string, path = '/files/1'): Promise<number> => (await gateway.api(path, token)).status;
const expectRefused = async (token: string, why = ''): Promise<void> => {
  const reply = await gateway.api('/files/1', token);
  expect(reply.status, `${why} ${token}`).toBe(401);
  expect(reply.headers['www-authenticate'], why).toContain('error="invalid_token"');
};
const readGrantRecord = async (grant: TokenGrant): Promise<Grant> => {
  const [, grantId = ''] = grant.refresh_token.split('.');
  const found = await gateway.server.store.grants.read(grantId);
  if (found === undefined) throw new Error('no such grant');
  return found.record;
};
/** Seals a token as anyone with the key file could. */
const sealToken = (
  record: Grant,
  issuer = PUBLIC_URL,
  kid = loadKeyring(gateway).sealing.at(-1)?.kid ?? '',
): string => {
  const key = openSealingKeys(loadKeyring(gateway)).getSealingKey(kid);
  if (key === undefined) throw new Error('no such key');
  return createOpaqueToken(key, issuer, record);
};
/** Counts the store reads while `run` runs. */
async function countReads<T>(run: () => Promise<T>): Promise<{ reads: number; value: T }> {
  const { grants } = gateway.server.store;
  const real = grants.read.bind(grants);
  let reads = 0;
  Object.assign(grants, {
    read: (id: string) => {
      reads += 1;
      return real(id);
    },
  });
  try {
    return { value: await run(), reads };
  } finally {
    Object.assign(grants, { read: real });
  }
}

describe('format', () => {
  test('an opaque token is 64 characters of standard base64 ending in ==, and every byte of it varies', async () => {
    const tokens = await Promise.all(Array.from({ length: 64 }, () => gateway.grant()));
    for (const { access_token } of tokens) expect(access_token).toMatch(/^[A-Za-z0-9+/]{61}[AQgw]==$/);
    // Grant, generation, time and key are not visible: every byte varies as if it were random.
    const bytes = tokens.map(({ access_token }) => Buffer.from(access_token, 'base64'));
    for (let at = 0; at < 46; at += 1)
      expect(new Set(bytes.map((token) => token[at])).size, `byte ${at}`).toBeGreaterThan(32);
  });

  test('its format is fixed: a token of an earlier version is read, and sealed again to the same string', async () => {
    const secret = Buffer.from(Array.from({ length: 32 }, (_, at) => at)).toString('base64url');
    const keyring = await openKeyring({
      ...loadKeyring(gateway),
      sealing: [{ kid: 'mfixed', activeFrom: 0, secret }],
    });
    const key = keyring.getSealingKey('mfixed');
    if (key === undefined) throw new Error('no such key');
    const grant = {
      id: 'AbCdEfGhIjKlMnOpQrStUv',
      generation: 7,
      rotatedAt: 1_800_000_000.5,
      accessExpires: 1_800_003_600,
    } as Grant;
    expect(createOpaqueToken(key, PUBLIC_URL, grant)).toBe(
      'yyP40rQrDlRCLDG2BwdFgE0i2goyZVt+6RzC+pvZJZ9VPF2+8kSXSFUXlyXlTg==',
    );
    const issuer = createTokenIssuer({
      keyring,
      publicUrl: PUBLIC_URL,
      cacheSize: 10,
      grants: gateway.server.store.grants,
    });
    expect(
      issuer.openAccessToken('yyP40rQrDlRCLDG2BwdFgE0i2goyZVt+6RzC+pvZJZ9VPF2+8kSXSFUXlyXlTg==', 1_800_000_001),
    ).toMatchObject({
      grantId: 'AbCdEfGhIjKlMnOpQrStUv',
      generation: 7,
      issuedAt: 1_800_000_000,
      expires: 1_800_003_600,
    });
  });

  test('it gives the access of its grant, and every operation accepts it', async () => {
    const { access_token } = await gateway.grant();
    const reply = await gateway.api('/files/1', access_token);
    expect(reply.json['headers']).toMatchObject({
      'x-forwarded-user': ALICE,
      'x-forwarded-client-id': 'report-runner',
      'x-forwarded-scope': 'files:read',
    });
    const headers = { authorization: `Bearer ${access_token}` };
    const verified = await gateway.request({ path: '/authsvc/Authorize/Verify', headers });
    expect(verified).toMatchObject({ status: 200, json: { identity: ALICE, valid_for: 3_600 } });
    const check = async (path: string) => gateway.request({ path: `/authsvc/check${path}`, headers });
    expect(await check('/files/1')).toMatchObject({ status: 200, headers: { 'x-forwarded-user': ALICE } });
    expect((await check('/reports/1')).status).toBe(403);
    expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    expect((await check('/files/1')).status).toBe(401);
  });

  test('tokens of the other format stay valid when the format is changed, in both directions', async () => {
    const opaque = await gateway.grant();
    await withSettings(gateway, withTokens({ format: 'jwt' }), async () => {
      const jwt = await gateway.grant();
      expect(jwt.access_token).toMatch(/^eyJ/);
      expect(await call(opaque.access_token)).toBe(200);
      const next = (await gateway.refresh(opaque.refresh_token)).json as unknown as TokenGrant;
      expect(next.access_token).toMatch(/^eyJ/);
      expect(await call(next.access_token)).toBe(200);
      await gateway.reload(withTokens({ format: 'opaque' }));
      expect(await call(jwt.access_token)).toBe(200);
      const retried = (await gateway.refresh(opaque.refresh_token)).json as unknown as TokenGrant;
      expect(retried.access_token, 'a retry gets the same token in its original format').toBe(next.access_token);
    });
  });

  test('an integration can have its own format', async () => {
    await withSettings(gateway, withIntegration('other-app', { tokenFormat: 'jwt' }), async () => {
      expect((await gateway.grant({ clientId: 'other-app' })).access_token).toMatch(/^eyJ/);
      expect((await gateway.grant()).access_token).toMatch(/==$/);
    });
  });

  test('no opaque token is ever written to the log', async () => {
    // A token that can be used in a path without encoding.
    let { access_token } = await gateway.grant();
    for (let tries = 0; /[+/]/.test(access_token) && tries < 200; tries += 1)
      ({ access_token } = await gateway.grant());
    await call(access_token);
    await gateway.request({ path: `/files/${access_token}` });
    await gateway.request({ path: `/files/1?t=${access_token}` });
    await gateway.request({ path: `/files/1?access_token=${encodeURIComponent(access_token)}` });
    await gateway.request({ path: `/files/${encodeURIComponent(access_token)}` });
    expect(gateway.logLines.join('\n')).not.toContain(access_token.slice(0, 20));
  });
});

describe('forged', () => {
  test('T01, T02, T03: a handle with a wrong MAC is rejected without a store read', async () => {
    const { access_token } = await gateway.grant();
    const bytes = Buffer.from(access_token, 'base64');
    const { reads } = await countReads(async () => {
      await expectRefused(`${'A'.repeat(62)}==`, 'zeros');
      for (let attempt = 0; attempt < 50; attempt += 1)
        await expectRefused(randomBytes(46).toString('base64'), 'random bytes');
      // A valid token with one bit flipped.
      for (let bit = 0; bit < 46 * 8; bit += 5) {
        const changed = Buffer.from(bytes);
        changed[bit >> 3] = (changed[bit >> 3] ?? 0) ^ (1 << (bit & 7));
        await expectRefused(changed.toString('base64'), `bit ${bit}`);
      }
      // A MAC keyed with public values.
      const handle = bytes.subarray(16);
      for (const secret of ['', PUBLIC_URL, loadKeyring(gateway).sealing.at(-1)?.kid ?? '']) {
        const mac = createHmac('sha256', secret).update(`${PUBLIC_URL}\n`).update(handle).digest();
        await expectRefused(Buffer.concat([mac.subarray(0, 16), handle]).toString('base64'), 'another key');
      }
    });
    expect(reads).toBe(0);
    expect(await call(access_token)).toBe(200);
  });

  test('T04: a correctly sealed handle of a grant that never existed is rejected', async () => {
    const record = await readGrantRecord(await gateway.grant());
    await expectRefused(sealToken({ ...record, id: 'A'.repeat(22) }));
    expect(() => sealToken({ ...record, id: '../../../etc/passwd' })).toThrow(/cannot be encoded/);
  });

  test('T07: a handle is valid for its issuer only, even with the same keys', async () => {
    const record = await readGrantRecord(await gateway.grant());
    expect(await call(sealToken(record))).toBe(200);
    for (const issuer of ['https://evil.test', `${PUBLIC_URL}/`, '', `${PUBLIC_URL}\n`])
      await expectRefused(sealToken(record, issuer), issuer);
  });

  test('T08: a refresh token is not accepted as an access token, nor the reverse; sealed cookies and codes are neither', async () => {
    const grant = await gateway.grant();
    await expectRefused(grant.refresh_token);
    expect((await gateway.refresh(grant.access_token)).json).toMatchObject({ Error: 'invalid_grant' });
    await expectRefused('ghd_x');
    await expectRefused('ghs_x');
  });

  test('T12: every other spelling of a valid token is rejected, before and after the token was cached', async () => {
    const { access_token: token } = await gateway.grant();
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
    const last = token[61] ?? '';
    const siblings = [1, 2, 4, 8].map((bit) => alphabet[alphabet.indexOf(last) ^ bit] ?? '');
    const spellings = [
      ...siblings.map((other) => `${token.slice(0, 61)}${other}==`),
      token.slice(0, -1),
      token.slice(0, -2),
      `${token}=`,
      `${token}A`,
      `A${token}`,
      token
        .replaceAll('+', '-')
        .replaceAll('/', '_')
        .replace(/.(?=.)/, (first) => (first === 'A' ? '-' : first)),
      `${token.slice(0, 62)}..`,
      `${token.slice(0, 30)}=${token.slice(30, 61)}==`,
      `${token.slice(0, 40)}.${token.slice(41)}`,
    ].filter((spelled) => spelled !== token);
    for (const spelled of spellings) await expectRefused(spelled);
    expect(await call(token)).toBe(200);
    for (const spelled of spellings) await expectRefused(spelled);
    const headers = { authorization: `Bearer ${token}` };
    expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    // T13: the token is revoked in every spelling.
    for (const spelled of [token, ...spellings]) await expectRefused(spelled);
  });
});

describe('no longer valid', () => {
  test('T09: valid until just before its expiry, which is sealed into the token', async () => {
    const grant = await gateway.grant();
    const record = await readGrantRecord(grant);
    const now = Math.floor(gateway.clock.now());
    for (const accessExpires of [now, now - 1, 0])
      await expectRefused(sealToken({ ...record, accessExpires }), `${accessExpires}`);
    gateway.clock.advance(grant.expires - gateway.clock.now() - 0.5);
    expect(await call(grant.access_token)).toBe(200);
    gateway.clock.advance(0.5);
    await expectRefused(grant.access_token);
  });

  test('T09: an older generation keeps its own expiry, whatever the current record contains', async () => {
    const first = await gateway.grant();
    gateway.clock.advance(1_800);
    const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
    expect(await call(first.access_token)).toBe(200);
    gateway.clock.advance(1_801);
    await expectRefused(first.access_token);
    expect(await call(second.access_token)).toBe(200);
  });

  test('T10: a token issued by a clock slightly ahead is valid, by one far ahead it is not', async () => {
    const record = await readGrantRecord(await gateway.grant());
    const now = Math.floor(gateway.clock.now());
    expect(await call(sealToken({ ...record, rotatedAt: now + 4 }))).toBe(200);
    await expectRefused(sealToken({ ...record, rotatedAt: now + 60 }));
  });

  test('T11: a sealing key is valid from its activation until it retires, for cached tokens too', async () => {
    const fresh = await startGateway((settings) =>
      withIntegration('report-runner', { accessLifetime: '10h' })(withTokens({ format: 'opaque' })(settings)),
    );
    try {
      const status = async (token: string): Promise<number> => (await fresh.api('/files/1', token)).status;
      const grant = await fresh.grant();
      expect(await status(grant.access_token)).toBe(200);
      const next = rotateKeyring(loadKeyring(fresh), {
        alg: 'EdDSA',
        now: fresh.clock.now(),
        publishBefore: 300,
        keep: 7_200,
      });
      writeKeyringFile(keyFilePath(fresh), next, { replace: true });
      await fresh.reload((settings) => settings);
      const [, grantId = ''] = grant.refresh_token.split('.');
      const record = (await fresh.server.store.grants.read(grantId))?.record as Grant;
      const key = openSealingKeys(next).getSealingKey(next.sealing.at(-1)?.kid ?? '');
      if (key === undefined) throw new Error('no new key');
      const early = createOpaqueToken(key, PUBLIC_URL, record);
      expect(await status(early), 'not active yet').toBe(401);
      fresh.clock.advance(301);
      expect(await status(early)).toBe(200);
      expect(await status(grant.access_token)).toBe(200);
      fresh.clock.advance(7_210);
      expect(await status(grant.access_token), 'retired').toBe(401);
      expect(await status(early)).toBe(200);
    } finally {
      await fresh.close();
    }
  });

  test('T16, T18, T19: scope, clients, and a reduced or removed integration apply to cached tokens at the next request', async () => {
    const { access_token } = await gateway.grant({ scope: 'files:read;reports:write' });
    expect(await call(access_token, '/reports/1')).toBe(200);
    expect(await call(access_token, '/other/1')).toBe(403);
    await withSettings(gateway, withIntegration('report-runner', { scope: 'files:read' }), async () => {
      expect(await call(access_token, '/reports/1')).toBe(403);
      expect(await call(access_token)).toBe(200);
    });
    await withSettings(gateway, withoutIntegration('report-runner'), () => expectRefused(access_token));
    expect((await gateway.grant()).access_token).not.toBe(access_token);
    expect(await call((await gateway.grant()).access_token, '/reports/1')).toBe(403);
  });

  test('T17: a certificate-bound token is valid with that certificate only, also when cached', async () => {
    await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
      const { access_token } = await gateway.grant();
      const callAs = async (user?: 'alice' | 'bob'): Promise<number> =>
        (await gateway.api('/files/1', access_token, user && { as: gateway.users[user] })).status;
      expect(await callAs()).toBe(401);
      expect(await callAs('alice')).toBe(200);
      expect(await callAs('bob')).toBe(401);
      expect(await callAs()).toBe(401);
    });
  });

  test('T19: revoked: the next request is rejected, whether the token was cached or not', async () => {
    for (const isCached of [true, false]) {
      const { access_token } = await gateway.grant();
      if (isCached) expect(await call(access_token)).toBe(200);
      const headers = { authorization: `Bearer ${access_token}` };
      expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
      await expectRefused(access_token);
    }
  });

  test('T19: a record marked revoked applies even if the announcement was lost', async () => {
    const grant = await gateway.grant();
    const record = await readGrantRecord(grant);
    const { grants } = gateway.server.store;
    const found = await grants.read(record.id);
    if (found === undefined) throw new Error('no such grant');
    const revokedRecord = { ...record, revokedAt: Math.floor(gateway.clock.now()) };
    await grants.replace(record.id, found.version, revokedRecord, revokedRecord.refreshUntil);
    await expectRefused(grant.access_token);
  });

  test('superseded: a refresh revokes the previous access token at once', async () => {
    await withSettings(gateway, withTokens({ format: 'opaque', refresh: { supersede: true } }), async () => {
      const first = await gateway.grant();
      expect(await call(first.access_token)).toBe(200);
      const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
      await expectRefused(first.access_token);
      expect(await call(second.access_token)).toBe(200);
    });
  });
});

describe('the store', () => {
  test('the first use causes one store read, however many requests use the token concurrently; later uses cause none', async () => {
    const { access_token } = await gateway.grant();
    const first = await countReads(() => Promise.all(Array.from({ length: 40 }, () => call(access_token))));
    expect(new Set(first.value)).toEqual(new Set([200]));
    expect(first.reads).toBe(1);
    const later = await countReads(() => Promise.all(Array.from({ length: 40 }, () => call(access_token))));
    expect(later.reads).toBe(0);
  });

  test('T20: at most 10,000 lookups run at once, whatever the store does; requests for a token being looked up share its lookup', async () => {
    const keyring = await openKeyring(loadKeyring(gateway));
    const [key] = keyring.sealingKeys;
    if (key === undefined) throw new Error('no key');
    const record = await readGrantRecord(await gateway.grant());
    const createToken = (generation: number): string => createOpaqueToken(key, PUBLIC_URL, { ...record, generation });
    const stalled = Promise.withResolvers<undefined>();
    let reads = 0;
    const reader = createOpaqueTokenReader({
      keyring,
      issuer: PUBLIC_URL,
      cacheSize: 10,
      claims: new Set(),
      grants: {
        read: () => {
          reads += 1;
          return stalled.promise;
        },
      },
    });
    const now = gateway.clock.now();
    const waiting = Array.from({ length: 10_000 }, (_, generation) =>
      Promise.resolve(reader.read(createToken(generation), now)),
    );
    expect(() => reader.read(createToken(10_000), now)).toThrow(
      expect.objectContaining({ name: 'Fault', code: 'overloaded' }),
    );
    expect(reader.read(createToken(5), now)).toBe(waiting[5]);
    expect(reads).toBe(10_000);
    stalled.resolve(undefined);
    await Promise.all(waiting);
    expect(await reader.read(createToken(10_000), now)).toBeUndefined();
    expect(reads).toBe(10_001);
  });

  test('store unreachable on first use: 503 with Retry-After, not 401; a cached token stays valid', async () => {
    const [known, fresh] = [await gateway.grant(), await gateway.grant()];
    expect(await call(known.access_token)).toBe(200);
    await withFailure(gateway.server.store.grants, 'read', 'not executed', async () => {
      expect(await call(known.access_token)).toBe(200);
      const reply = await gateway.api('/files/1', fresh.access_token);
      expect(reply.status).toBe(503);
      expect(reply.headers['retry-after']).toMatch(/^[1-9]/);
      await expectRefused(randomBytes(46).toString('base64'), 'a forged token causes no store read');
      const headers = { authorization: `Bearer ${fresh.access_token}` };
      const verified = await gateway.request({ path: '/authsvc/Authorize/Verify', headers });
      expect(verified).toMatchObject({ status: 503, json: { Error: 'temporarily_unavailable' } });
    });
    expect(await call(fresh.access_token), 'the failure was not cached').toBe(200);
  });

  test('an expired token whose grant is gone causes one store read', async () => {
    const record = await readGrantRecord(await gateway.grant());
    const old = sealToken({
      ...record,
      id: 'B'.repeat(22),
      accessExpires: Math.floor(gateway.clock.now()) - 10,
    });
    const { reads } = await countReads(async () => {
      for (let attempt = 0; attempt < 5; attempt += 1) await expectRefused(old);
    });
    expect(reads).toBe(1);
  });

  test('R05: 100 concurrent refreshes of one token: one rotation, the same tokens in every response', async () => {
    const { refresh_token } = await gateway.grant();
    const replies = await Promise.all(Array.from({ length: 100 }, () => gateway.refresh(refresh_token)));
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200]));
    expect(new Set(replies.map(({ json }) => json['access_token'])).size).toBe(1);
    expect(new Set(replies.map(({ json }) => json['refresh_token'])).size).toBe(1);
    expect(String(replies[0]?.json['access_token'])).toMatch(/==$/);
  });

  test('T15, T20: 40,000 junk tokens are rejected without a store read, and the cache stays bounded', async () => {
    const grant = await gateway.grant();
    const keyring = await openKeyring(loadKeyring(gateway));
    let reads = 0;
    const { grants } = gateway.server.store;
    const issuer = createTokenIssuer({
      keyring,
      publicUrl: PUBLIC_URL,
      cacheSize: 1_000,
      grants: {
        read: (id) => {
          reads += 1;
          return grants.read(id);
        },
      },
    });
    const now = gateway.clock.now();
    const readJunk = (count: number): void => {
      for (let attempt = 0; attempt < count; attempt += 1)
        if (issuer.readAccessToken(randomBytes(46).toString('base64'), now) !== undefined)
          throw new Error('a junk token was accepted');
    };
    readJunk(2_000);
    const before = heapAfterCollection();
    readJunk(38_000);
    // As cache entries, these tokens would take more than 6 MiB.
    expect(heapAfterCollection() - before).toBeLessThan(4 * 1_024 * 1_024);
    expect(reads).toBe(0);
    expect(await issuer.readAccessToken(grant.access_token, now)).toMatchObject({
      clientId: 'report-runner',
    });
    expect(await call('A'.repeat(8_000))).toBe(401);
  });

  test('T20: cached tokens are evicted by newer ones and are then looked up again', async () => {
    const record = await readGrantRecord(await gateway.grant());
    const issuer = createTokenIssuer({
      keyring: await openKeyring(loadKeyring(gateway)),
      publicUrl: PUBLIC_URL,
      cacheSize: 100,
      grants: gateway.server.store.grants,
    });
    const now = gateway.clock.now();
    const token = sealToken(record);
    const first = await issuer.readAccessToken(token, now);
    expect(issuer.readAccessToken(token, now), 'synchronously, the same object').toBe(first);
    for (let generation = 2; generation < 160; generation += 1)
      await issuer.readAccessToken(sealToken({ ...record, generation }), now);
    const reread = await issuer.readAccessToken(token, now);
    expect(reread).toEqual(first);
    expect(reread).not.toBe(first);
  });
});
