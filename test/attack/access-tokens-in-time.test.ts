import { Agent } from 'node:https';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { createMint } from '../../src/tokens/mint.ts';
import { keyFileOf, keysOf, openJwt, signAs } from '../support/forge.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { type Change, type House, openHouse, type TokenGrant } from '../support/house.ts';
import { withIntegration, withoutIntegration } from '../support/reconfigure.ts';
import { sendInvalidTokens } from './invalid-tokens.ts';

/** Rows T11, T15, T17, T19, T20: changes while a token is cached, and tokens that are only meant to use resources. */
freezeClock();
let house: House;
const opened: House[] = [];
const open = async (): Promise<void> => {
  house = await openHouse();
  opened.push(house);
};
beforeAll(open);
afterAll(async () => {
  for (const one of opened) await one.close();
});

const call = async (token: string, path = '/files/1'): Promise<number> =>
  (await house.api(path, token)).status;
const read = async (token: string): Promise<TokenGrant> => {
  const reply = await house.refresh(token);
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};
/** Changes the settings until the end of the test. */
async function reload(change: Change): Promise<void> {
  await house.reload((settings) => {
    onTestFinished(() => house.reload(() => settings));
    return change(settings);
  });
}
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
  // Each test rotates the keys of its gateway.
  afterEach(open);

  test('T11: a token signed by a key that is published but not active is refused', async () => {
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

  test('T11: a key that only verifies is valid until its retire_at', async () => {
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

  test('T19: a cached token of a key that retires is refused from that second on, without a reload', async () => {
    await house.reload(withIntegration('report-runner', { accessLifetime: '10h' }));
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    await rotate({ publishBefore: 0, keep: 600 });
    expect(await call(access_token)).toBe(200);
    house.clock.advance(601);
    expect(await call(access_token)).toBe(401);
  });
});

describe('cached tokens', () => {
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
    await reload(withIntegration('report-runner', { scope: 'files:read' }));
    expect(await call(access_token, '/reports/1')).toBe(403);
    const reply = await house.api('/files/1', access_token);
    expect(reply.json['headers']).toMatchObject({ 'x-forwarded-scope': 'files:read' });
  });

  test('T19: the integration is removed: the next request is refused', async () => {
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    await reload(withoutIntegration('report-runner'));
    expect(await call(access_token)).toBe(401);
  });

  test('T19: a rule asks for more than before: the next request is refused', async () => {
    const { access_token } = await house.grant();
    expect(await call(access_token)).toBe(200);
    await reload((settings) => ({
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

  test('T17: a certificate-bound token without its certificate, or with another, is refused, also when it is cached', async () => {
    await reload(withIntegration('report-runner', { bindToCertificate: true }));
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

  test('T17: a certificate in a header of an untrusted client is not the certificate of the connection', async () => {
    await reload(withIntegration('report-runner', { bindToCertificate: true }));
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

describe('resource use', () => {
  test('T15: a token over 8 KiB is refused, a head over 16 KiB is 431, and the gateway goes on', async () => {
    const { access_token } = await house.grant();
    expect(await call(`${access_token}${'A'.repeat(9_000)}`)).toBe(401);
    for (const length of [17_000, 1_000_000]) {
      // The listener may close while a head of this size is still on its way.
      const agent = new Agent({ keepAlive: false, ca: house.ca.pem });
      onTestFinished(() => agent.destroy());
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

  test('T20: 3,000 invalid tokens are all refused, the token cache stays bounded, and a valid token still works', () =>
    sendInvalidTokens(house, 3_000));

  test('T20: cached tokens are evicted by newer ones and are then verified anew', async () => {
    const mint = createMint({
      keyring: openKeyring(keysOf(house)),
      publicUrl: 'https://localhost:8443',
      remembered: 20,
    });
    const now = house.clock.now();
    const grant = await house.grant();
    const first = await mint.readAccess(grant.access_token, now);
    expect(await mint.readAccess(grant.access_token, now)).toBe(first);
    let { refresh_token } = grant;
    for (let turn = 0; turn < 30; turn += 1) {
      const next = await read(refresh_token);
      ({ refresh_token } = next);
      await mint.readAccess(next.access_token, now);
    }
    const again = await mint.readAccess(grant.access_token, now);
    expect(again).toEqual(first);
    expect(again).not.toBe(first);
  });
});
