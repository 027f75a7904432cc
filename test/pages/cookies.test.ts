import { expect, test, vi } from 'vitest';
import { parseCookies } from '../../src/pages/cookies.ts';
import { createBrowserCookie } from '../../src/pages/transaction.ts';
import { openSealingKeys } from '../../src/tokens/keyring.ts';
import { createKeyringFile } from '../../src/tokens/keyring-file.ts';
import { createSealer } from '../../src/tokens/sealer.ts';

test('all values of a cookie are found, by its exact name', () => {
  const cookies = parseCookies(' a=1;b=2; a=3 ;aa=4; a ; =5;;a=6=7; __proto__=8');
  expect([...cookies]).toEqual([
    ['a', ['1', '3', '6=7']],
    ['b', ['2']],
    ['aa', ['4']],
    ['', ['5']],
    ['__proto__', ['8']],
  ]);
  expect(parseCookies(undefined).size).toBe(0);
});

test('a long Cookie header is split once, not once for every name of the browser cookie', () => {
  const sealer = createSealer(openSealingKeys(createKeyringFile('EdDSA')), () => Date.now() / 1_000);
  const browserCookie = createBrowserCookie(sealer, '__Host-gatehouse');
  const { id, cookie } = browserCookie.renew(undefined);
  const header = `${'a=1; '.repeat(3_000)}${cookie.split(';', 1)[0]}`;
  const split = vi.spyOn(String.prototype, 'split');
  const isFound = browserCookie.includes(header, id);
  const { id: renewed } = browserCookie.renew(header);
  const headersSplit = split.mock.contexts.filter((text) => String(text) === header);
  split.mockRestore();
  expect([isFound, renewed]).toEqual([true, id]);
  expect(headersSplit).toHaveLength(2);
});
