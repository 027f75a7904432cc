import { describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { revokeAllGrants } from '../../../src/grants/revoke.ts';
import {
  createKeyringFile,
  readKeyringFile,
  rotateKeyring,
  writeKeyringFile,
} from '../../../src/tokens/keyring-file.ts';
import { call, gatewaysOnRedis, revoke, soon, through } from '../../support/gateways-on-redis.ts';
import { ALICE, type TokenGrant } from '../../support/test-gateway.ts';

const { at, folder, startGatewayOn, serve, two } = gatewaysOnRedis();

describe('S15 clocks', () => {
  test('with a clock that is 40 s off tokens are checked but not issued; it is logged, and ends when the clock is right again', async () => {
    const [gateway] = await two();
    const kept = await gateway.grant();
    const ready = async (): Promise<number> =>
      (await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`)).status;
    for (const step of [40, -40]) {
      gateway.clearLog();
      gateway.clock.advance(step);
      await expect(gateway.grant()).rejects.toThrow(/400 .*invalid_request.*temporary/is);
      const refresh = await gateway.refresh(kept.refresh_token);
      expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
      expect(Number(refresh.headers['retry-after'])).toBeGreaterThan(0);
      expect(await ready()).toBe(503);
      await soon(() =>
        expect(gateway.logLines.join()).toMatch(/differ by [34]\d\.\d s; no tokens are issued/),
      );
      // Ahead, the token is as good as it was; behind, it is from the future.
      expect(await call(gateway, kept)).toBe(step > 0 ? 200 : 401);
      // An end needs no clock.
      if (step > 0) {
        gateway.clock.advance(-step);
        const ended = await gateway.grant();
        gateway.clock.advance(step);
        expect((await revoke(gateway, ended)).status).toBe(200);
      }
      gateway.clock.advance(-step);
      expect(await call(gateway, kept)).toBe(200);
      await soon(async () => expect(await ready()).toBe(200));
      await soon(() => expect(gateway.logLines.join()).toMatch(/clocks of Redis and this host agree again/));
      expect(await call(gateway, await gateway.grant())).toBe(200);
    }
    expect((await gateway.refresh(kept.refresh_token)).status).toBe(200);
  });

  test('windows and leases follow the clock of Redis: after a step of 25 s a refresh is still repeated, and tokens are accepted', async () => {
    const [gateway, other] = await two();
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

  test('a token from a clock that is 4 s ahead is valid, also when a signing key made it that is not active here yet', async () => {
    const own = folder.file('rotating.json');
    writeKeyringFile(own, createKeyringFile('EdDSA'), { replace: false });
    const change = (settings: SettingsInput): SettingsInput => ({ ...settings, keys: { file: own } });
    const [ahead, behind] = await two(change);
    const now = Date.now() / 1_000;
    const rotated = rotateKeyring(readKeyringFile(own), { alg: 'EdDSA', now, publishBefore: 15 });
    writeKeyringFile(own, rotated, { replace: true });
    await ahead.reload((settings) => settings);
    await behind.reload((settings) => settings);
    const activeFrom = Math.max(...rotated.signing.map((key) => key.activeFrom));
    const old = await ahead.grant();
    // Two seconds before it, and two after it: four seconds apart.
    behind.clock.advance(activeFrom - 2 - behind.clock.now());
    ahead.clock.advance(activeFrom + 1 - ahead.clock.now());
    const fresh = await ahead.grant();
    const kidOf = ({ access_token: token }: TokenGrant): string =>
      JSON.parse(Buffer.from(token.split('.', 1)[0] ?? '', 'base64url').toString())['kid'];
    expect(kidOf(fresh)).not.toBe(kidOf(old));
    expect([await call(behind, fresh), await call(behind, old)]).toEqual([200, 200]);
    expect((await behind.refresh(fresh.refresh_token)).status).toBe(200);
    // Much earlier than that no such token can be.
    behind.clock.advance(-8);
    expect(await call(behind, await ahead.grant())).toBe(401);
  });

  test('V09 S15 a token that was revoked by a process whose clock is ahead stays revoked when Redis and all processes lose their data', async () => {
    const redis = await serve();
    const ahead = await startGatewayOn(through(redis));
    ahead.clock.advance(20);
    const revoked = await ahead.grant();
    expect(await call(ahead, revoked)).toBe(200);
    expect((await revoke(ahead, revoked)).status).toBe(200);
    await ahead.close();
    await at(redis.port).flushall();
    const restarted = await startGatewayOn(through(redis));
    restarted.clock.advance(20);
    expect(await call(restarted, revoked)).toBe(401);
    expect(await call(restarted, await restarted.grant())).toBe(200);
  });

  test('V09 S15 a grant that a process whose clock is ahead has issued ends with everything of its identity', async () => {
    const [ahead, other] = await two();
    ahead.clock.advance(20);
    const grant = await ahead.grant();
    const { store } = other.server;
    await revokeAllGrants(
      { store, now: () => other.clock.now() },
      { of: 'identity', identity: ALICE },
      86_400,
    );
    expect(await call(other, grant)).toBe(401);
    for (const gateway of [ahead, other]) {
      const refresh = await gateway.refresh(grant.refresh_token);
      expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_grant']);
    }
  });
});
