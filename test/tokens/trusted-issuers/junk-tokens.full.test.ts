import { randomBytes } from 'node:crypto';
import { expect, onTestFinished, test } from 'vitest';
import { reject } from '../../../src/domain/token-rejection.ts';
import { createHttpClient } from '../../../src/lib/http-client.ts';
import { TokenIntrospection } from '../../../src/tokens/trusted-issuers/introspection.ts';
import { heapAfterCollection } from '../../support/heap.ts';
import { startIntrospectionServer } from '../../support/introspection-server.ts';
import { floodVerification, setUpVerification } from './junk-tokens.ts';

const MEBIBYTE = 1_048_576;

test('10,000 junk tokens of a trusted issuer do not grow the heap', async () => {
  const verification = await setUpVerification();
  onTestFinished(() => verification.close());
  await floodVerification(verification, 10_000);
  const before = heapAfterCollection();
  await floodVerification(verification, 10_000);
  // Kept tokens would be 5 MiB.
  expect(heapAfterCollection() - before).toBeLessThan(2 * MEBIBYTE);
});

test('of 12,000 unknown opaque tokens, at most 10,000 are remembered as inactive', async () => {
  const server = await startIntrospectionServer();
  const httpClient = createHttpClient({ timeoutMs: 60_000, maxConnections: 32 });
  onTestFinished(async () => {
    await httpClient.destroy();
    server.close();
  });
  const introspection = new TokenIntrospection({
    name: 'corp',
    url: server.url,
    clientId: 'gatehouse',
    clientSecret: 'a secret',
    cacheLifetime: 300,
    maxStaleness: 0,
    cacheSize: 100,
    httpClient,
  });
  for (let sent = 0; sent < 12_000; sent += 60) {
    const junk = Array.from({ length: 60 }, async () =>
      introspection.read(`op_${randomBytes(64).toString('hex')}`, 1_000, () => reject('inactive')),
    );
    for (const result of await Promise.all(junk)) expect(result.rejection?.fault).toBe('inactive');
  }
  expect(introspection.size).toBe(10_000);
});
