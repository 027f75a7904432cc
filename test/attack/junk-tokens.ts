import { expect } from 'vitest';
import { type ForeignIssuerServer, withTrustedIssuer } from '../support/foreign-issuer-server.ts';
import { createHttpsClient } from '../support/https-client.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { createJunkToken } from '../tokens/trusted-issuers/junk-tokens.ts';

export const startFloodedGateway = (issuer: ForeignIssuerServer): Promise<TestGateway> =>
  startGateway(withTrustedIssuer(issuer, { cooldown: '1h' }));

/** Sends junk over ten connections, with a valid token of the issuer and one of gatehouse among every hundred. */
export async function sendJunkTokens(
  gateway: TestGateway,
  issuer: ForeignIssuerServer,
  own: string,
  count: number,
): Promise<void> {
  const client = createHttpsClient({ port: gateway.port, ca: gateway.ca.pem, connections: 10 });
  try {
    for (let sent = 0; sent < count; sent += 100) {
      const junk = Array.from({ length: 100 }, async (_, index) => {
        const { status } = await client.getWithToken('/files/junk', createJunkToken(issuer.url, index));
        return status;
      });
      const [valid, ownReply] = await Promise.all([
        client.getWithToken('/files/valid', await issuer.sign()),
        client.getWithToken('/files/valid', own),
      ]);
      expect([valid.status, ownReply.status]).toEqual([200, 200]);
      expect(new Set(await Promise.all(junk))).toEqual(new Set([401]));
    }
  } finally {
    client.close();
  }
  expect(gateway.upstream.requests.some(({ url }) => url === '/files/junk')).toBe(false);
  // At start, and three for unknown keys. They cause another fetch only after the cooldown.
  expect(issuer.fetches).toBe(4);
}
