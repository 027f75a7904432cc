import { lookup as resolve } from 'node:dns';
import type { LookupFunction } from 'node:net';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { createPublicLookup, isPublicAddress } from '../../src/lib/public-address.ts';

describe('an address on the internet is public', () => {
  test.each([
    '1.1.1.1',
    '8.8.8.8',
    '172.15.255.255',
    '172.32.0.0',
    '100.63.0.1',
    '198.20.0.1',
    '2606:4700::1111',
    '2a00:1450::1',
  ])('%s', (address) => expect(isPublicAddress(address)).toBe(true));
});

describe('other addresses are not public', () => {
  test.each([
    '0.0.0.0',
    '10.1.2.3',
    '100.64.0.1',
    '127.0.0.1',
    '127.255.255.254',
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
    '192.0.0.1',
    '192.0.2.1',
    '192.168.1.1',
    '198.18.0.1',
    '198.51.100.1',
    '203.0.113.1',
    '224.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    '::ffff:127.0.0.1',
    '::ffff:8.8.8.8',
    '::127.0.0.1',
    '64:ff9b::7f00:1',
    '100::1',
    'fc00::1',
    'fd12:3456::1',
    'fe80::1',
    'fe80::1%eth0',
    'ff02::1',
    '2001:db8::1',
    '2001::1',
    '2002:7f00:1::',
    'localhost',
    '127.1',
    '0x7f.1',
    '2130706433',
    '',
  ])('%s', (address) => expect(isPublicAddress(address)).toBe(false));
});

test('a name with a private address is not resolved', async () => {
  const lookup = promisify(createPublicLookup(resolve));
  await expect(lookup('localhost', {})).rejects.toThrow('not public');
  await expect(lookup('localhost', { all: true })).rejects.toThrow('not public');
});

test('a name with a public and a private address is not resolved, and the addresses are those that were checked', async () => {
  const resolveTo =
    (...addresses: readonly string[]): LookupFunction =>
    (_hostname, _options, callback) =>
      callback(
        null,
        addresses.map((address) => ({ address, family: 4 })),
      );
  const mixed = promisify(createPublicLookup(resolveTo('8.8.8.8', '10.0.0.1')));
  await expect(mixed('example.test', { all: true })).rejects.toThrow('not public');
  const none = promisify(createPublicLookup(resolveTo()));
  await expect(none('example.test', { all: true })).rejects.toThrow('not public');
  const lookup = promisify(createPublicLookup(resolveTo('8.8.8.8', '1.1.1.1')));
  expect(await lookup('example.test', { all: true })).toEqual([
    { address: '8.8.8.8', family: 4 },
    { address: '1.1.1.1', family: 4 },
  ]);
  expect(await lookup('example.test', {})).toBe('8.8.8.8');
});
