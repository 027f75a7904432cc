import { expect, test } from 'vitest';
import { isCanonicalBase64url } from '../../src/tokens/jwt.ts';

const CHARACTERS = Array.from({ length: 128 }, (_, code) => String.fromCharCode(code));

/** Text is canonical if encoding its bytes gives the same text. */
const isUnchanged = (text: string): boolean =>
  text !== '' && Buffer.from(text, 'base64url').toString('base64url') === text;

test.each(['', 'A', 'AA', 'AAA', 'AAAA', 'AAAAA', '_-8'])(
  'T12 after %j, only characters whose unused bits are zero end canonical text',
  (start) => {
    for (const character of CHARACTERS)
      expect([start + character, isCanonicalBase64url(start + character)]).toEqual([
        start + character,
        isUnchanged(start + character),
      ]);
  },
);

test.each(['', '=', 'QQ==', 'QUI=', 'QQ\n', ' QQ', 'QQ.', 'Q+Q/', 'QQé', 'Q'])('T12 %j is not canonical', (text) => {
  expect(isCanonicalBase64url(text)).toBe(false);
});
