import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import type { RequestHead } from '../../src/http/request-head.ts';
import { HeadCache } from '../../src/listener/head-cache.ts';

const createBlock = (token: string): string =>
  `Host: localhost\r\nAccept: */*\r\nUser-Agent: test\r\nAuthorization: Bearer ${token}\r\n`;

const getToken = (head: RequestHead | undefined): string | undefined => head?.authorization[0]?.replace('Bearer ', '');

test('fields are cached from the second use on', () => {
  const cache = new HeadCache('1.1');
  const block = createBlock('first');
  const first = cache.read(block);
  const second = cache.read(block);
  expect(second).not.toBe(first);
  expect(second?.rawHeaders).toEqual(first?.rawHeaders);
  expect(cache.read(block)).toBe(second);
});

test('sections that are used once do not displace those that are repeated', () => {
  const cache = new HeadCache('1.1');
  const block = createBlock('repeated');
  cache.read(block);
  const cached = cache.read(block);
  for (let count = 0; count < 10_000; count += 1) {
    const token = randomBytes(64).toString('base64url');
    expect(getToken(cache.read(createBlock(token)))).toBe(token);
    if (count % 100 === 0) expect(cache.read(block)).toBe(cached);
  }
});

test('malformed sections are never cached', () => {
  const cache = new HeadCache('1.1');
  for (let round = 0; round < 3; round += 1) {
    expect(cache.read('Host : localhost\r\n')).toBeUndefined();
    expect(cache.read('Host: localhost\r\n folded\r\n')).toBeUndefined();
  }
});

test('sections that differ in one character are distinguished', () => {
  const cache = new HeadCache('1.1');
  const token = randomBytes(400).toString('base64url');
  const blocks = Array.from({ length: token.length }, (_, at) =>
    createBlock(`${token.slice(0, at)}~${token.slice(at + 1)}`),
  );
  for (let round = 0; round < 3; round += 1)
    for (const [at, block] of blocks.entries()) expect(getToken(cache.read(block))?.indexOf('~')).toBe(at);
});

test('the time to read a section is proportional to its length, also if it repeats Authorization', () => {
  const cache = new HeadCache('1.1');
  expect(cache.read('Authorization:\r\n'.repeat(65_536))?.authorization).toHaveLength(65_536);
}, 10_000);
