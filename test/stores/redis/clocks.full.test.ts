import { describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { revokeAllGrants } from '../../../src/grants/revoke.ts';
import {
  createKeyringFile,
  readKeyringFile,
  rotateKeyring,
  writeKeyringFile,
} from '../../../src/tokens/keyring-file.ts';
import { call, eventually, gatewaysOnRedis, redisUrl, revoke } from '../../support/gateways-on-redis.ts';
import { ALICE, type TokenGrant } from '../../support/test-gateway.ts';

const { connectTo, folder, startGatewayOn, startServer, startTwoGateways } = gatewaysOnRedis();

describe('S15 clocks', () => {
  test('with a clock that is 40 s off, tokens are verified but not issued until the clock is correct, and both are logged', async () => {
    const [gateway] = await startTwoGateways();
    const grant = await gateway.grant();
    const getReadiness = async (query = ''): Promise<number> =>
      (await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz${query}`)).status;
    for (const step of [40, -40]) {
      gateway.clearLog();
      gateway.clock.advance(step);
      await expect(gateway.grant()).rejects.toThrow(/400 .*invalid_request.*temporary/is);
      const refresh = await gateway.refresh(grant.refresh_token);
      expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
      expect(Number(refresh.headers['retry-after'])).toBeGreaterThan(0);
      expect(await getReadiness()).toBe(503);
      // Also for the probe of the chart: another replica can issue tokens.
      expect(await getReadiness('?exclude=store')).toBe(503);
      expect(await getReadiness('?exclude=clock')).toBe(200);
      await eventually(() => expect(gateway.logLines.join()).toMatch(/differ by [34]\d\.\d s; no tokens are issued/));
      // With the clock ahead, the token is still valid; with the clock behind, it was issued in the future.
      expect(await call(gateway, grant)).toBe(step > 0 ? 200 : 401);
      // Revocation does not depend on the clock.
      if (step > 0) {
        gateway.clock.advance(-step);
        const revokedGrant = await gateway.grant();
        gateway.clock.advance(step);
        expect((await revoke(gateway, revokedGrant)).status).toBe(200);
      }
      gateway.clock.advance(-step);
      expect(await call(gateway, grant)).toBe(200);
      await eventually(async () => expect(await getReadiness()).toBe(200));
      await eventually(() => expect(gateway.logLines.join()).toMatch(/clocks of Redis and this host agree again/));
      expect(await call(gateway, await gateway.grant())).toBe(200);
    }
    expect((await gateway.refresh(grant.refresh_token)).status).toBe(200);
  });

  test('retry windows and leases use the clock of Redis: after a clock step of 25 s a retried refresh works, and tokens are accepted', async () => {
    const [gateway, other] = await startTwoGateways();
    for (const step of [25, -25]) {
      const grant = await gateway.grant();
      const first = await gateway.refresh(grant.refresh_token);
      gateway.clock.advance(step);
      const repeated = await gateway.refresh(grant.refresh_token);
      expect(repeated.json['refresh_token']).toBe(first.json['refresh_token']);
      expect(repeated.status).toBe(200);
      expect(await call(other, first.json as unknown as TokenGrant)).toBe(200);
      gateway.clock.advance(-step);
      expect(await call(gateway, first.json as unknown as TokenGrant)).toBe(200);
    }
  });

  test('a token from a clock that is 4 s ahead is valid, even if its signing key is not active here yet', async () => {
    const keyFile = folder.file('rotating.json');
    writeKeyringFile(keyFile, createKeyringFile('EdDSA'), { replace: false });
    const change = (settings: SettingsInput): SettingsInput => ({ ...settings, keys: { file: keyFile } });
    const [ahead, behind] = await startTwoGateways(change);
    const now = Date.now() / 1_000;
    const rotated = rotateKeyring(readKeyringFile(keyFile), { alg: 'EdDSA', now, publishBefore: 15 });
    writeKeyringFile(keyFile, rotated, { replace: true });
    await ahead.reload((settings) => settings);
    await behind.reload((settings) => settings);
    const activeFrom = Math.max(...rotated.signing.map((key) => key.activeFrom));
    const old = await ahead.grant();
    // Two seconds before the activation and one second after it.
    behind.clock.advance(activeFrom - 2 - behind.clock.now());
    ahead.clock.advance(activeFrom + 1 - ahead.clock.now());
    const fresh = await ahead.grant();
    const readKid = ({ access_token: token }: TokenGrant): string =>
      JSON.parse(Buffer.from(token.split('.', 1)[0] ?? '', 'base64url').toString())['kid'];
    expect(readKid(fresh)).not.toBe(readKid(old));
    expect([await call(behind, fresh), await call(behind, old)]).toEqual([200, 200]);
    expect((await behind.refresh(fresh.refresh_token)).status).toBe(200);
    // Too long before the activation such a token is refused.
    behind.clock.advance(-8);
    expect(await call(behind, await ahead.grant())).toBe(401);
  });

  test('V09 S15 a token revoked by a process whose clock is ahead stays revoked when Redis and all processes lose their data', async () => {
    const redis = await startServer();
    const ahead = await startGatewayOn(redisUrl(redis));
    ahead.clock.advance(20);
    const revoked = await ahead.grant();
    expect(await call(ahead, revoked)).toBe(200);
    expect((await revoke(ahead, revoked)).status).toBe(200);
    await ahead.close();
    await connectTo(redis.port).flushall();
    const restarted = await startGatewayOn(redisUrl(redis));
    restarted.clock.advance(20);
    expect(await call(restarted, revoked)).toBe(401);
    expect(await call(restarted, await restarted.grant())).toBe(200);
  });

  test('V09 S15 a grant issued by a process whose clock is ahead is revoked with all grants of its identity', async () => {
    const [ahead, other] = await startTwoGateways();
    ahead.clock.advance(20);
    const grant = await ahead.grant();
    const { store } = other.server;
    await revokeAllGrants({ store, now: () => other.clock.now() }, { of: 'identity', identity: ALICE }, 86_400);
    expect(await call(other, grant)).toBe(401);
    for (const gateway of [ahead, other]) {
      const refresh = await gateway.refresh(grant.refresh_token);
      expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_grant']);
    }
  });
});
