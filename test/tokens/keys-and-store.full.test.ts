import { chmodSync, chownSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createLocalJWKSet, jwtVerify } from 'jose';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { StartError } from '../../src/lib/start-error.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { createKeyringFile, rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type CommandResult, runGatehouse } from '../support/command-line.ts';
import { decodeJwt, keyFilePath, loadKeyring, splitRefreshToken } from '../support/forged-tokens.ts';
import { createCrl } from '../support/pki.ts';
import { withIntegration, withTokens } from '../support/reconfigure.ts';
import { type Reply, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Keys and tokens in a running gateway: fingerprints in the store, rotation, algorithms, binding, policies. */
let gateway: TestGateway;
beforeEach(async () => {
  gateway = await startGateway();
});
afterEach(() => gateway.close());

const parseGrant = (reply: Reply): TokenGrant => {
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};
const refresh = async (token: string): Promise<TokenGrant> => parseGrant(await gateway.refresh(token));
const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
const rotateKeys = async (change: Partial<Parameters<typeof rotateKeyring>[1]> = {}): Promise<void> => {
  const given = {
    alg: 'EdDSA',
    now: gateway.clock.now(),
    publishBefore: 300,
    keep: 90 * 86_400,
    ...change,
  } as const;
  writeKeyringFile(keyFilePath(gateway), rotateKeyring(loadKeyring(gateway), given), { replace: true });
  await gateway.reload((settings) => settings);
};
const check = (): Promise<CommandResult> => runGatehouse(['check', '--config', join(gateway.folder, 'gatehouse.yaml')]);
/** Expects that the gateway does not start after `damage`, that `gatehouse check` reports it, and that `repair` is enough. */
async function expectNoStart(damage: () => void, message: RegExp, repair: () => void): Promise<void> {
  const failure = await gateway.restart(damage).catch((error: unknown) => error);
  expect(failure).toBeInstanceOf(StartError);
  expect((failure as StartError).message).toMatch(message);
  expect(await check()).toMatchObject({ code: 78, stderr: expect.stringMatching(message) });
  repair();
  expect(await check()).toMatchObject({ code: 0 });
  await gateway.restart();
}

describe('the key file and the store belong together', () => {
  test('a new installation creates its keys, readable by the owner only', () => {
    expect(statSync(keyFilePath(gateway)).mode & 0o777).toBe(0o600);
  });

  test('a missing key file with existing grants is a start error, and no new key file is created', async () => {
    const grant = await gateway.grant();
    const movedFile = join(gateway.folder, 'keys-moved.json');
    await expectNoStart(
      () => renameSync(keyFilePath(gateway), movedFile),
      /keys\.file.*missing.*the store.* holds grants/,
      () => renameSync(movedFile, keyFilePath(gateway)),
    );
    await refresh(grant.refresh_token);
  });

  test('other keys with existing grants are a start error that names the missing key', async () => {
    const grant = await gateway.grant();
    const original = loadKeyring(gateway);
    await expectNoStart(
      () => writeKeyringFile(keyFilePath(gateway), createKeyringFile('EdDSA'), { replace: true }),
      /lacks the key .*not the keys that this store was written with/,
      () => writeKeyringFile(keyFilePath(gateway), original, { replace: true }),
    );
    await refresh(grant.refresh_token);
  });

  test('another key with the same kid is a start error', async () => {
    const grant = await gateway.grant();
    const original = loadKeyring(gateway);
    const other = createKeyringFile('EdDSA');
    const [sealing] = original.sealing;
    const forged = {
      ...original,
      sealing: other.sealing.map((key) => ({ ...key, kid: sealing?.kid ?? '' })),
    };
    await expectNoStart(
      () => writeKeyringFile(keyFilePath(gateway), forged, { replace: true }),
      /has a different key with the id/,
      () => writeKeyringFile(keyFilePath(gateway), original, { replace: true }),
    );
    await refresh(grant.refresh_token);
  });

  test('a reload with other keys is rejected, and the gateway keeps its own', async () => {
    const grant = await gateway.grant();
    writeKeyringFile(keyFilePath(gateway), createKeyringFile('EdDSA'), { replace: true });
    await expect(gateway.reload((settings) => settings)).rejects.toThrow(StartError);
    await refresh(grant.refresh_token);
  });

  test('`gatehouse check` compares the keys with the store of a running gateway', async () => {
    const grant = await gateway.grant();
    expect(await check()).toMatchObject({ code: 0 });
    const original = loadKeyring(gateway);
    writeKeyringFile(keyFilePath(gateway), createKeyringFile('EdDSA'), { replace: true });
    expect(await check()).toMatchObject({ code: 78, stderr: expect.stringContaining('lacks the key') });
    writeKeyringFile(keyFilePath(gateway), original, { replace: true });
    await rotateKeys();
    expect(await check()).toMatchObject({ code: 0 });
    await refresh(grant.refresh_token);
  });

  test.runIf(process.geteuid?.() === 0)(
    '`gatehouse check` does not open the store of another user, and says so',
    async () => {
      const data = join(gateway.folder, 'data/data.mdb');
      chownSync(data, 65_534, 65_534);
      writeKeyringFile(keyFilePath(gateway), createKeyringFile('EdDSA'), { replace: true });
      const { code, stdout } = await check();
      expect(code).toBe(0);
      expect(stdout).toMatch(/^note: store\.path: .* belongs to another user/m);
    },
  );

  test('a key file that others can read is a start error', async () => {
    await expectNoStart(
      () => chmodSync(keyFilePath(gateway), 0o644),
      /chmod 600/,
      () => chmodSync(keyFilePath(gateway), 0o600),
    );
  });

  test('a damaged key file is a start error that quotes none of its contents', async () => {
    const text = readFileSync(keyFilePath(gateway), 'utf8');
    const secret = loadKeyring(gateway).sealing[0]?.secret ?? '';
    const failure = await gateway
      .restart(() => writeFileSync(keyFilePath(gateway), text.slice(0, -20)))
      .catch((error: unknown) => error as StartError);
    expect(failure).toBeInstanceOf(StartError);
    expect(String(failure)).not.toContain(secret.slice(0, 12));
    writeFileSync(keyFilePath(gateway), text);
    await gateway.restart();
  });

  test('a missing key file with an empty store is created again', async () => {
    const before = loadKeyring(gateway).signing[0]?.kid;
    await gateway.restart(() => rmSync(join(gateway.folder, 'data'), { recursive: true }));
    expect(loadKeyring(gateway).signing[0]?.kid).not.toBe(before);
    expect(await call((await gateway.grant()).access_token)).toBe(200);
  });
});

describe('rotation in a running gateway', () => {
  test('grants from before a rotation keep working and can be refreshed through both key changes', async () => {
    const grant = await gateway.grant();
    const before = splitRefreshToken(grant.refresh_token).kid;
    await rotateKeys();
    const published = await refresh(grant.refresh_token);
    expect(splitRefreshToken(published.refresh_token).kid).toBe(before);
    gateway.clock.advance(301);
    expect(await call(published.access_token)).toBe(200);
    const changed = await refresh(published.refresh_token);
    expect(splitRefreshToken(changed.refresh_token).kid).not.toBe(before);
    expect(decodeJwt(changed.access_token).header['kid']).not.toBe(decodeJwt(published.access_token).header['kid']);
    expect([await call(published.access_token), await call(changed.access_token)]).toEqual([200, 200]);
  });

  test('a retry after the key change gets the same tokens', async () => {
    const grant = await gateway.grant();
    await rotateKeys({ publishBefore: 5 });
    const second = await refresh(grant.refresh_token);
    gateway.clock.advance(8);
    expect(await refresh(grant.refresh_token)).toMatchObject({
      access_token: second.access_token,
      refresh_token: second.refresh_token,
    });
  });

  test('a retired sealing key is no longer accepted, and retired keys may be removed from the file', async () => {
    const grant = await gateway.grant();
    await rotateKeys({ publishBefore: 0, keep: 1_000 });
    gateway.clock.advance(1_001);
    expect((await gateway.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
    await rotateKeys();
    expect(loadKeyring(gateway).signing).toHaveLength(2);
    await gateway.restart();
    expect(await call((await gateway.grant()).access_token)).toBe(200);
  });

  test('a device code requested before the key change is found by its user code after it', async () => {
    await rotateKeys({ publishBefore: 2 });
    const { createDeviceClient } = await import('../support/device-client.ts');
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    gateway.clock.advance(5);
    await steps.decideInBrowser(codes);
    parseGrant(await steps.exchange(codes.device_code));
  });
});

describe('algorithms', () => {
  test('ES256 works end to end, and other parties can verify the tokens with the public keys', async () => {
    const original = await startGateway((settings) => ({ ...settings, keys: { algorithm: 'ES256' } }));
    try {
      const grant = await original.grant();
      expect(decodeJwt(grant.access_token).header).toMatchObject({ alg: 'ES256', typ: 'at+jwt' });
      expect((await original.api('/files/1', grant.access_token)).status).toBe(200);
      const next = parseGrant(await original.refresh(grant.refresh_token));
      const retried = parseGrant(await original.refresh(grant.refresh_token));
      expect(retried.refresh_token).toBe(next.refresh_token);
      // The signature may differ, the claims may not.
      expect(decodeJwt(retried.access_token).claims).toEqual(decodeJwt(next.access_token).claims);
      expect((await original.api('/files/1', retried.access_token)).status).toBe(200);
      const { signingKeys } = await openKeyring(loadKeyring(original));
      const keys = createLocalJWKSet({ keys: signingKeys.map(({ publicJwk }) => publicJwk) });
      const { payload } = await jwtVerify(next.access_token, keys, {
        issuer: 'https://localhost:8443',
        audience: 'https://localhost:8443',
        typ: 'at+jwt',
        currentDate: new Date(original.clock.now() * 1_000),
      });
      expect(payload['client_id']).toBe('report-runner');
      const headers = { authorization: `Bearer ${retried.access_token}` };
      expect((await original.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
      expect((await original.api('/files/1', next.access_token)).status).toBe(401);
    } finally {
      await original.close();
    }
  });

  test('an access token has the claims of RFC 9068 and those of its grant', async () => {
    const grant = await gateway.grant();
    const { claims, header } = decodeJwt(grant.access_token);
    const { grantId } = splitRefreshToken(grant.refresh_token);
    expect(header).toEqual({ alg: 'EdDSA', typ: 'at+jwt', kid: loadKeyring(gateway).signing[0]?.kid });
    expect(claims).toEqual({
      iss: 'https://localhost:8443',
      aud: 'https://localhost:8443',
      preferred_username: 'alice',
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

describe('token settings', () => {
  test('bindToCertificate: tokens have cnf and work only with their certificate, for requests and refreshes', async () => {
    await gateway.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const grant = await gateway.grant();
    const { alice, bob } = gateway.users;
    const thumbprint = new Uint8Array(await crypto.subtle.digest('SHA-256', new Uint8Array(alice.der)));
    expect(decodeJwt(grant.access_token).claims['cnf']).toEqual({
      'x5t#S256': Buffer.from(thumbprint).toString('base64url'),
    });
    const refresh = (as?: typeof alice): Promise<Reply> =>
      gateway.post(
        '/Authorize/Token',
        { client_id: 'report-runner', refresh_token: grant.refresh_token },
        as ? { as } : {},
      );
    for (const wrong of [undefined, bob]) {
      expect((await gateway.api('/files/1', grant.access_token, wrong ? { as: wrong } : {})).status).toBe(401);
      expect((await refresh(wrong)).json).toMatchObject({ Error: 'invalid_grant' });
    }
    expect((await gateway.api('/files/1', grant.access_token, { as: alice })).status).toBe(200);
    const next = parseGrant(await refresh(alice));
    expect(decodeJwt(next.access_token).claims['cnf']).toEqual(decodeJwt(grant.access_token).claims['cnf']);
  });

  test('bindToCertificate: a grant whose certificate was revoked cannot be refreshed, but is not revoked itself', async () => {
    await gateway.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const { alice } = gateway.users;
    const grant = await gateway.grant();
    const refresh = (): Promise<Reply> =>
      gateway.post(
        '/Authorize/Token',
        { client_id: 'report-runner', refresh_token: grant.refresh_token },
        { as: alice },
      );
    const crl = await createCrl(gateway.ca, { revoked: [alice], nextUpdate: new Date(Date.now() + 9e11) });
    writeFileSync(`${gateway.folder}/ca.crl`, crl.pem);
    const withList = (crls: string[]) => (settings: SettingsInput) => ({
      ...settings,
      certificates: { ...settings.certificates, crls },
    });
    await gateway.reload(withList(['ca.crl']));
    try {
      expect(await refresh()).toMatchObject({
        status: 400,
        json: { Error: 'invalid_grant', Error_description: expect.stringContaining('revoked') },
      });
      const standard = await gateway.request({
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
      await gateway.reload(withList([]));
    }
    expect((await refresh()).status).toBe(200);
  });

  test('bindToCertificate: a bound grant stays bound when the setting is disabled', async () => {
    await gateway.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const grant = await gateway.grant();
    await gateway.reload(withIntegration('report-runner', { bindToCertificate: false }));
    expect(await call(grant.access_token)).toBe(401);
    expect((await gateway.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('supersede: a refresh revokes all earlier access tokens at once, also after a restart, and a retry returns the same tokens', async () => {
    await gateway.reload(withTokens({ refresh: { supersede: true } }));
    const first = await gateway.grant();
    const second = await refresh(first.refresh_token);
    expect(await refresh(first.refresh_token)).toMatchObject({ access_token: second.access_token });
    expect([await call(first.access_token), await call(second.access_token)]).toEqual([401, 200]);
    const third = await refresh(second.refresh_token);
    await gateway.restart();
    expect([await call(second.access_token), await call(third.access_token)]).toEqual([401, 200]);
    await refresh(third.refresh_token);
  });

  test('reuse: reject leaves grant and access tokens valid when a spent token is presented', async () => {
    await gateway.reload(withTokens({ refresh: { reuse: 'reject' } }));
    const first = await gateway.grant();
    const second = await refresh(first.refresh_token);
    gateway.clock.advance(60);
    const reply = await gateway.refresh(first.refresh_token);
    expect(reply.json).toMatchObject({ Error: 'invalid_grant' });
    expect(gateway.auditEvents('refresh_reuse').at(-1)).toMatchObject({ action: 'refused' });
    expect([await call(first.access_token), await call(second.access_token)]).toEqual([200, 200]);
    await refresh(second.refresh_token);
  });

  test('lifetimes: a changed access lifetime applies from the next refresh, and never beyond the grant', async () => {
    await gateway.reload(withIntegration('report-runner', { accessLifetime: '10m', grantLifetime: '20m' }));
    const first = await gateway.grant();
    expect(first.refresh_until - first.expires).toBe(600);
    await gateway.reload(withIntegration('report-runner', { accessLifetime: '15m', grantLifetime: '20m' }));
    gateway.clock.advance(120);
    const second = await refresh(first.refresh_token);
    expect(second.refresh_until - second.expires).toBeGreaterThanOrEqual(178);
    gateway.clock.advance(600);
    const third = await refresh(second.refresh_token);
    expect(third.expires).toBe(first.refresh_until);
  });
});
