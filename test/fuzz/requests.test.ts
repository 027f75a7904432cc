import { expect, test } from 'vitest';
import { foreignParsers } from './foreign-parsers.ts';
import { fuzz } from './requests.ts';

/**
 * Nothing breaks, nothing passes that was not let pass, and nginx, HAProxy, Python and, where it is there, Go read the
 * same requests in what went upstream. Seeds are fixed; `npm run fuzz` takes others.
 */
test('H29 50,000 broken requests change nothing', async () => {
  const { sent, read, forwarded } = await fuzz({ count: 50_000, seed: 1, tls: false });
  expect(sent).toBeGreaterThanOrEqual(50_000);
  // Enough of them are good enough to be judged, and to pass.
  expect(read).toBeGreaterThan(15_000);
  expect(forwarded).toBeGreaterThan(6_000);
}, 300_000);

test('H29 2,000 of them over TLS neither', async () => {
  const { read, forwarded } = await fuzz({ count: 2_000, seed: 2, tls: true });
  expect(read).toBeGreaterThan(600);
  expect(forwarded).toBeGreaterThan(200);
}, 120_000);

test('H29 the parsers that judge do see a request that hides behind another', async () => {
  const hidden = 'GET /admin/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: 2\r\n\r\n';
  const bytes = `DELETE /files/1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: 1\r\nContent-Length: 0\r\n\r\n${hidden}`;
  const parsers = await foreignParsers();
  try {
    expect(parsers.map(({ name }) => name)).toEqual(expect.arrayContaining(['nginx', 'haproxy', 'python']));
    for (const parser of parsers)
      expect([parser.name, await parser.read(bytes)]).toEqual([
        parser.name,
        ['DELETE /files/1 1', 'GET /admin/x 2'],
      ]);
  } finally {
    for (const parser of parsers) await parser.close();
  }
}, 180_000);
