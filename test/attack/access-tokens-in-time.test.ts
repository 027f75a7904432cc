import { randomBytes } from 'node:crypto';
import { Agent } from 'node:https';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { createMint } from '../../src/tokens/mint.ts';
import { base64url, keyFileOf, keysOf, openJwt, signAs } from '../support/forge.ts';
import { heapAfterCollection } from '../support/heap.ts';
import { type House, openHouse, type TokenGrant } from '../support/house.ts';
import { withIntegration, withoutIntegration } from '../support/reconfigure.ts';

/** Rows T11, T15, T17, T19, T20: what changes while a token is known, and tokens that are only meant to cost. */
let house: House;
beforeEach(async () => {
  house = await openHouse();
});
afterEach(() => house.close());

const call = async (token: string, path = '/files/1'): Promise<number> =>
  (await house.api(path, token)).status;
const read = async (token: string): Promise<TokenGrant> => {
  const reply = await house.refresh(token);
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};
/** Rotates the key file as `gatehouse keys rotate` does, and has it read. */
async function rotate({
  publishBefore = 300,
  keep = 7_200,
} = {}): Promise<{ before: string; after: string }> {
  const keys = keysOf(house);
  const next = rotateKeyring(keys, { alg: 'EdDSA', now: house.clock.now(), publishBefore, keep });
  writeKeyringFile(keyFileOf(house), next, { replace: true });
  await house.reload((settings) => settings);
  return { before: keys.signing.at(-1)?.kid ?? '', after: next.signing.at(-1)?.kid ?? '' };
}

describe('keys', () => {
  test('T11: a key that is published but not active signs nothing that counts', async () => {
    const { access_token } = await house.grant();
    const { after } = await rotate();
    const now = Math.floor(house.clock.now());
    const claims = { ...openJwt(access_token).claims, iat: now, exp: now + 3_000 };
    const early = signAs(keysOf(house), JSON.stringify(claims), {}, after);
    expect(await call(early)).toBe(401);
    expect(openJwt((await house.grant()).access_token).header['kid']).not.toBe(after);
    house.clock.advance(301);
    expect(await call(early), 'it was not remembered as refused').toBe(200);
    expect(openJwt((await house.grant()).access_token).header['kid']).toBe(after);
  });

  test('T11: a key that only checks is good until its retire_at, and not after', async () => {
    await house.reload(withIntegration('report-runner', { accessLifetime: '10h' }));
    const grant = await house.grant();
    await rotate({ publishBefore: 300, keep: 7_200 });
    house.clock.advance(301);
    expect(await call(grant.access_token)).toBe(200);
    house.clock.advance(7_190);
    expect(await call(grant.access_token)).toBe(200);
    house.clock.advance(20);
    expect(await call(grant.access_token)).toBe(401);
  });

  test('T19: a remembered token of a key that retires is refused from that second on, without a reload', async () => {
    await house.reload(withIntegration('report-runner', { accessLifetime: '10h' }));
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    await rotate({ publishBefore: 0, keep: 600 });
    expect(await call(access_token)).toBe(200);
    house.clock.advance(601);
    expect(await call(access_token)).toBe(401);
  });
});

describe('remembered tokens', () => {
  test('T19: revoked: the next request is refused', async () => {
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    expect(await call(access_token)).toBe(200);
    const headers = { authorization: `Bearer ${access_token}` };
    expect((await house.ask({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    expect(await call(access_token)).toBe(401);
  });

  test('T19: the integration is narrowed: the next request is refused, and what is left still works', async () => {
    const { access_token } = await house.grant({ scope: 'files:read;reports:write' });
    expect(await call(access_token, '/reports/1')).toBe(200);
    await house.reload(withIntegration('report-runner', { scope: 'files:read' }));
    expect(await call(access_token, '/reports/1')).toBe(403);
    const reply = await house.api('/files/1', access_token);
    expect(reply.json['headers']).toMatchObject({ 'x-forwarded-scope': 'files:read' });
  });

  test('T19: the integration is removed: the next request is refused', async () => {
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    await house.reload(withoutIntegration('report-runner'));
    expect(await call(access_token)).toBe(401);
  });

  test('T19: a rule asks for more than before: the next request is refused', async () => {
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    await house.reload((settings) => ({
      ...settings,
      routes: [{ path: '/files/**', requires: 'reports:write' }],
    }));
    expect(await call(access_token)).toBe(403);
  });

  test('T19: expiry passes: the next request is refused', async () => {
    const { access_token, expires } = await house.grant();
    expect(await call(access_token)).toBe(200);
    house.clock.advance(expires - house.clock.now());
    expect(await call(access_token)).toBe(401);
  });

  test('T17: a certificate-bound token without its certificate, or with another, is refused, also when it is remembered', async () => {
    await house.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const { access_token, refresh_token } = await house.grant();
    const as = async (who?: 'alice' | 'bob'): Promise<number> =>
      (await house.api('/files/1', access_token, who === undefined ? {} : { as: house.people[who] })).status;
    expect(await as()).toBe(401);
    expect(await as('alice')).toBe(200);
    expect(await as('bob')).toBe(401);
    expect(await as()).toBe(401);
    expect(await as('alice')).toBe(200);
    expect((await house.refresh(refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('T17: the certificate a stranger writes in a header is not the certificate of the connection', async () => {
    await house.reload(withIntegration('report-runner', { bindToCertificate: true }));
    const { access_token } = await house.grant();
    const { der, pem } = house.people.alice;
    const headers = {
      'client-cert': `:${der.toString('base64')}:`,
      'x-forwarded-client-cert': `Cert="${encodeURIComponent(pem)}"`,
      'x-ssl-client-cert': encodeURIComponent(pem),
    };
    expect((await house.api('/files/1', access_token, { headers })).status).toBe(401);
  });
});

describe('cost', () => {
  test('T15: a token over 8 KiB is refused, a head over 16 KiB is 431, and the house goes on', async () => {
    const { access_token } = await house.grant();
    expect(await call(`${access_token}${'A'.repeat(9_000)}`)).toBe(401);
    for (const length of [17_000, 1_000_000]) {
      // The listener may close while a head of this size is still on its way.
      const agent = new Agent({ keepAlive: false, ca: house.ca.pem });
      const status = await house
        .api('/files/1', 'A'.repeat(length), { agent })
        .then((reply) => reply.status)
        .catch((error: NodeJS.ErrnoException) => error.code);
      expect([431, 'ECONNRESET', 'EPIPE']).toContain(status);
    }
    expect(await call(access_token)).toBe(200);
  });

  test('T15: claims nested ten thousand deep, or as deep as fits, are refused', async () => {
    const nested = (depth: number): string =>
      signAs(keysOf(house), '{"a":'.repeat(depth) + '1' + '}'.repeat(depth));
    const mint = createMint({
      keyring: openKeyring(keysOf(house)),
      publicUrl: 'https://localhost:8443',
      remembered: 100,
    });
    expect(await mint.readAccess(nested(10_000), house.clock.now())).toBeUndefined();
    expect(await call(nested(900))).toBe(401);
  });

  test('T20: 100,000 junk tokens: all are refused, what is remembered stays bounded, the good one goes on working', async () => {
    const grant = await house.grant();
    const [header, payload] = openJwt(grant.access_token).parts;
    const junk = (turn: number): string => {
      const noise = (bytes: number): string => randomBytes(bytes).toString('base64url');
      switch (turn % 4) {
        case 0: // The dearest: our header and payload, a signature that has to be checked.
          return `${header}.${payload}.${noise(64)}`;
        case 1:
          return `${header}.${noise(200)}.${noise(64)}`;
        case 2:
          return `${base64url({ alg: 'EdDSA', typ: 'at+jwt', kid: noise(6) })}.${payload}.${noise(64)}`;
        default:
          return noise(100);
      }
    };
    const mint = createMint({
      keyring: openKeyring(keysOf(house)),
      publicUrl: 'https://localhost:8443',
      remembered: 1_000,
    });
    const now = house.clock.now();
    const hammer = async (from: number, to: number): Promise<void> => {
      for (let turn = from; turn < to; turn += 100) {
        const batch = Array.from({ length: 100 }, async (_, at) => mint.readAccess(junk(turn + at), now));
        for (const bearer of await Promise.all(batch))
          if (bearer !== undefined) throw new Error('junk was read');
      }
    };
    await hammer(0, 10_000);
    const before = heapAfterCollection();
    await hammer(10_000, 98_000);
    expect(heapAfterCollection() - before).toBeLessThan(16 * 1_024 * 1_024);
    expect(await mint.readAccess(grant.access_token, now)).toMatchObject({ clientId: 'report-runner' });

    const calls = house.upstream.calls.length;
    for (let turn = 0; turn < 2_000; turn += 50) {
      const batch = await Promise.all(Array.from({ length: 50 }, (_, at) => call(junk(turn + at))));
      expect(new Set(batch)).toEqual(new Set([401]));
    }
    expect(house.upstream.calls.length).toBe(calls);
    expect(await call(grant.access_token)).toBe(200);
  });

  test('T20: remembered tokens are pushed out by newer ones and are then checked anew', async () => {
    const mint = createMint({
      keyring: openKeyring(keysOf(house)),
      publicUrl: 'https://localhost:8443',
      remembered: 100,
    });
    const now = house.clock.now();
    const grant = await house.grant();
    const first = await mint.readAccess(grant.access_token, now);
    expect(await mint.readAccess(grant.access_token, now)).toBe(first);
    let { refresh_token } = grant;
    for (let turn = 0; turn < 150; turn += 1) {
      const next = await read(refresh_token);
      ({ refresh_token } = next);
      await mint.readAccess(next.access_token, now);
    }
    const again = await mint.readAccess(grant.access_token, now);
    expect(again).toEqual(first);
    expect(again).not.toBe(first);
  });
});
