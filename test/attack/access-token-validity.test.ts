import { Agent } from 'node:https';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createTokenIssuer } from '../../src/tokens/issuer.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { decodeJwt, keyFilePath, loadKeyring, signJwtWith } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withIntegration, withoutIntegration } from '../support/reconfigure.ts';
import { type SettingsChange, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';
import { sendInvalidTokens } from './invalid-tokens.ts';

/** Rows T11, T15, T17, T19, T20: changes while a token is cached, and tokens meant to exhaust resources. */
freezeClock();
let gateway: TestGateway;
const gateways: TestGateway[] = [];
const openGateway = async (): Promise<void> => {
  gateway = await startGateway();
  gateways.push(gateway);
};
beforeAll(openGateway);
afterAll(async () => {
  for (const started of gateways) await started.close();
});

const call = async (token: string, path = '/files/1'): Promise<number> => (await gateway.api(path, token)).status;
const refresh = async (token: string): Promise<TokenGrant> => {
  const reply = await gateway.refresh(token);
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};
/** Changes the settings until the end of the test. */
async function reload(change: SettingsChange): Promise<void> {
  await gateway.reload((settings) => {
    onTestFinished(() => gateway.reload(() => settings));
    return change(settings);
  });
}
/** Rotates the key file as `gatehouse keys rotate` does, and reloads. */
async function rotate({ publishBefore = 300, keep = 7_200 } = {}): Promise<{ before: string; after: string }> {
  const keys = loadKeyring(gateway);
  const next = rotateKeyring(keys, { alg: 'EdDSA', now: gateway.clock.now(), publishBefore, keep });
  writeKeyringFile(keyFilePath(gateway), next, { replace: true });
  await gateway.reload((settings) => settings);
  return { before: keys.signing.at(-1)?.kid ?? '', after: next.signing.at(-1)?.kid ?? '' };
}

describe('keys', () => {
  // Each test rotates the keys of its gateway.
  afterEach(openGateway);

  test('T11: a token signed by a key that is published but not active is refused', async () => {
    const { access_token } = await gateway.grant();
    const { after } = await rotate();
    const now = Math.floor(gateway.clock.now());
    const claims = { ...decodeJwt(access_token).claims, iat: now, exp: now + 3_000 };
    const early = signJwtWith(loadKeyring(gateway), JSON.stringify(claims), {}, after);
    expect(await call(early)).toBe(401);
    expect(decodeJwt((await gateway.grant()).access_token).header['kid']).not.toBe(after);
    gateway.clock.advance(301);
    expect(await call(early), 'the refusal was not cached').toBe(200);
    expect(decodeJwt((await gateway.grant()).access_token).header['kid']).toBe(after);
  });

  test('T11: a key that only verifies is valid until its retire_at', async () => {
    await gateway.reload(withIntegration('report-runner', { accessLifetime: '10h' }));
    const grant = await gateway.grant();
    await rotate({ publishBefore: 300, keep: 7_200 });
    gateway.clock.advance(301);
    expect(await call(grant.access_token)).toBe(200);
    gateway.clock.advance(7_190);
    expect(await call(grant.access_token)).toBe(200);
    gateway.clock.advance(20);
    expect(await call(grant.access_token)).toBe(401);
  });

  test('T19: a cached token of a key that retires is refused from that second on, without a reload', async () => {
    await gateway.reload(withIntegration('report-runner', { accessLifetime: '10h' }));
    const { access_token } = await gateway.grant();
    expect(await call(access_token)).toBe(200);
    await rotate({ publishBefore: 0, keep: 600 });
    expect(await call(access_token)).toBe(200);
    gateway.clock.advance(601);
    expect(await call(access_token)).toBe(401);
  });
});

describe('cached tokens', () => {
  test('T19: revoked: the next request is refused', async () => {
    const { access_token } = await gateway.grant();
    expect(await call(access_token)).toBe(200);
    expect(await call(access_token)).toBe(200);
    const headers = { authorization: `Bearer ${access_token}` };
    expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    expect(await call(access_token)).toBe(401);
  });

  test('T19: the scope of the integration is reduced: the next request is refused, and the remaining scope still works', async () => {
    const { access_token } = await gateway.grant({ scope: 'files:read;reports:write' });
    expect(await call(access_token, '/reports/1')).toBe(200);
    await reload(withIntegration('report-runner', { scope: 'files:read' }));
    expect(await call(access_token, '/reports/1')).toBe(403);
    const reply = await gateway.api('/files/1', access_token);
    expect(reply.json['headers']).toMatchObject({ 'x-forwarded-scope': 'files:read' });
  });

  test('T19: the integration is removed: the next request is refused', async () => {
    const { access_token } = await gateway.grant();
    expect(await call(access_token)).toBe(200);
    await reload(withoutIntegration('report-runner'));
    expect(await call(access_token)).toBe(401);
  });

  test('T19: a rule requires more than before: the next request is rejected', async () => {
    const { access_token } = await gateway.grant();
    expect(await call(access_token)).toBe(200);
    await reload((settings) => ({
      ...settings,
      routes: [{ path: '/files/**', requires: 'reports:write' }],
    }));
    expect(await call(access_token)).toBe(403);
  });

  test('T19: expiry passes: the next request is refused', async () => {
    const { access_token, expires } = await gateway.grant();
    expect(await call(access_token)).toBe(200);
    gateway.clock.advance(expires - gateway.clock.now());
    expect(await call(access_token)).toBe(401);
  });

  test('T17: a certificate-bound token without its certificate, or with another, is refused, also when it is cached', async () => {
    await reload(withIntegration('report-runner', { bindToCertificate: true }));
    const { access_token, refresh_token } = await gateway.grant();
    const callAs = async (user?: 'alice' | 'bob'): Promise<number> =>
      (await gateway.api('/files/1', access_token, user === undefined ? {} : { as: gateway.users[user] })).status;
    expect(await callAs()).toBe(401);
    expect(await callAs('alice')).toBe(200);
    expect(await callAs('bob')).toBe(401);
    expect(await callAs()).toBe(401);
    expect(await callAs('alice')).toBe(200);
    expect((await gateway.refresh(refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('T17: a certificate in a header of an untrusted client is not the certificate of the connection', async () => {
    await reload(withIntegration('report-runner', { bindToCertificate: true }));
    const { access_token } = await gateway.grant();
    const { der, pem } = gateway.users.alice;
    const headers = {
      'client-cert': `:${der.toString('base64')}:`,
      'x-forwarded-client-cert': `Cert="${encodeURIComponent(pem)}"`,
      'x-ssl-client-cert': encodeURIComponent(pem),
    };
    expect((await gateway.api('/files/1', access_token, { headers })).status).toBe(401);
  });
});

describe('resource use', () => {
  test('T15: a token over 8 KiB is rejected, a head over 16 KiB is 431, and the gateway keeps serving', async () => {
    const { access_token } = await gateway.grant();
    expect(await call(`${access_token}${'A'.repeat(9_000)}`)).toBe(401);
    for (const length of [17_000, 1_000_000]) {
      // The listener may close the connection before the whole head has been sent.
      const agent = new Agent({ keepAlive: false, ca: gateway.ca.pem });
      onTestFinished(() => agent.destroy());
      const status = await gateway
        .api('/files/1', 'A'.repeat(length), { agent })
        .then((reply) => reply.status)
        .catch((error: NodeJS.ErrnoException) => error.code);
      expect([431, 'ECONNRESET', 'EPIPE']).toContain(status);
    }
    expect(await call(access_token)).toBe(200);
  });

  test('T15: claims nested 10,000 levels deep, or as deep as a head allows, are refused', async () => {
    const signNestedClaims = (depth: number): string =>
      signJwtWith(loadKeyring(gateway), '{"a":'.repeat(depth) + '1' + '}'.repeat(depth));
    const issuer = createTokenIssuer({
      keyring: await openKeyring(loadKeyring(gateway)),
      publicUrl: 'https://localhost:8443',
      cacheSize: 100,
      grants: gateway.server.store.grants,
    });
    expect(await issuer.readAccessToken(signNestedClaims(10_000), gateway.clock.now())).toBeUndefined();
    expect(await call(signNestedClaims(900))).toBe(401);
  });

  test('T20: 3,000 invalid tokens are all refused, the token cache stays bounded, and a valid token still works', () =>
    sendInvalidTokens(gateway, 3_000));

  test('T20: cached tokens are evicted by newer ones and are then verified anew', async () => {
    const issuer = createTokenIssuer({
      keyring: await openKeyring(loadKeyring(gateway)),
      publicUrl: 'https://localhost:8443',
      cacheSize: 20,
      grants: gateway.server.store.grants,
    });
    const now = gateway.clock.now();
    const grant = await gateway.grant();
    const first = await issuer.readAccessToken(grant.access_token, now);
    expect(await issuer.readAccessToken(grant.access_token, now)).toBe(first);
    let { refresh_token } = grant;
    for (let attempt = 0; attempt < 30; attempt += 1) {
      const next = await refresh(refresh_token);
      ({ refresh_token } = next);
      await issuer.readAccessToken(next.access_token, now);
    }
    const cachedAgain = await issuer.readAccessToken(grant.access_token, now);
    expect(cachedAgain).toEqual(first);
    expect(cachedAgain).not.toBe(first);
  });
});
