import { chmodSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';
import { createCa, createCrl, issueServer, writePki } from '../support/pki.ts';
import { LATER, openOwnerStore, testGrant } from '../support/store-fixtures.ts';

const DAY = 86_400_000;
const inDays = (days: number): Date => new Date(Date.now() + days * DAY);

const CONFIGURATION = `
listen: { tls: { certificate: server.pem, key: server-key.pem } }
certificates: { issuers: [ca.pem], crls: [ca.crl], directory: staff }
directories: { staff: { label: local, derive: true } }
upstreams: { default: { url: http://127.0.0.1:9 } }
routes: [{ path: /**, requires: any-token }]
`;

async function createInstallation(
  options: { readonly certificateDays?: number; readonly crlDays?: number } = {},
): Promise<{ readonly place: string; readonly config: string }> {
  const directory = testFolder();
  const ca = await createCa();
  const server = await issueServer(ca, { notAfter: inDays(options.certificateDays ?? 90) });
  const crl = await createCrl(ca, { thisUpdate: inDays(-10), nextUpdate: inDays(options.crlDays ?? 90) });
  writePki(directory, {
    'ca.pem': ca.pem,
    'server.pem': server.pem,
    'server-key.pem': server.keyPem,
    'ca.crl': crl.pem,
  });
  const config = join(directory, 'gatehouse.yaml');
  writeFileSync(config, CONFIGURATION);
  return { place: directory, config };
}

test('valid certificates and CRLs produce no messages', async () => {
  const { config } = await createInstallation();
  expect(await runCommand(['check', '-c', config])).toEqual({
    code: 0,
    stdout: `${config}: valid\n`,
    stderr: '',
  });
});

test('Redis is not contacted, and a success message does not claim it was', async () => {
  const { place, config } = await createInstallation();
  expect((await runCommand(['keys', 'new', join(place, 'keys.json')])).code).toBe(0);
  const redis = ['store.type=redis', 'store.url=redis://127.0.0.1:1', `keys.file=${join(place, 'keys.json')}`];
  const args = ['check', '-c', config, ...redis.flatMap((text) => ['--set', text])];
  const { code, stdout, stderr } = await runCommand(args);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  expect(stdout).toMatch(/: valid\nnote: Redis was not contacted: [^\n]+\n$/);
  expect(JSON.parse((await runCommand([...args, '--output', 'json'])).stdout)).toMatchObject({
    warnings: [],
    notes: [expect.stringContaining('Redis was not contacted')],
  });
});

test('a certificate that expires soon and an expired CRL are warnings', async () => {
  const { place, config } = await createInstallation({ certificateDays: 3, crlDays: -1 });
  const { code, stderr } = await runCommand(['check', '-c', config]);
  expect(code).toBe(0);
  expect(stderr).toMatch(
    new RegExp(
      `^warning: listen.tls.certificate: ${join(place, 'server.pem')} expires on .*; renew it before then and replace the file \\(line 2\\)$`,
      'm',
    ),
  );
  expect(stderr).toMatch(
    new RegExp(
      `^warning: certificates.crls\\[0\\]: ${join(place, 'ca.crl')}: the revocation list of ca expired on .* \\(line 3\\)$`,
      'm',
    ),
  );
  const json = await runCommand(['check', '-c', config, '--output', 'json']);
  expect(JSON.parse(json.stdout)).toMatchObject({
    ok: true,
    problems: [],
    warnings: [{}, {}].map(() => expect.any(String)),
  });
});

test('missing and mismatched files are all reported as problems', async () => {
  const { place, config } = await createInstallation();
  writePki(place, { 'server-key.pem': (await issueServer(await createCa())).keyPem, 'ca.pem': 'nothing' });
  const { code, stdout, stderr } = await runCommand(['check', '-c', config, '--set', 'upstreams.default.ca=none.pem']);
  expect({ code, stdout }).toEqual({ code: 78, stdout: '' });
  expect(stderr).toContain(`${join(place, 'server-key.pem')} is not the private key of the certificate in`);
  expect(stderr).toContain(`${join(place, 'ca.pem')} contains no certificate (line 3)`);
  expect(stderr).toMatch(/upstreams\.default\.ca +\/.*\/none\.pem does not exist \(from --set\)/);
});

test('a certificate in place of the key is reported at the key, without advice about its permissions', async () => {
  const { place, config } = await createInstallation();
  chmodSync(join(place, 'server.pem'), 0o644);
  const { code, stderr } = await runCommand(['check', '-c', config, '--set', 'listen.tls.key=server.pem']);
  expect(code).toBe(78);
  expect(stderr).toMatch(
    /^ +listen\.tls\.key +\/.*\/server\.pem contains a certificate, but no private key; name the file with the key \(from --set\)$/m,
  );
  expect(stderr).not.toMatch(/listen\.tls\.certificate|chmod/);
});

test('trusted issuers are not contacted, and a success message does not claim it', async () => {
  const { config } = await createInstallation();
  const issuer = ['issuer=https://id.example.test', 'audience=files-api'];
  const set = issuer.flatMap((text) => ['--set', `trustedIssuers.corp.${text}`]);
  const { code, stdout } = await runCommand(['check', '-c', config, ...set]);
  expect({ code, stdout }).toEqual({
    code: 0,
    stdout: expect.stringContaining('note: the trusted issuers were not contacted'),
  });
});

test('when certificate and key are both missing, both are reported', async () => {
  const { place, config } = await createInstallation();
  rmSync(join(place, 'server.pem'));
  rmSync(join(place, 'server-key.pem'));
  const { code, stderr } = await runCommand(['check', '-c', config]);
  expect(code).toBe(78);
  expect(stderr).toMatch(/listen\.tls\.certificate +\/.*\/server\.pem does not exist \(line 2\)/);
  expect(stderr).toMatch(/listen\.tls\.key +\/.*\/server-key\.pem does not exist \(line 2\)/);
});

test('an admin token that other users can read is a problem; one that gatehouse restricts itself is a warning', async () => {
  const { place, config } = await createInstallation();
  const file = join(place, 'admin-token');
  writeFileSync(file, 'a token of some length\n');
  const args = ['check', '-c', config, '--set', `admin.tokenFile=${file}`];
  for (const [mode, code, found] of [
    [0o644, 78, `  admin.tokenFile  other users can read ${file} (mode 644); run chmod 600`],
    [0o660, 0, `warning: admin.tokenFile: other users can read ${file} (mode 660); run chmod 600`],
  ] as const) {
    chmodSync(file, mode);
    const output = await runCommand(args);
    expect([output.code, output.stderr]).toEqual([code, expect.stringContaining(found)]);
  }
  chmodSync(file, 0o600);
  expect(await runCommand(args)).toMatchObject({ code: 0, stderr: '' });
});

test('a key file that other users can read is a problem; a missing one is created at the first start', async () => {
  const { place, config } = await createInstallation();
  expect((await runCommand(['check', '-c', config])).code).toBe(0);
  writeFileSync(join(place, 'keys.json'), '{}', { mode: 0o644 });
  const { code, stderr } = await runCommand(['check', '-c', config, '--set', 'keys.file=keys.json']);
  expect(code).toBe(78);
  expect(stderr).toMatch(/keys\.file +.*others can read this key file/);
});

test('an admin token file that cannot be read is a problem, not an internal error', async () => {
  const { place, config } = await createInstallation();
  symlinkSync('token', join(place, 'token'));
  const { code, stderr } = await runCommand(['check', '-c', config, '--set', 'admin.tokenFile=token']);
  expect(code).toBe(78);
  expect(stderr).toMatch(/admin\.tokenFile +.* cannot be read \(ELOOP\)/);
});

test('a missing key file is a problem if the store has grants or is Redis', async () => {
  const { place, config } = await createInstallation();
  const store = await openOwnerStore(join(place, 'data'));
  await store.grants.create('g1', testGrant({ id: 'g1' }), LATER);
  await store.close();
  const besideGrants = await runCommand(['check', '-c', config]);
  expect(besideGrants.code).toBe(78);
  expect(besideGrants.stderr).toContain('is missing, but the store in');
  const redis = ['--set', 'store.type=redis', '--set', 'store.url=redis://127.0.0.1:1/0'];
  const besideRedis = await runCommand(['check', '-c', config, ...redis]);
  expect(besideRedis.code).toBe(78);
  expect(besideRedis.stderr).toMatch(/keys\.file +.*replicas share one key file/);
});

test('an internal error is one line and exit code 70; the stack is printed on request only', async () => {
  const broken = {
    stdout: () => {
      throw new Error('unexpected');
    },
  };
  const quiet = await runCommand(['version'], broken);
  expect(quiet).toMatchObject({
    code: 70,
    stderr: 'gatehouse: internal error: unexpected (use --trace for the stack)\n',
  });
  for (const request of [
    await runCommand(['version', '--trace'], broken),
    await runCommand(['version'], { ...broken, env: { GATEHOUSE_TRACE: '1' } }),
  ])
    expect(request.stderr).toMatch(/^gatehouse: internal error: unexpected\n.*\n +at /);
});

test('forwardedFrom without forwardedHeader is a problem', async () => {
  const { config } = await createInstallation();
  const listed = ['check', '-c', config, '--set', 'certificates.forwardedFrom=10.0.0.0/8'];
  const { code, stderr } = await runCommand(listed);
  expect(code).toBe(78);
  expect(stderr).toMatch(/certificates\.forwardedHeader\S*\s+is missing/);
  const named = await runCommand([...listed, '--set', 'certificates.forwardedHeader=client-cert']);
  expect(named).toMatchObject({ code: 0, stderr: '' });
});

test('a public route on the origin of the pages is a warning', async () => {
  const { config } = await createInstallation();
  const check = async (routes: string, ...more: readonly string[]): Promise<string> => {
    writeFileSync(
      config,
      `${CONFIGURATION.replace(/routes: .*/, `routes: [${routes}, { path: /**, requires: any-token }]`)}
integrations: [{ clientId: app, scope: files:read, access: [{ directory: staff }], grants: [device] }]\n`,
    );
    const { code, stderr } = await runCommand(['check', '-c', config, ...more.flatMap((set) => ['--set', set])]);
    expect(code).toBe(0);
    return stderr.includes('warning: pages.url: is not set') ? 'warned' : stderr;
  };
  expect(await check('{ path: /app/**, public: true }')).toBe('warned');
  expect(await check('{ path: /app/**, methods: [POST], public: true }')).toBe('warned');
  expect(await check('{ path: /app/**, requires: any-token, reportOnly: true }')).toBe('warned');
  // A navigation has no token and is a GET or a POST.
  expect(await check('{ path: /app/**, methods: [DELETE], public: true }')).toBe('');
  expect(await check('{ path: /app/**, requires: files:read }')).toBe('');
  expect(await check('{ path: /app/**, host: www.example.test, public: true }')).toBe('');
  const open = '{ path: /app/**, public: true }';
  expect(await check(open, 'pages.url=shared')).toBe('');
  expect(await check(open, 'pages.url=https://login.example.test')).toBe('');
  expect(await check(open, 'device.enabled=false')).toMatch(
    /^warning: integrations: none of them can obtain a token[^\n]*\n$/,
  );
  expect(await check(open, 'pages.url=https://login.elsewhere.test')).toContain(
    'listen.tls.certificate: is not valid for login.elsewhere.test, the host of pages.url',
  );
});
