import { connect, createServer } from 'node:net';
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from 'vitest';
import { createLdapDirectory, type LdapSettings } from '../../src/identity/ldap-directory.ts';
import { createUserDirectory } from '../../src/identity/user-directory.ts';
import { formatGuid, guidToBytes } from '../../src/identity/user-id.ts';
import type { Directory } from '../../src/ports/directory.ts';
import {
  BASE_DN,
  guidBytes,
  LDAP_SETTINGS,
  type LdapServer,
  SERVICE_ACCOUNT,
  startLdapServer,
} from '../support/ldap-server.ts';
import { createCa } from '../support/pki.ts';

let server: LdapServer;
beforeAll(async () => {
  server = await startLdapServer();
});
afterAll(() => server.remove());

const directories: Directory[] = [];
afterAll(() => Promise.all(directories.map((directory) => directory.close())));

function createDirectory(changes: Partial<LdapSettings> = {}): Directory {
  const created = createLdapDirectory('corp', 'corp', {
    ...LDAP_SETTINGS,
    url: [server.ldapUrl],
    timeout: 10,
    groups: {
      base: `ou=groups,${BASE_DN}`,
      filter: '(objectClass=groupOfNames)',
      name: 'cn',
      member: 'member',
      nested: false,
    },
    ...changes,
  });
  directories.push(created);
  return created;
}

const ALICE = {
  identity: 'corp:{5f0c2a52-6d0e-4d0c-9c3e-000000000001}',
  displayName: 'Alice Example',
  userName: 'alice',
  email: 'alice@Example.test',
  directory: 'corp',
  groups: new Set(['operators']),
  disabled: false,
};

test('the right password returns the user, with the groups under the configured base', async () => {
  const corp = createDirectory();
  expect(await corp.signIn('alice', 'alice password')).toEqual(ALICE);
  expect(await corp.signIn('ALICE', 'alice password')).toEqual(ALICE);
});

test('a wrong password, the password of another user and an unknown name return no user', async () => {
  const corp = createDirectory();
  for (const [name, password] of [
    ['alice', 'wrong'],
    ['alice', 'dora password'],
    ['nobody', 'alice password'],
    ['gatehouse', SERVICE_ACCOUNT.password],
  ] as const)
    expect(await corp.signIn(name, password), name).toBeUndefined();
});

test('an empty password is never tried: this server would accept it', async () => {
  const corp = createDirectory();
  for (const password of ['', '\0', '\0alice password', 'alice password\0'])
    expect(await corp.signIn('alice', password)).toBeUndefined();
});

test('a typed name is not a filter and matches one user only', async () => {
  const corp = createDirectory();
  for (const name of [
    '*',
    'a*',
    'alice)(uid=*',
    '*)(objectClass=*',
    'alice)(|(uid=*',
    'alice\0',
    'alice ',
    ' alice',
    'uid=alice',
    '\\61lice',
    'a'.repeat(256),
  ])
    expect(await corp.signIn(name, 'alice password'), JSON.stringify(name)).toBeUndefined();
  expect((await corp.findByCertificateName('commonName', 'Star (The) *One*'))?.displayName).toBe('Star (The) *One*');
  expect(await corp.findByCertificateName('commonName', 'Star*')).toBeUndefined();
});

test('certificates name users by common name, e-mail and UPN, compared by the rules of gatehouse', async () => {
  const corp = createDirectory();
  expect(await corp.findByCertificateName('commonName', 'Alice Example')).toEqual(ALICE);
  expect(await corp.findByCertificateName('email', 'alice@EXAMPLE.test')).toEqual(ALICE);
  expect(await corp.findByCertificateName('userPrincipalName', 'ALICE@corp.example.test')).toEqual(ALICE);
  expect(await corp.findByCertificateName('dnsName', 'ALICE-PC.example.test')).toEqual(ALICE);
  expect(await corp.findByCertificateName('dnsName', 'alice-pc')).toBeUndefined();
  expect(await corp.findByCertificateName('uri', 'spiffe://example.org/alice')).toEqual(ALICE);
  // The server compares with caseIgnoreMatch or not at all; a URI is compared exactly.
  expect(await corp.findByCertificateName('uri', 'spiffe://example.org/Alice')).toBeUndefined();
  // The server itself would find these, because it ignores case and spaces.
  expect(await corp.findByCertificateName('commonName', 'alice example')).toBeUndefined();
  expect(await corp.findByCertificateName('commonName', 'Alice  Example')).toBeUndefined();
  expect(await corp.findByCertificateName('email', 'ALICE@example.test')).toBeUndefined();
  expect(await corp.findByCertificateName('email', 'alice')).toBeUndefined();
});

test('if two entries share a name, neither is found by it', async () => {
  const corp = createDirectory();
  expect(await corp.findByCertificateName('commonName', 'Twin Same')).toBeUndefined();
  expect(await corp.findByCertificateName('email', 'twin@example.test')).toBeUndefined();
  expect((await corp.signIn('twin1', 'twin1 password'))?.identity).toBe('corp:{5f0c2a52-6d0e-4d0c-9c3e-000000000003}');
});

test('an identity is found by its id, in any case; anything but a GUID finds no user', async () => {
  const corp = createDirectory();
  expect(await corp.findById('{5F0C2A52-6D0E-4D0C-9C3E-000000000001}')).toEqual(ALICE);
  for (const id of ['{5f0c2a52-6d0e-4d0c-9c3e-0000000000ff}', '*', '5f0c', '{}'])
    expect(await corp.findById(id)).toBeUndefined();
});

test('Active Directory: objectGUID is the id, userAccountControl marks disabled accounts', async () => {
  const corp = createDirectory({
    id: 'objectGUID',
    attributes: {
      userName: 'sAMAccountName',
      displayName: 'displayName',
      commonName: 'cn',
      email: 'mail',
      userPrincipalName: 'userPrincipalName',
      dnsName: 'dNSHostName',
      uri: 'labeledURI',
    },
  });
  const identity = 'corp:{3f2504e0-4f89-11d3-9a0c-0305e82c3301}';
  expect(await corp.signIn('alice', 'alice password')).toEqual({ ...ALICE, identity });
  expect(await corp.findById(identity.slice(5))).toEqual({ ...ALICE, identity });
  expect(
    await corp.findByClaim({ issuer: 'x', attribute: 'id', value: '3F2504E0-4F89-11D3-9A0C-0305E82C3301' }),
  ).toEqual({
    ...ALICE,
    identity,
  });
  expect((await corp.signIn('dora', 'dora password'))?.disabled).toBe(true);
});

test('objectGUID and its text form convert to each other', () => {
  const bytes = Buffer.from(guidBytes('01'), 'base64');
  const text = '{3f2504e0-4f89-11d3-9a0c-0305e82c3301}';
  expect(formatGuid(bytes)).toBe(text);
  expect(guidToBytes(text)).toEqual(bytes);
  expect(formatGuid(bytes.subarray(1))).toBeUndefined();
});

test('LDAPS and StartTLS with the configured CA; another CA or another host name is rejected', async () => {
  const outsider = (await createCa()).pem;
  const ca = server.ca.pem;
  const overTls = [
    { url: [server.ldapsUrl] },
    { url: [server.ldapUrl.replace('127.0.0.1', 'localhost')], startTls: true },
  ];
  for (const how of overTls) {
    expect(await createDirectory({ ...how, ca }).signIn('alice', 'alice password')).toEqual(ALICE);
    for (const wrong of [{ ca: outsider }, {}, { ca, serverName: 'ldap.elsewhere.invalid' }])
      await expect(createDirectory({ ...how, ...wrong }).signIn('alice', 'alice password')).rejects.toMatchObject({
        code: 'directory_unavailable',
      });
  }
});

test('a rejected service account is reported as an internal failure, not as a wrong password', async () => {
  const locked = createDirectory({ password: 'not the password' });
  const failing = { name: 'Fault', code: 'directory_unavailable' };
  await expect(locked.signIn('alice', 'alice password')).rejects.toMatchObject(failing);
  await expect(locked.findById(ALICE.identity.slice(5))).rejects.toMatchObject(failing);
  await expect(
    createDirectory({ base: 'ou=nowhere,dc=example,dc=test' }).findByCertificateName('commonName', 'x'),
  ).rejects.toMatchObject(failing);
});

test('referrals are not followed', async () => {
  let requestCount = 0;
  const elsewhere = createServer(() => {
    requestCount += 1;
  });
  await new Promise<void>((resolve) => elsewhere.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void elsewhere.close());
  // A base on another server: the response is a referral, which is not "not found".
  await expect(
    createDirectory({ base: `ou=deep,ou=other,ou=people,${BASE_DN}` }).findByCertificateName(
      'commonName',
      'Alice Example',
    ),
  ).rejects.toMatchObject({ code: 'directory_unavailable' });
  // The same referral as a search result is ignored.
  expect(await createDirectory().findByCertificateName('commonName', 'Alice Example')).toEqual(ALICE);
  expect(requestCount).toBe(0);
});

test('a server that hangs or is stopped is never treated as "user not found", and is used again afterwards', async () => {
  const corp = createDirectory({ timeout: 1 });
  const unavailable = (): Promise<unknown> =>
    Promise.all(
      [
        corp.signIn('alice', 'alice password'),
        corp.findById(ALICE.identity.slice(5)),
        corp.findByCertificateName('commonName', 'Alice Example'),
      ].map((request) => expect(request).rejects.toMatchObject({ name: 'Fault', code: 'directory_unavailable' })),
    );
  // On a busy machine, this may take longer than the configured timeout.
  const reachable = (): Promise<void> =>
    vi.waitFor(async () => expect(await corp.findById(ALICE.identity.slice(5))).toEqual(ALICE), {
      timeout: 30_000,
    });
  await reachable();
  server.pause();
  try {
    await unavailable();
  } finally {
    server.resume();
  }
  await reachable();
  await server.stop();
  try {
    await unavailable();
  } finally {
    await server.start();
  }
  await reachable();
});

test('a second server is used when the first is unreachable, and users of another directory can sign in', async () => {
  // Tests never listen on a privileged port.
  const dead = 'ldap://127.0.0.1:9';
  expect(await createDirectory({ url: [dead, server.ldapUrl] }).signIn('alice', 'alice password')).toEqual(ALICE);
  const users = createUserDirectory({
    gone: {
      label: 'gone',
      users: [],
      derive: false,
      ldap: { ...SETTINGS, url: [dead] },
    },
    here: {
      label: 'here',
      users: [],
      derive: false,
      ldap: { ...SETTINGS, url: [server.ldapUrl] },
    },
  });
  expect((await users.signIn('alice', 'alice password'))?.directory).toBe('here');
  await expect(users.signIn('alice', 'wrong')).rejects.toMatchObject({ code: 'directory_unavailable' });
  await users.close();
});

const SETTINGS = { ...LDAP_SETTINGS, timeout: 5, connections: 2 };

test('concurrent requests use at most the configured number of connections, and connections are reused', async () => {
  let [open, most, all] = [0, 0, 0];
  const counter = createServer((socket) => {
    open += 1;
    all += 1;
    most = Math.max(most, open);
    const inner = connect(server.port, '127.0.0.1');
    socket.pipe(inner).pipe(socket);
    socket.on('error', () => inner.destroy());
    inner.on('error', () => socket.destroy());
    socket.once('close', () => {
      open -= 1;
      inner.destroy();
    });
  });
  await new Promise<void>((resolve) => counter.listen(0, '127.0.0.1', resolve));
  const { port } = counter.address() as { port: number };
  onTestFinished(() => void counter.close());
  const corp = createDirectory({ url: [`ldap://127.0.0.1:${port}`], connections: 2 });
  const found = await Promise.all(
    Array.from({ length: 20 }, () => corp.findByCertificateName('commonName', 'Alice Example')),
  );
  expect(new Set(found.map((user) => user?.identity))).toEqual(new Set([ALICE.identity]));
  expect(most).toBeLessThanOrEqual(2);
  expect(all).toBeLessThanOrEqual(2);
  // Beyond the queue, callers are rejected.
  const crowd = await Promise.allSettled(Array.from({ length: 200 }, () => corp.findById(ALICE.identity.slice(5))));
  expect(
    crowd.some((result) => result.status === 'rejected' && (result.reason as { code: string }).code === 'overloaded'),
  ).toBe(true);
  expect(most).toBeLessThanOrEqual(2);
  await corp.close();
});

test('an identity is cached for a while, a password never', async () => {
  const corp = createDirectory({ cacheLifetime: 60 });
  expect(await corp.findById(ALICE.identity.slice(5))).toEqual(ALICE);
  await server.stop();
  try {
    expect(await corp.findById(ALICE.identity.slice(5))).toEqual(ALICE);
    await expect(corp.signIn('alice', 'alice password')).rejects.toMatchObject({ name: 'Fault' });
  } finally {
    await server.start();
  }
});
