import { expect, test } from 'vitest';
import { fuzz } from './requests.ts';
import { startThirdPartyParsers } from './third-party-parsers.ts';

/**
 * No request causes an error, only authorized requests are forwarded, and nginx, HAProxy and Python parse the same requests
 * from the forwarded bytes. Seeds are fixed; `npm run test:full` sends more requests, and `npm run fuzz` others.
 */
test('H29 1,000 malformed requests cause no error and are forwarded only if authorized', async () => {
  const { sent, read, forwarded } = await fuzz({ count: 1_000, seed: 1, tls: false });
  expect(sent).toBeGreaterThanOrEqual(1_000);
  // Enough of them are parsed as requests, and enough are forwarded.
  expect(read).toBeGreaterThan(250);
  expect(forwarded).toBeGreaterThan(100);
}, 120_000);

test('H29 100 malformed requests over TLS cause no error and are forwarded only if authorized', async () => {
  const { read, forwarded } = await fuzz({ count: 100, seed: 2, tls: true });
  expect(read).toBeGreaterThan(20);
  expect(forwarded).toBeGreaterThan(5);
}, 120_000);

test('H29 the third-party parsers detect a smuggled request', async () => {
  const hidden = 'GET /admin/x HTTP/1.1\r\nHost: a\r\nX-Request-Id: 2\r\n\r\n';
  const bytes = `DELETE /files/1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: 1\r\nContent-Length: 0\r\n\r\n${hidden}`;
  const parsers = await startThirdPartyParsers();
  try {
    expect(parsers.map(({ name }) => name)).toEqual(['nginx', 'haproxy', 'python']);
    for (const parser of parsers)
      expect([parser.name, await parser.read(bytes)]).toEqual([parser.name, ['DELETE /files/1 1', 'GET /admin/x 2']]);
  } finally {
    for (const parser of parsers) await parser.close();
  }
}, 120_000);
