import { randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { createMint } from '../../src/tokens/mint.ts';
import { base64url, keysOf, openJwt } from '../support/forge.ts';
import { heapAfterCollection } from '../support/heap.ts';
import type { House } from '../support/house.ts';

const CACHED = 1_000;
const AT_ONCE = 10;

/** T20: this many invalid tokens, every tenth of them over HTTP. */
export async function sendInvalidTokens(house: House, count: number): Promise<void> {
  const grant = await house.grant();
  const [header, payload] = openJwt(grant.access_token).parts;
  const noise = (bytes: number): string => randomBytes(bytes).toString('base64url');
  const invalid = (turn: number): string => {
    switch (turn % 4) {
      case 0: // The most expensive: a valid header and payload, so that the signature has to be verified.
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
    remembered: CACHED,
  });
  const now = house.clock.now();
  const readSome = async (some: number): Promise<void> => {
    for (let turn = 0; turn < some; turn += 1)
      if ((await mint.readAccess(invalid(turn), now)) !== undefined)
        throw new Error('an invalid token was accepted');
  };
  await readSome(2 * CACHED);
  const before = heapAfterCollection();
  await readSome(count);
  expect(heapAfterCollection() - before).toBeLessThan(16 * 1_024 * 1_024);
  expect(await mint.readAccess(grant.access_token, now)).toMatchObject({ clientId: 'report-runner' });

  const calls = house.upstream.calls.length;
  for (let turn = 0; turn < count / 10; turn += AT_ONCE) {
    const replies = await Promise.all(
      Array.from({ length: AT_ONCE }, (_, at) => house.api('/files/1', invalid(turn + at))),
    );
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([401]));
  }
  expect(house.upstream.calls.length).toBe(calls);
  expect((await house.api('/files/1', grant.access_token)).status).toBe(200);
}
