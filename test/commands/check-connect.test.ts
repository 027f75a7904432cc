import { createServer as createTlsServer } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { runCommand } from '../support/command-in-process.ts';
import { type ForeignIssuerServer, startForeignIssuer, withTrustedIssuer } from '../support/foreign-issuer-server.ts';
import { LDAP_SETTINGS, type LdapServer, startLdapServer } from '../support/ldap-server.ts';
import {
  CLIENT,
  createProviderSettings,
  type OpenIdProvider,
  startOpenIdProvider,
} from '../support/openid-provider.ts';
import { createCa, type IssuedCertificate, issueServer } from '../support/pki.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { listenTcp, type TcpServer } from '../support/tcp-server.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { baseSettings } from '../support/test-gateway.ts';

const PASSWORD = 'the-password-of-redis';
const folder = tempFolder('check-connect');
let [ca, otherCa]: IssuedCertificate[] = [];
let redis: RedisServer;
let issuer: ForeignIssuerServer;
let ldap: LdapServer;
let provider: OpenIdProvider;
let upstream: TcpServer;

beforeAll(async () => {
  [ca, otherCa] = await Promise.all([createCa(), createCa()]);
  const server = await issueServer(ca, { notAfter: new Date(Date.now() + 90 * 86_400_000) });
  [redis, issuer, ldap, provider, upstream] = await Promise.all([
    startRedis(['--requirepass', PASSWORD]),
    startForeignIssuer(),
    startLdapServer(),
    startOpenIdProvider(server, ['https://localhost:8443/authsvc/device/openid/login']),
    listenTcp(createTlsServer({ cert: server.pem, key: server.keyPem })),
  ]);
  folder.write('ca.pem', ca.pem);
  folder.write('other-ca.pem', otherCa.pem);
  folder.write('server.pem', server.pem);
  folder.write('server-key.pem', server.keyPem);
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
});
afterAll(async () => {
  issuer?.close();
  await Promise.all([redis?.stop(), ldap?.remove(), provider?.stop(), upstream?.close()]);
  folder.remove();
});

interface Addresses {
  readonly redisUrl: string;
  readonly issuerUrl: string;
  readonly ldapUrl: string;
  readonly providerUrl: string;
  readonly upstreamCa: string;
}

async function check({ redisUrl, issuerUrl, ldapUrl, providerUrl, upstreamCa }: Addresses, ...args: string[]) {
  const base = baseSettings(9);
  const settings: SettingsInput = {
    ...withTrustedIssuer({ url: issuerUrl })(base),
    store: { type: 'redis', url: redisUrl },
    keys: { file: 'keys.json' },
    directories: {
      ...base.directories,
      corp: {
        label: 'people',
        ldap: { ...LDAP_SETTINGS, url: [ldapUrl], timeout: '5s', cacheLifetime: '1s' },
      },
    },
    signIn: { openid: { login: createProviderSettings(providerUrl, { ca: 'ca.pem' }) } },
    upstreams: { default: { url: `https://localhost:${upstream.port}`, ca: upstreamCa } },
  };
  folder.write('gatehouse.yaml', stringify(settings));
  return runCommand(['check', '--connect', '--config', folder.file('gatehouse.yaml'), ...args]);
}

const reachable = (): Addresses => ({
  redisUrl: `redis://:${PASSWORD}@127.0.0.1:${redis.port}`,
  issuerUrl: issuer.url,
  ldapUrl: ldap.ldapUrl,
  providerUrl: provider.issuer,
  upstreamCa: 'ca.pem',
});
const unreachable = (): Addresses => ({
  redisUrl: `redis://:${PASSWORD}@127.0.0.1:1`,
  issuerUrl: 'http://127.0.0.1:1',
  ldapUrl: 'ldap://127.0.0.1:1',
  providerUrl: 'https://localhost:1',
  upstreamCa: 'other-ca.pem',
});
const SETTINGS = [
  'store.url',
  'trustedIssuers.corp',
  'directories.corp.ldap',
  'signIn.openid.login',
  'upstreams.default',
];

test('check --connect prints a line for each dependency that it has reached', async () => {
  const { code, stdout, stderr } = await check(reachable());
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  const lines = stdout.split('\n');
  expect(lines.slice(0, SETTINGS.length)).toEqual([
    expect.stringMatching(/^ok: store\.url: Redis 127\.0\.0\.1:\d+: connected in \d+ ms/),
    expect.stringMatching(/^ok: trustedIssuers\.corp: http:\/\/127\.0\.0\.1:\d+: connected in \d+ ms \(1 key\)$/),
    expect.stringMatching(/^ok: directories\.corp\.ldap: ldap:\/\/\S+: connected in \d+ ms$/),
    expect.stringMatching(/^ok: signIn\.openid\.login: https:\/\/localhost:\d+: connected in \d+ ms$/),
    expect.stringMatching(/^ok: upstreams\.default: https:\/\/localhost:\d+: connected in \d+ ms$/),
  ]);
  expect(stdout).not.toContain('not contacted');
  expect(stdout).not.toContain(PASSWORD);
});

test('check --connect reports each dependency that it has not reached, with the reason and exit code 78', async () => {
  const { code, stdout, stderr } = await check(unreachable());
  expect(code).toBe(78);
  expect(stdout.trim().split('\n')).toEqual([
    'failed: store.url: Redis 127.0.0.1:1: Redis: connection refused',
    expect.stringMatching(/^failed: trustedIssuers\.corp: http:\/\/127\.0\.0\.1:1: .*ECONNREFUSED.*; nothing listens/),
    expect.stringMatching(
      /^failed: directories\.corp\.ldap: ldap:\/\/127\.0\.0\.1:1: LDAP: .*(?:refused|ECONNREFUSED)/,
    ),
    expect.stringMatching(/^failed: signIn\.openid\.login: https:\/\/localhost:1: OpenID: .*ECONNREFUSED/),
    expect.stringMatching(
      /^failed: upstreams\.default: .*; upstreams\.default\.ca must contain the CA that issued its certificate$/,
    ),
  ]);
  for (const setting of SETTINGS) expect(stderr).toContain(setting);
  for (const secret of [PASSWORD, CLIENT.secret, LDAP_SETTINGS.password]) expect(stdout + stderr).not.toContain(secret);
});

test('check --connect --output json lists the connections', async () => {
  const { code, stdout } = await check({ ...reachable(), redisUrl: unreachable().redisUrl }, '--output', 'json');
  const report = JSON.parse(stdout) as Record<string, unknown>;
  expect(code).toBe(78);
  expect(report).toMatchObject({ ok: false, problems: [{ path: 'store.url' }] });
  expect(report['connections']).toEqual(
    SETTINGS.map((setting) =>
      expect.objectContaining({ setting, ok: setting !== 'store.url', duration_ms: expect.any(Number) }),
    ),
  );
});

test('check --connect reports a wrong password of Redis', async () => {
  const { code, stdout } = await check({
    ...reachable(),
    redisUrl: `redis://:not-${PASSWORD}@127.0.0.1:${redis.port}`,
  });
  expect(code).toBe(78);
  expect(stdout).toMatch(/^failed: store\.url: Redis \S+: it rejected the user name or password$/m);
  expect(stdout).not.toContain(PASSWORD);
});
