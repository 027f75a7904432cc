import { randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import { createTokenIssuer } from '../../src/tokens/issuer.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { base64url, decodeJwt, loadKeyring } from '../support/forged-tokens.ts';
import { heapAfterCollection } from '../support/heap.ts';
import type { TestGateway } from '../support/test-gateway.ts';

const CACHED = 1_000;
const AT_ONCE = 10;

/** T20: verifies `count` invalid tokens, and sends a tenth as many over HTTP. */
export async function sendInvalidTokens(gateway: TestGateway, count: number): Promise<void> {
  const grant = await gateway.grant();
  const [header, payload] = decodeJwt(grant.access_token).parts;
  const randomText = (bytes: number): string => randomBytes(bytes).toString('base64url');
  const createInvalidToken = (index: number): string => {
    switch (index % 4) {
      case 0: // The most expensive: a valid header and payload, so that the signature has to be verified.
        return `${header}.${payload}.${randomText(64)}`;
      case 1:
        return `${header}.${randomText(200)}.${randomText(64)}`;
      case 2:
        return `${base64url({ alg: 'EdDSA', typ: 'at+jwt', kid: randomText(6) })}.${payload}.${randomText(64)}`;
      default:
        return randomText(100);
    }
  };
  const issuer = createTokenIssuer({
    keyring: await openKeyring(loadKeyring(gateway)),
    publicUrl: 'https://localhost:8443',
    cacheSize: CACHED,
    grants: gateway.server.store.grants,
  });
  const now = gateway.clock.now();
  const verifyInvalidTokens = async (some: number): Promise<void> => {
    for (let attempt = 0; attempt < some; attempt += 1)
      if ((await issuer.readAccessToken(createInvalidToken(attempt), now)) !== undefined)
        throw new Error('an invalid token was accepted');
  };
  await verifyInvalidTokens(2 * CACHED);
  const before = heapAfterCollection();
  await verifyInvalidTokens(count);
  expect(heapAfterCollection() - before).toBeLessThan(16 * 1_024 * 1_024);
  expect(await issuer.readAccessToken(grant.access_token, now)).toMatchObject({ clientId: 'report-runner' });

  const calls = gateway.upstream.requests.length;
  for (let attempt = 0; attempt < count / 10; attempt += AT_ONCE) {
    const replies = await Promise.all(
      Array.from({ length: AT_ONCE }, (_, at) => gateway.api('/files/1', createInvalidToken(attempt + at))),
    );
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([401]));
  }
  expect(gateway.upstream.requests.length).toBe(calls);
  expect((await gateway.api('/files/1', grant.access_token)).status).toBe(200);
}
