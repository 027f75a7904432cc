import { argon2Sync } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { isIdentityId } from '../../src/domain/user.ts';
import { createPasswordHasher, formatPasswordHash, parsePasswordHash } from '../../src/identity/password-hasher.ts';
import { createUserDirectory, type DirectorySettings } from '../../src/identity/user-directory.ts';
import { normalizeIdentity } from '../../src/identity/user-id.ts';
import { Fault } from '../../src/ports/fault.ts';

/** A cheap hash, for tests that need many. */
const cheapHash = (password: string): string => {
  const cost = { memory: 64, passes: 1, parallelism: 1 };
  const salt = Buffer.from('0123456789abcdef');
  const tag = argon2Sync('argon2id', { ...cost, message: password, nonce: salt, tagLength: 32 });
  return formatPasswordHash({ ...cost, salt, tag });
};

const ALICE = '{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}';
const user = (fields: Partial<DirectorySettings['users'][number]> = {}): DirectorySettings['users'][number] => ({
  id: ALICE,
  name: 'Alice',
  commonName: 'alice',
  email: 'alice@example.test',
  userPrincipalName: 'alice@corp.example.test',
  dnsName: 'alice-pc.Example.test',
  uri: 'spiffe://example.org/alice',
  groups: ['operators'],
  disabled: false,
  passwordHash: cheapHash('correct horse'),
  ...fields,
});
const staff = (...users: DirectorySettings['users']) =>
  createUserDirectory({
    staff: { label: 'local', users, derive: false },
    workloads: { label: 'wl', users: [], derive: true },
  });

describe('a directory defined in the configuration', () => {
  test('an id may be any text or be omitted: the identity has a GUID that does not change', async () => {
    const { id: _id, ...withoutId } = user();
    const findIdentity = async (fields: Partial<typeof withoutId> & { readonly id?: string }) => {
      const directory = staff({ ...withoutId, ...fields });
      return (await directory.findByCertificateName('staff', 'commonName', 'alice'))?.identity;
    };
    const GUID = /^local:\{[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\}$/;
    const byText = await findIdentity({ id: 'employee 4711' });
    const byName = await findIdentity({ name: 'alice' });
    expect(byText).toMatch(GUID);
    expect(byName).toMatch(GUID);
    // A store may hold grants of these identities: they never change.
    expect([byText, byName]).toEqual([
      'local:{dd73c772-b1a5-89aa-a1ad-805eeb114f14}',
      'local:{a97508a4-aa46-8418-a5cc-5f1cf6a289f8}',
    ]);
    expect(await findIdentity({ id: 'employee 4711', name: 'renamed' })).toBe(byText);
    expect(await findIdentity({ name: 'renamed' })).not.toBe(byName);
    expect(await findIdentity({ id: 'alice' })).not.toBe(byName);
    expect(await findIdentity({ id: '00FF00FF' })).toBe('local:00FF00FF');
    const directory = staff({ ...user(), id: 'employee 4711' });
    expect((await directory.findByIdentity(String(byText)))?.userName).toBe('Alice');
    expect(normalizeIdentity('local:employee 4711')).toBe(byText);
  });

  test('C17 finds a user only by the configured name source', async () => {
    const directory = staff(user());
    const alice = {
      identity: `local:${ALICE}`,
      displayName: 'Alice',
      userName: 'Alice',
      email: 'alice@example.test',
      directory: 'staff',
      groups: new Set(['operators']),
      disabled: false,
    };
    expect(await directory.findByCertificateName('staff', 'commonName', 'alice')).toEqual(alice);
    expect(await directory.findByCertificateName('staff', 'email', 'alice')).toBeUndefined();
    expect(await directory.findByCertificateName('staff', 'commonName', 'alice@example.test')).toBeUndefined();
    expect(await directory.findByCertificateName('nowhere', 'commonName', 'alice')).toBeUndefined();
    expect(await directory.findByIdentity(`local:${ALICE}`)).toEqual(alice);
    expect(await directory.findByIdentity(`other:${ALICE}`)).toBeUndefined();
    expect(await directory.findByIdentity('local')).toBeUndefined();
  });

  test.each([
    ['commonName', 'ALICE', false],
    ['commonName', 'alice\0', false],
    ['email', 'alice@EXAMPLE.test', true],
    ['email', 'ALICE@example.test', false],
    ['userPrincipalName', 'ALICE@Corp.example.test', true],
    ['userPrincipalName', 'alice', false],
    ['dnsName', 'ALICE-PC.example.TEST', true],
    ['dnsName', 'example.test', false],
    ['uri', 'spiffe://example.org/alice', true],
    ['uri', 'spiffe://example.org/ALICE', false],
    ['uri', 'spiffe://example.org/alice/', false],
  ] as const)('compares %s %j by the rules for that kind of name', async (source, name, found) => {
    expect((await staff(user()).findByCertificateName('staff', source, name)) !== undefined).toBe(found);
  });

  test('C17 reports a disabled user', async () => {
    const visitor = await staff(user({ disabled: true })).findByCertificateName('staff', 'commonName', 'alice');
    expect(visitor?.disabled).toBe(true);
  });

  test('if two users share a name, neither is found', async () => {
    const directory = staff(user(), user({ id: '0badcafe', name: 'bob' }));
    expect(await directory.findByCertificateName('staff', 'commonName', 'alice')).toBeUndefined();
  });
});

describe('signing in', () => {
  test('accepts the right password; the user name is case-insensitive', async () => {
    const directory = staff(user());
    expect((await directory.signIn('aLiCe', 'correct horse'))?.identity).toBe(`local:${ALICE}`);
    for (const [name, password] of [
      ['alice', 'Correct horse'],
      ['alice', ''],
      ['bob', 'correct horse'],
      ['alice', 'x'.repeat(5_000)],
    ] as const)
      expect(await directory.signIn(name, password)).toBeUndefined();
  });

  test('reports a disabled user only if the password is right', async () => {
    const directory = staff(user({ disabled: true }));
    expect((await directory.signIn('alice', 'correct horse'))?.disabled).toBe(true);
    expect(await directory.signIn('alice', 'wrong')).toBeUndefined();
  });

  test('does the same work for an unknown name and for a user without a password', async () => {
    const work: string[] = [];
    const passwords = {
      hash: async () => '',
      verify: async (_password: string, hash: string) => {
        work.push(hash.slice(0, hash.lastIndexOf('$', hash.lastIndexOf('$') - 1)));
        return false;
      },
    };
    const { passwordHash: _, ...without } = user({
      id: '0badcafe',
      name: 'carol',
      commonName: 'carol',
      email: 'c@x.test',
      userPrincipalName: 'c@y',
    });
    const directory = createUserDirectory(
      { staff: { label: 'l', users: [user(), without], derive: false } },
      passwords,
    );
    for (const name of ['alice', 'nobody', 'carol']) await directory.signIn(name, 'x');
    expect(work).toEqual(Array(3).fill('$argon2id$v=19$m=64,t=1,p=1'));
  });

  test('reads the hash from its file, or reports the invalid setting', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'gatehouse-hash-'));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    const { passwordHash = '', ...rest } = user();
    writeFileSync(join(folder, 'hash'), `${passwordHash}\n`);
    expect(
      await staff({ ...rest, passwordHashFile: join(folder, 'hash') }).signIn('alice', 'correct horse'),
    ).toBeDefined();
    rmSync(join(folder, 'hash'));
    expect(() => staff({ ...rest, passwordHashFile: join(folder, 'hash') })).toThrow(
      `directories.staff.users[0].passwordHashFile: ${join(folder, 'hash')} does not exist`,
    );
    expect(() => staff(user({ passwordHash: '$argon2id$v=19$m=99999999,t=3,p=1$AAAAAAAAAAA$AAAA' }))).toThrow(
      'directories.staff.users[0].passwordHash',
    );
  });
});

describe('password hashes', () => {
  test('are Argon2id with 64 MiB, three passes and a random salt', async () => {
    const passwords = createPasswordHasher();
    const [first, second] = [await passwords.hash('correct horse'), await passwords.hash('correct horse')];
    expect(first).toMatch(/^\$argon2id\$v=19\$m=65536,t=3,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/);
    expect(first).not.toBe(second);
    expect(await passwords.verify('correct horse', first)).toBe(true);
    expect(await passwords.verify('correct horsf', first)).toBe(false);
  });

  test('of the Argon2 reference implementation are accepted', async () => {
    // argon2 -id -t 2 -k 65536 -p 1 over "password" with salt "somesalt" (test.c of the reference implementation).
    const known = '$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc';
    expect(await createPasswordHasher().verify('password', known)).toBe(true);
    expect(await createPasswordHasher().verify('passwore', known)).toBe(false);
  });

  test('do not depend on the Unicode form of the password', async () => {
    expect(await createPasswordHasher().verify('jose\u0301', cheapHash('jos\u00e9'))).toBe(true);
  });

  test.each([
    '$argon2i$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$AAAAAAAAAAAAAAAAAAAAAA',
    '$argon2id$v=19$m=4194304,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$AAAAAAAAAAAAAAAAAAAAAA',
    '$argon2id$v=19$m=64,t=100,p=1$MDEyMzQ1Njc4OWFiY2RlZg$AAAAAAAAAAAAAAAAAAAAAA',
    '$argon2id$v=19$m=64,t=1,p=0$MDEyMzQ1Njc4OWFiY2RlZg$AAAAAAAAAAAAAAAAAAAAAA',
    '$argon2id$v=19$m=64,t=1,p=1$MDEy$AAAAAAAAAAAAAAAAAAAAAA',
    '$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$AAAA',
    'plain',
  ])('of excessive cost or another kind are rejected: %s', (text) => {
    expect(parsePasswordHash(text)).toBeUndefined();
  });

  test('beyond the queue limit are rejected as overload, and later ones succeed', async () => {
    const passwords = createPasswordHasher({ maxConcurrent: 1, maxQueued: 2 });
    const hash = cheapHash('x');
    const outcomes = await Promise.allSettled(Array.from({ length: 5 }, () => passwords.verify('x', hash)));
    const rejected = outcomes.filter(({ status }) => status === 'rejected') as PromiseRejectedResult[];
    expect(outcomes.map(({ status }) => status)).toEqual([
      'fulfilled',
      'fulfilled',
      'fulfilled',
      'rejected',
      'rejected',
    ]);
    for (const { reason } of rejected) {
      expect(reason).toBeInstanceOf(Fault);
      expect((reason as Fault).code).toBe('overloaded');
    }
    expect(await passwords.verify('x', hash)).toBe(true);
  });
});

describe('a derived directory', () => {
  test('accepts any name and derives its identity as a reproducible digest', async () => {
    const directory = staff();
    const worker = await directory.findByCertificateName('workloads', 'commonName', 'billing-worker');
    // printf 'commonName:billing-worker' | sha256sum
    expect(worker?.identity).toBe('wl:315292bdb8ad10eb2ddb9bdd88e9c8cc1fdb4bd97fcafa012aecd8049b0c8c5e');
    expect(worker?.displayName).toBe('billing-worker');
    expect(isIdentityId((worker?.identity ?? '').slice(3))).toBe(true);
    expect((await directory.findByIdentity(worker?.identity ?? ''))?.identity).toBe(worker?.identity);
    expect(await directory.findByIdentity('wl:0badcafe')).toBeUndefined();
    expect(await directory.signIn('billing-worker', '')).toBeUndefined();
  });

  test('derives different identities per name source, and one identity per email address', async () => {
    const directory = staff();
    const id = async (source: 'commonName' | 'email', name: string) =>
      (await directory.findByCertificateName('workloads', source, name))?.identity;
    expect(await id('commonName', 'a@b.test')).not.toBe(await id('email', 'a@b.test'));
    expect(await id('email', 'a@B.test')).toBe(await id('email', 'a@b.test'));
    expect(await id('commonName', 'A')).not.toBe(await id('commonName', 'a'));
  });
});
