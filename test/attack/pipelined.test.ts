import { expect, test } from 'vitest';
import { attackHouse } from '../support/attack-house.ts';
import { until } from '../support/serve-process.ts';

/** Found by the fuzzer: what takes a connection away from the calls that run on it. */
const attack = attackHouse((settings) => ({
  ...settings,
  // The fast lane begins no request before the one in front of it has been answered.
  listen: { ...settings.listen, fastLane: false },
}));

const HANDSHAKE =
  'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13';

for (const [what, last] of [
  ['CONNECT', 'CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n'],
  ['a WebSocket handshake', `GET /socket HTTP/1.1\r\nHost: a\r\n${HANDSHAKE}\r\n\r\n`],
] as const)
  test(`${what} behind calls that still run is not answered in their place, and leaves none of them without an end`, async () => {
    attack.upstream.reset();
    // The upstream has the first two, and answers neither.
    attack.upstream.reply(() => {});
    const seen = attack.house.log.length;
    const client = await attack.client();
    client.send(
      attack.write({ line: 'GET /files/1 HTTP/1.1' }) + attack.write({ line: 'GET /files/2 HTTP/1.1' }),
    );
    await until('both are upstream', () => attack.upstream.requests.length === 2);
    client.send(last);
    expect(await client.closed()).toBe('');
    client.destroy();
    const ended = (path: string): boolean =>
      attack.house.log.slice(seen).some((line) => line.event === 'request' && line['path'] === path);
    await until('both have ended', () => ended('/files/1') && ended('/files/2'));
    await attack.stands();
  });
