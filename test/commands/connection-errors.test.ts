import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo, Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { createCa, issue, issueServer, writePki } from '../support/pki.ts';

let directory: string;
/** Port of a TLS server with a certificate issued by ca.pem for localhost. */
let secure: number;
/** Ports of TLS servers with a certificate for another name, and with an expired one. */
let elsewhere: number;
let expired: number;
let plain: number;
const servers: Server[] = [];

async function listen(server: Server): Promise<number> {
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  servers.push(server);
  return (server.address() as AddressInfo).port;
}

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'gatehouse-mistakes-'));
  const ca = await createCa();
  const another = await createCa({ name: 'CN=Another' });
  const [server, otherHost, old, alice, bob, rsa] = await Promise.all([
    issueServer(ca),
    issueServer(ca, { dnsNames: ['elsewhere.test'], addresses: [] }),
    issueServer(ca, {
      notBefore: new Date(Date.now() - 7_200_000),
      notAfter: new Date(Date.now() - 3_600_000),
    }),
    issue(ca, { commonName: 'alice' }),
    issue(ca, { commonName: 'bob' }),
    issue(ca, { commonName: 'rsa', key: 'rsa2048' }),
  ]);
  writePki(directory, {
    'ca.pem': ca.pem,
    'another.pem': another.pem,
    'alice.pem': alice.pem,
    'alice-key.pem': alice.keyPem,
    'bob-key.pem': bob.keyPem,
    'rsa-key.pem': rsa.keyPem,
    token: 'not the token of anybody',
  });
  const ok = (_: unknown, response: { end(text: string): void }): void => response.end('{}');
  secure = await listen(createSecureServer({ cert: server.pem, key: server.keyPem }, ok));
  elsewhere = await listen(createSecureServer({ cert: otherHost.pem, key: otherHost.keyPem }, ok));
  expired = await listen(createSecureServer({ cert: old.pem, key: old.keyPem }, ok));
  plain = await listen(createServer(ok));
});
afterAll(() => {
  for (const server of servers) server.close();
  rmSync(directory, { recursive: true, force: true });
});

async function runAgainst(args: readonly string[]) {
  const { code, stderr } = await runCommand(args, {
    env: { GATEHOUSE_HOME: join(directory, 'home') },
    cwd: directory,
  });
  return { code, stderr };
}

/** The three commands that connect to a server. */
const COMMANDS: readonly (readonly [string, (url: string, ...more: readonly string[]) => string[]])[] = [
  ['login', (url, ...more) => ['login', '--url', url, '--client', 'a', '--scope', 'f', ...more]],
  ['grants', (url, ...more) => ['grants', 'list', '--url', url, '--token-file', 'token', ...more]],
  ['call', (url, ...more) => ['call', url, ...more]],
];

test.each(COMMANDS)('%s: a server certificate of an unknown CA', async (_, args) => {
  const url = `https://localhost:${secure}`;
  expect(await runAgainst(args(url))).toEqual({
    code: 69,
    stderr: expect.stringMatching(
      / is not trusted: its certificate was not issued by a known CA; set the CA with --cacert FILE\n$/,
    ),
  });
  expect((await runAgainst(args(url, '--cacert', 'another.pem'))).stderr).toMatch(
    / its certificate was not issued by the CA in --cacert FILE\n$/,
  );
});

test.each(COMMANDS)('%s: a certificate for another name, and one that has expired', async (_, args) => {
  expect((await runAgainst(args(`https://localhost:${elsewhere}`, '--cacert', 'ca.pem'))).stderr).toMatch(
    /https:\/\/localhost:\d+ presented a certificate that is not valid for localhost\n$/,
  );
  expect((await runAgainst(args(`https://localhost:${expired}`, '--cacert', 'ca.pem'))).stderr).toMatch(
    / presented an expired certificate\n$/,
  );
});

test.each(COMMANDS)('%s: an https URL for an http port, and the reverse', async (_, args) => {
  expect(await runAgainst(args(`https://localhost:${plain}`))).toEqual({
    code: 69,
    stderr: expect.stringMatching(/ does not use TLS; is it an http address\?\n$/),
  });
  expect(await runAgainst(args(`http://localhost:${secure}`))).toEqual({
    code: 69,
    stderr: expect.stringMatching(/ closed the connection without a response; is it an https address\?\n$/),
  });
});

test.each(COMMANDS)('%s: a key that does not match the certificate is exit code 78', async (_, args) => {
  for (const [cert, key, argv] of [
    ['alice.pem', 'bob-key.pem', 'the private key does not belong to the certificate'],
    // OpenSSL would continue without the certificate.
    ['alice.pem', 'rsa-key.pem', 'the private key does not belong to the certificate'],
    ['alice-key.pem', 'alice-key.pem', 'the certificate is not PEM'],
    ['alice.pem', 'alice.pem', 'the private key is not PEM'],
  ] as const) {
    const tlsArgs = ['--cacert', 'ca.pem', '--cert', cert, '--key', key];
    const { code, stderr } = await runAgainst(args(`https://localhost:${secure}`, ...tlsArgs));
    expect({ key, code }).toEqual({ key, code: 78 });
    expect(stderr).toContain(argv);
    expect(stderr).toMatch(/^[^\n]+\n$/);
  }
});

test.each(COMMANDS)('%s: a certificate without its key, and the reverse', async (_, args) => {
  for (const only of [
    ['--cert', 'alice.pem'],
    ['--key', 'alice-key.pem'],
  ])
    expect(await runAgainst(args(`https://localhost:${secure}`, '--cacert', 'ca.pem', ...only))).toEqual({
      code: 64,
      stderr: expect.stringContaining('--cert and --key go together'),
    });
});

test.each([...COMMANDS, ['health', (url: string) => ['health', '--url', url]] as const])(
  '%s: a URL without a scheme',
  async (name, args) => {
    const scheme = name === 'login' || name === 'call' ? 'https' : 'http';
    for (const bare of ['localhost:8443', '127.0.0.1:8443', '[::1]:8443', 'api.example.test', 'gate:8443'])
      expect(await runAgainst(args(bare))).toEqual({
        code: 64,
        stderr: expect.stringContaining(`${bare} is not a URL; did you mean ${scheme}://${bare}?\n`),
      });
    for (const other of ['ftp://x.test', 'nonsense', 'user:secret@x.test', 'javascript:secret']) {
      const { code, stderr } = await runAgainst(args(other));
      expect({ other, code }).toEqual({ other, code: 64 });
      expect(stderr).not.toContain('secret');
    }
  },
);

test('a host name that does not exist is named', async () => {
  const { code, stderr } = await runCommand(['call', 'http://nothing.invalid/files']);
  expect(code).toBe(69);
  expect(stderr).toMatch(
    /there is no host named nothing\.invalid; check the spelling \(ENOTFOUND\)|the DNS server did not respond to the query for nothing\.invalid/,
  );
});
