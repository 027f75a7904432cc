import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { createAttemptLimits } from '../../src/pages/attempt-limits.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { BASE_DN, type LdapServer, SERVICE_ACCOUNT, startLdapServer } from '../support/ldap-server.ts';
import { BASE, type PagesHarness, startPagesHarness } from '../support/pages-harness.ts';
import { testPasswordHash } from '../support/test-gateway.ts';

freezeClock();

/** Limit of wrong passwords per account. */
const BUDGET = 30;

let ldap: LdapServer;
let pages: PagesHarness;
beforeAll(async () => {
  const user = (names: readonly string[], last: string): string =>
    [
      `dn: uid=${names[0]},ou=people,${BASE_DN}`,
      'objectClass: inetOrgPerson',
      ...names.map((name) => `uid: ${name}`),
      `cn: ${names[0]}`,
      `sn: ${names[0]}`,
      `userPassword: ${names[0]} password`,
      `entryUUID: 5f0c2a52-6d0e-4d0c-9c3e-0000000000${last}`,
      '',
    ].join('\n');
  ldap = await startLdapServer([user(['anna', 'anna.long', 'a.l'], '31'), user(['bert'], '32')]);
  pages = await startPagesHarness((settings) => ({
    ...settings,
    directories: {
      staff: {
        label: 'corp',
        ldap: { url: ldap.ldapUrl, ...SERVICE_ACCOUNT, base: `ou=people,${BASE_DN}`, timeout: '60s' },
      },
    },
  }));
});
beforeEach(() => pages.reset());
afterAll(async () => {
  await pages.close();
  await ldap.remove();
});

async function signIn(name: string, password: string): Promise<number> {
  const browser = pages.browser();
  await browser.open(`${BASE}/grants`);
  return (await browser.signIn(name, password)).status;
}

test('all user names of one LDAP entry, in every spelling, share one limit of wrong passwords', async () => {
  const names = ['anna', 'ANNA', 'anna.long', 'Anna.Long', 'a.l', 'A.L', 'anna ', ' Anna', 'ａｎｎａ'];
  for (let guess = 0; guess < BUDGET; guess += 1)
    expect(await signIn(names[guess % names.length] ?? '', `guess ${guess}`)).toBe(403);
  for (const name of names) expect(await signIn(name, 'anna password'), name).toBe(429);
  // Another account has its own limit.
  expect(await signIn('bert', 'bert password')).toBe(200);
});

test('the right password does not count towards the limit', async () => {
  for (let more = 0; more < BUDGET + 5; more += 1) expect(await signIn('bert', 'bert password')).toBe(200);
});

test('an unknown name is rejected after the same number of attempts, in every spelling', async () => {
  const names = ['nemo', 'NEMO', ' nemo', 'nemo ', 'ｎｅｍｏ'];
  for (let guess = 0; guess < BUDGET; guess += 1)
    expect(await signIn(names[guess % names.length] ?? '', `guess ${guess}`)).toBe(403);
  for (const name of names) expect(await signIn(name, 'another guess'), name).toBe(429);
  expect(await signIn('another-name', 'guess')).toBe(403);
});

test('a wrong password counts even if another directory accepts it for an account of the same name', async () => {
  const ids = ['41', '42'].map((last) => `{5f0c2a52-6d0e-4d0c-9c3e-0000000000${last}}`);
  const directory = (label: string, id: string | undefined, password: string) => ({
    label,
    users: [{ id: id ?? '', name: 'carl', groups: [], passwordHash: testPasswordHash(password) }],
  });
  await pages.reconfigure((settings) => ({
    ...settings,
    directories: {
      staff: directory('one', ids[0], 'right'),
      second: directory('two', ids[1], 'a guess'),
    },
  }));
  // Right in the second directory, wrong in the first.
  for (let guess = 0; guess < BUDGET; guess += 1) expect(await signIn('carl', 'a guess')).toBe(200);
  expect(await signIn('carl', 'right')).toBe(429);
  expect(await signIn('carl', 'a guess')).toBe(200);
});

test('unknown names do not evict the counts of accounts from memory', async () => {
  const memory = createAttemptLimits({ now: () => 0 });
  for (let guess = 0; guess < BUDGET; guess += 1) expect(await memory.failuresByAccount.take('an account')).toBe(0);
  for (let name = 0; name < 20_000; name += 1) await memory.failuresByUnknownName.take(`name ${name}`);
  expect(await memory.failuresByAccount.take('an account')).toBeGreaterThan(0);
});
