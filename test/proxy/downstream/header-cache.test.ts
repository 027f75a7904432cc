import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { type CachedFields, HeaderCache } from '../../../src/proxy/downstream/header-cache.ts';

const createBlock = (token: string): string =>
  `Host: localhost\r\nAccept: */*\r\nUser-Agent: test\r\nAuthorization: Bearer ${token}\r\n`;

const getToken = (fields: CachedFields | string): string | undefined =>
  typeof fields !== 'string' && fields.credentials.kind === 'bearer' ? fields.credentials.token : undefined;

test('fields are cached from the second use on', () => {
  const cache = new HeaderCache();
  const block = createBlock('first');
  const first = cache.read(block);
  const second = cache.read(block);
  expect(second).not.toBe(first);
  expect(second).toEqual(first);
  expect(cache.read(block)).toBe(second);
});

test('sections that are used once do not displace those that are repeated', () => {
  const cache = new HeaderCache();
  const block = createBlock('repeated');
  cache.read(block);
  const cached = cache.read(block);
  for (let count = 0; count < 10_000; count += 1) {
    const token = randomBytes(64).toString('base64url');
    expect(getToken(cache.read(createBlock(token)))).toBe(token);
    if (count % 100 === 0) expect(cache.read(block)).toBe(cached);
  }
});

test('sections that differ in one character are distinguished', () => {
  const cache = new HeaderCache();
  const token = randomBytes(400).toString('base64url');
  const blocks = Array.from({ length: token.length }, (_, at) =>
    createBlock(`${token.slice(0, at)}~${token.slice(at + 1)}`),
  );
  for (let round = 0; round < 3; round += 1)
    for (const [at, block] of blocks.entries()) expect(getToken(cache.read(block))?.indexOf('~')).toBe(at);
});
