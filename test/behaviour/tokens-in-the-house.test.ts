import { chmodSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createLocalJWKSet, jwtVerify } from 'jose';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { StartError } from '../../src/gateway/start-error.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { newKeyring, rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { keyFileOf, keysOf, openJwt, openRefresh } from '../support/forge.ts';
import { type House, openHouse, type Reply, type TokenGrant } from '../support/house.ts';
import { makeCrl } from '../support/pki.ts';
import { withIntegration, withTokens } from '../support/reconfigure.ts';

/** Keys and tokens in a running gatehouse: fingerprints in the store, rotation, algorithms, binding, policies. */
let house: House;
beforeEach(async () => {
  house = await openHouse();
});
afterEach(() => house.close());

const read = (reply: Reply): TokenGrant => {
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};
const rotated = async (token: string): Promise<TokenGrant> => read(await house.refresh(token));
const call = async (token: string): Promise<number> => (await house.api('/files/1', token)).status;
const rotate = async (change: Partial<Parameters<typeof rotateKeyring>[1]> = {}): Promise<void> => {
  const given = {
    alg: 'EdDSA',
    now: house.clock.now(),
    publishBefore: 300,
    keep: 90 * 86_400,
    ...change,
  } as const;
  writeKeyringFile(keyFileOf(house), rotateKeyring(keysOf(house), given), { replace: true });
  await house.reload((settings) => settings);
};
/** A house that does not start; and that starts again once `undone`. */
async function expectNoStart(broken: () => void, words: RegExp, undone: () => void): Promise<void> {
  const failure = await house.restart(broken).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(StartError);
  expect((failure as StartError).message).toMatch(words);
  undone();
  await house.restart();
}

describe('the key file and the store belong together', () => {
  test('a fresh installation makes its keys, readable by the owner only', () => {
    expect(statSync(keyFileOf(house)).mode & 0o777).toBe(0o600);
  });

  test('a missing key file beside grants is a start error, not a new key file', async () => {
    const grant = await house.grant();
    const away = join(house.folder, 'keys-away.json');
    await expectNoStart(
      () => renameSync(keyFileOf(house), away),
      /keys\.file.*missing.*store holds grants/,
      () => renameSync(away, keyFileOf(house)),
    );
    await rotated(grant.refresh_token);
  });

  test('other keys beside grants are a start error that names what is lacking', async () => {
    const grant = await house.grant();
    const own = keysOf(house);
    await expectNoStart(
      () => writeKeyringFile(keyFileOf(house), newKeyring('EdDSA'), { replace: true }),
      /lacks the key .*not the keys this store was written under/,
      () => writeKeyringFile(keyFileOf(house), own, { replace: true }),
    );
    await rotated(grant.refresh_token);
  });

  test('another key under the old name is a start error', async () => {
    const grant = await house.grant();
    const own = keysOf(house);
    const other = newKeyring('EdDSA');
    const [sealing] = own.sealing;
    const forged = { ...own, sealing: other.sealing.map((key) => ({ ...key, kid: sealing?.kid ?? '' })) };
    await expectNoStart(
      () => writeKeyringFile(keyFileOf(house), forged, { replace: true }),
      /has another key under the name/,
      () => writeKeyringFile(keyFileOf(house), own, { replace: true }),
    );
    await rotated(grant.refresh_token);
  });

  test('a reload with other keys is refused, and the house goes on with its own', async () => {
    const grant = await house.grant();
    writeKeyringFile(keyFileOf(house), newKeyring('EdDSA'), { replace: true });
    await expect(house.reload((settings) => settings)).rejects.toThrow(StartError);
    await rotated(grant.refresh_token);
  });

  test('a key file that others can read is a start error', async () => {
    await expectNoStart(
      () => chmodSync(keyFileOf(house), 0o644),
      /chmod 600/,
      () => chmodSync(keyFileOf(house), 0o600),
    );
  });

  test('a damaged key file is a start error that quotes none of it', async () => {
    const text = readFileSync(keyFileOf(house), 'utf8');
    const secret = keysOf(house).sealing[0]?.secret ?? '';
    const failure = await house
      .restart(() => writeFileSync(keyFileOf(house), text.slice(0, -20)))
      .catch((error: unknown) => error as StartError);
    expect(failure).toBeInstanceOf(StartError);
    expect(String(failure)).not.toContain(secret.slice(0, 12));
    writeFileSync(keyFileOf(house), text);
    await house.restart();
  });

  test('a missing key file beside an empty store is made anew', async () => {
    const before = keysOf(house).signing[0]?.kid;
    await house.restart(() => rmSync(join(house.folder, 'data'), { recursive: true }));
    expect(keysOf(house).signing[0]?.kid).not.toBe(before);
    expect(await call((await house.grant()).access_token)).toBe(200);
  });
});

describe('rotation in the house', () => {
  test('grants from before a rotation go on working and refreshing, through both changes of key', async () => {
    const grant = await house.grant();
    const before = openRefresh(grant.refresh_token).kid;
    await rotate();
    const published = await rotated(grant.refresh_token);
    expect(openRefresh(published.refresh_token).kid).toBe(before);
    house.clock.advance(301);
    expect(await call(published.access_token)).toBe(200);
    const changed = await rotated(published.refresh_token);
    expect(openRefresh(changed.refresh_token).kid).not.toBe(before);
    expect(openJwt(changed.access_token).header['kid']).not.toBe(
      openJwt(published.access_token).header['kid'],
    );
    expect([await call(published.access_token), await call(changed.access_token)]).toEqual([200, 200]);
  });

  test('a retry across the change of keys gets the same strings', async () => {
    const grant = await house.grant();
    await rotate({ publishBefore: 5 });
    const second = await rotated(grant.refresh_token);
    house.clock.advance(8);
    expect(await rotated(grant.refresh_token)).toMatchObject({
      access_token: second.access_token,
      refresh_token: second.refresh_token,
    });
  });

  test('a retired sealing key opens nothing any more, and keys may leave the file when they have retired', async () => {
    const grant = await house.grant();
    await rotate({ publishBefore: 0, keep: 1_000 });
    house.clock.advance(1_001);
    expect((await house.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
    await rotate();
    expect(keysOf(house).signing).toHaveLength(2);
    await house.restart();
    expect(await call((await house.grant()).access_token)).toBe(200);
  });

  test('a device code asked for before the change of keys is found by its user code after it', async () => {
    await rotate({ publishBefore: 2 });
    const { deviceSteps } = await import('../support/device-steps.ts');
    const steps = deviceSteps(house);
    const codes = await steps.ask();
    house.clock.advance(5);
    await steps.walk(codes);
    read(await steps.exchange(codes.device_code));
  });
});

describe('algorithms', () => {
  test('ES256 works end to end, and other parties can check the tokens with the public keys', async () => {
    const own = await openHouse((settings) => ({ ...settings, keys: { algorithm: 'ES256' } }));
    try {
      const grant = await own.grant();
      expect(openJwt(grant.access_token).header).toMatchObject({ alg: 'ES256', typ: 'at+jwt' });
      expect((await own.api('/files/1', grant.access_token)).status).toBe(200);
      const next = read(await own.refresh(grant.refresh_token));
      const again = read(await own.refresh(grant.refresh_token));
      expect(again.refresh_token).toBe(next.refresh_token);
      // The signature may differ; what is signed may not.
      expect(openJwt(again.access_token).claims).toEqual(openJwt(next.access_token).claims);
      expect((await own.api('/files/1', again.access_token)).status).toBe(200);
      const keys = createLocalJWKSet({ keys: [...openKeyring(keysOf(own)).publicKeys] as never });
      const { payload } = await jwtVerify(next.access_token, keys, {
        issuer: 'https://localhost:8443',
        audience: 'https://localhost:8443',
        typ: 'at+jwt',
        currentDate: new Date(own.clock.now() * 1_000),
      });
      expect(payload['client_id']).toBe('report-runner');
      const headers = { authorization: `Bearer ${again.access_token}` };
      expect((await own.ask({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
      expect((await own.api('/files/1', next.access_token)).status).toBe(401);
    } finally {
      await own.close();
    }
  });

  test('an access token has the claims of RFC 9068 and those of its grant', async () => {
    const grant = await house.grant();
    const { claims, header } = openJwt(grant.access_token);
    const { grantId } = openRefresh(grant.refresh_token);
    expect(header).toEqual({ alg: 'EdDSA', typ: 'at+jwt', kid: keysOf(house).signing[0]?.kid });
    expect(claims).toEqual({
      iss: 'https://localhost:8443',
      aud: 'https://localhost:8443',
      sub: grant.identity,
      client_id: 'report-runner',
      scope: 'files:read',
      gid: grantId,
      gen: 1,
      jti: `${grantId}.1`,
      iat: expect.any(Number),
      exp: grant.expires,
    });
  });
});

describe('settings of tokens', () => {
  test('bindToCertificate: tokens carry cnf and work only with their certificate, at the call and at the refresh', async () => {
    await house.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const grant = await house.grant();
    const { alice, bob } = house.people;
    const thumbprint = new Uint8Array(await crypto.subtle.digest('SHA-256', new Uint8Array(alice.der)));
    expect(openJwt(grant.access_token).claims['cnf']).toEqual({
      'x5t#S256': Buffer.from(thumbprint).toString('base64url'),
    });
    const refresh = (as?: typeof alice): Promise<Reply> =>
      house.post(
        '/Authorize/Token',
        { client_id: 'report-runner', refresh_token: grant.refresh_token },
        as ? { as } : {},
      );
    for (const wrong of [undefined, bob]) {
      expect((await house.api('/files/1', grant.access_token, wrong ? { as: wrong } : {})).status).toBe(401);
      expect((await refresh(wrong)).json).toMatchObject({ Error: 'invalid_grant' });
    }
    expect((await house.api('/files/1', grant.access_token, { as: alice })).status).toBe(200);
    const next = read(await refresh(alice));
    expect(openJwt(next.access_token).claims['cnf']).toEqual(openJwt(grant.access_token).claims['cnf']);
  });

  test('bindToCertificate: a grant whose certificate was revoked is refreshed no more, and is not destroyed', async () => {
    await house.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const { alice } = house.people;
    const grant = await house.grant();
    const refresh = (): Promise<Reply> =>
      house.post(
        '/Authorize/Token',
        { client_id: 'report-runner', refresh_token: grant.refresh_token },
        { as: alice },
      );
    const crl = await makeCrl(house.ca, { revoked: [alice], nextUpdate: new Date(Date.now() + 9e11) });
    writeFileSync(`${house.folder}/ca.crl`, crl.pem);
    const withList = (crls: string[]) => (settings: SettingsInput) => ({
      ...settings,
      certificates: { ...settings.certificates, crls },
    });
    await house.reload(withList(['ca.crl']));
    try {
      expect(await refresh()).toMatchObject({
        status: 400,
        json: { Error: 'invalid_grant', Error_description: expect.stringContaining('revoked') },
      });
      const standard = await house.ask({
        method: 'POST',
        path: '/authsvc/oauth2/token',
        headers: { 'content-type': 'application/x-www-form-urlencoded' },
        body: new URLSearchParams({
          grant_type: 'refresh_token',
          client_id: 'report-runner',
          refresh_token: grant.refresh_token,
        }).toString(),
        as: alice,
      });
      expect(standard).toMatchObject({ status: 401, json: { error: 'invalid_client' } });
    } finally {
      await house.reload(withList([]));
    }
    expect((await refresh()).status).toBe(200);
  });

  test('bindToCertificate: a bound grant stays bound when the setting is taken back', async () => {
    await house.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const grant = await house.grant();
    await house.reload(withIntegration('report-runner', { bindToCertificate: false }));
    expect(await call(grant.access_token)).toBe(401);
    expect((await house.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('supersede: a refresh ends every former access token at once, a retry repeats the pair, a restart changes nothing', async () => {
    await house.reload(withTokens({ refresh: { supersede: true } }));
    const first = await house.grant();
    const second = await rotated(first.refresh_token);
    expect(await rotated(first.refresh_token)).toMatchObject({ access_token: second.access_token });
    expect([await call(first.access_token), await call(second.access_token)]).toEqual([401, 200]);
    const third = await rotated(second.refresh_token);
    await house.restart();
    expect([await call(second.access_token), await call(third.access_token)]).toEqual([401, 200]);
    await rotated(third.refresh_token);
  });

  test('reuse: reject leaves grant and access tokens alive when a spent token comes back', async () => {
    await house.reload(withTokens({ refresh: { reuse: 'reject' } }));
    const first = await house.grant();
    const second = await rotated(first.refresh_token);
    house.clock.advance(60);
    const reply = await house.refresh(first.refresh_token);
    expect(reply.json).toMatchObject({ Error: 'invalid_grant' });
    expect(house.audits('refresh_reuse').at(-1)).toMatchObject({ action: 'refused' });
    expect([await call(first.access_token), await call(second.access_token)]).toEqual([200, 200]);
    await rotated(second.refresh_token);
  });

  test('lifetimes: a changed access lifetime counts from the next refresh, and never beyond the grant', async () => {
    await house.reload(withIntegration('report-runner', { accessLifetime: '10m', grantLifetime: '20m' }));
    const first = await house.grant();
    expect(first.refresh_until - first.expires).toBe(600);
    await house.reload(withIntegration('report-runner', { accessLifetime: '15m', grantLifetime: '20m' }));
    house.clock.advance(120);
    const second = await rotated(first.refresh_token);
    expect(second.refresh_until - second.expires).toBeGreaterThanOrEqual(178);
    house.clock.advance(600);
    const third = await rotated(second.refresh_token);
    expect(third.expires).toBe(first.refresh_until);
  });
});
