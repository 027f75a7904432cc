import { expect, test } from 'vitest';
import { frameClient, requestFields } from '../support/http2-frames.ts';
import { useAttackGateway } from './attack-gateway.ts';

/**
 * RFC 9113 §8.2.1: a field value that ends with white space makes a request malformed. HTTP/1.1 has no such value: white space around
 * it is not part of it (RFC 9110 §5.5).
 */
const attack = useAttackGateway();
const PROTOCOL_ERROR = 1;

test.each(['Bearer ', 'Bearer \t', ' Bearer', 'Bearer x '])(
  'over HTTP/2, the authorization "%s" resets the stream, and the connection stays usable',
  async (authorization) => {
    const { gateway } = attack;
    const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
    try {
      const stream = client.request([...requestFields('/files/1'), ['authorization', authorization]], {
        end: true,
      });
      await client.until(() => client.outcome(stream)?.reset !== undefined || client.isOver());
      expect(client.outcome(stream)?.reset).toBe(PROTOCOL_ERROR);
      const next = client.request([...requestFields('/files/1'), ['authorization', 'Bearer']], { end: true });
      await client.until(() => client.endedCleanly(next) || client.isOver());
      expect(client.outcome(next)).toMatchObject({ status: 401 });
    } finally {
      client.destroy();
    }
    expect(attack.upstream.requests).toEqual([]);
  },
);

test('over HTTP/1.1, it is a request without a token', async () => {
  expect((await attack.gateway.api('/files/1', '')).status).toBe(401);
});
