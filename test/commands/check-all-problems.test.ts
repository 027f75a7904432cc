import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';
import { createCa, issueServer, writePki } from '../support/pki.ts';

/** Schema errors, unknown names, missing files, and references that lead nowhere. */
const CONFIGURATION = `publicUrl: https://api.example.test
listen:
  port: many
  tls:
    certificate: server.pem
    key: server-key.pem
certificates:
  directory: staff
  issuers:
    - ca.pem
    - { file: other-ca.pem, identityFrom: nothing }
  crls: [ca.crl]
tokens:
  accessLifetime: 3600
directories:
  staff: { label: local, derive: true }
integrations:
  - { clientId: a, scope: files, access: [{ directory: nowhere }] }
upstreams:
  default: { url: "https://127.0.0.1:9", ca: upstream-ca.pem, certificate: client.pem, key: client-key.pem }
routes:
  - { path: /a/**, requires: files }
  - { path: /a/**, requires: mail }
  - { path: /a/b, requires: files, upstream: other }
tracing: { ca: tracing-ca.pem }
audit: { sink: webhook, webhook: { url: "https://127.0.0.1:9", secret: a-secret-of-enough-characters, ca: audit-ca.pem } }
admin: { port: 9443, prot: 1 }
`;

interface CheckOutput {
  readonly problems: readonly { readonly path: string; readonly message: string; readonly line?: number }[];
}

async function check(text: string, folder = testFolder()): Promise<CheckOutput['problems']> {
  const file = join(folder, 'gatehouse.yaml');
  writeFileSync(file, text);
  const { code, stdout, stderr } = await runCommand(['check', '-c', file, '--output', 'json']);
  expect([code, stderr]).toEqual([78, '']);
  return (JSON.parse(stdout) as CheckOutput).problems;
}

test('schema errors, cross-checks and missing files are reported together, each with setting and line', async () => {
  const problems = await check(CONFIGURATION);
  expect(problems.map(({ path, line }) => `${path} ${line}`).toSorted()).toEqual(
    [
      'admin.prot 27',
      'audit.webhook.ca 26',
      'certificates.crls[0] 12',
      'certificates.issuers[0] 10',
      'certificates.issuers[1].file 11',
      'certificates.issuers[1].identityFrom 11',
      'integrations[0].access[0].directory 18',
      'listen.port 3',
      'listen.tls.certificate 5',
      'listen.tls.key 6',
      'routes[1].path 23',
      'routes[2].path 24',
      'routes[2].upstream 24',
      'tokens.accessLifetime 14',
      'tracing.ca 25',
      'upstreams.default.ca 20',
      'upstreams.default.certificate 20',
      'upstreams.default.key 20',
    ].toSorted(),
  );
  const message = (path: string) => problems.find((one) => one.path === path)?.message;
  expect(message('listen.tls.certificate')).toMatch(/^\/.*\/server\.pem does not exist$/);
  expect(message('routes[1].path')).toContain('the same as routes[0]');
  expect(message('routes[2].path')).toContain('routes[0] (/a/**) matches all its requests');
});

test('files that exist are still checked while other settings are invalid', async () => {
  const folder = testFolder();
  const ca = await createCa();
  const server = await issueServer(ca);
  const other = await issueServer(await createCa());
  writePki(folder, { 'server.pem': server.pem, 'server-key.pem': other.keyPem, 'ca.pem': 'nothing' });
  const problems = await check(
    `listen:
  port: many
  tls: { certificate: server.pem, key: server-key.pem }
certificates:
  directory: staff
  issuers:
    - { file: ca.pem, identityFrom: nothing }
    - ca.pem
directories: { staff: { label: local, derive: true } }
`,
    folder,
  );
  expect(problems.map(({ path, line, message }) => [path, line, message.replaceAll(folder, '')])).toEqual([
    ['certificates.issuers[0].identityFrom', 7, expect.stringContaining('must be commonName')],
    ['listen.port', 2, expect.stringContaining('must be')],
    ['listen.tls.key', 3, '/server-key.pem is not the private key of the certificate in /server.pem'],
    [expect.stringMatching(/^certificates\.issuers\[[01]\]/), expect.any(Number), '/ca.pem contains no certificate'],
  ]);
});

test('a configuration that is not YAML is not checked further', async () => {
  const problems = await check('listen:\n\tport: 1\n');
  expect(problems).toEqual([
    {
      path: '',
      line: 2,
      column: 1,
      message: expect.stringContaining('is indented with a tab'),
      excerpt: '→port: 1',
    },
  ]);
});

test('unused files of another store or audit sink may be missing', async () => {
  const folder = testFolder();
  const file = join(folder, 'gatehouse.yaml');
  writeFileSync(
    file,
    'listen: { behindTls: true }\naudit: { webhook: { url: "https://127.0.0.1:9", ca: audit-ca.pem } }\n',
  );
  expect((await runCommand(['check', '-c', file])).code).toBe(0);
});

test('warnings name setting and line', async () => {
  const folder = testFolder();
  const file = join(folder, 'gatehouse.yaml');
  writeFileSync(file, 'listen: { behindTls: true }\nintegrations:\n  - { clientId: a, scope: f }\n');
  const { stderr } = await runCommand(['check', '-c', file]);
  expect(stderr).toContain('warning: integrations[0].access: is empty, so this integration cannot be used (line 3)\n');
});

test('a terminal gets wrapped lines, and a pipe one line per problem', async () => {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(file, 'listen: { behindTls: yes }\nintegrations:\n  - { clientId: a, scope: "a:b, c:d" }\n');
  const listLongLines = async (options: Parameters<typeof runCommand>[1]): Promise<readonly string[]> =>
    (await runCommand(['check', '-c', file], options)).stderr
      .split('\n')
      .filter((line) => line.length > 80 && !line.includes(file));
  expect(await listLongLines({ isErrorTerminal: true, errorColumns: 80 })).toEqual([]);
  expect(await listLongLines({ errorColumns: 80 })).not.toEqual([]);
});

test('users with SPIFFE IDs need the trust domain of their issuer', async () => {
  const folder = testFolder();
  writePki(folder, { 'ca.pem': (await createCa()).pem });
  const file = join(folder, 'gatehouse.yaml');
  const write = (issuer: string): void =>
    writeFileSync(
      file,
      `listen: { behindTls: true }
certificates: { identityFrom: uri, directory: staff, issuers: [${issuer}] }
directories:
  staff: { label: local, users: [{ name: billing, uri: "spiffe://example.org/billing" }, { name: web, uri: "https://example.org/web" }] }
`,
    );
  write('{ file: ca.pem }');
  expect((await runCommand(['check', '-c', file])).stderr).toContain(
    'certificates.issuers[0].trustDomain: is not set, so SPIFFE IDs of this issuer are refused, and spiffe://example.org/billing can never sign in with it; set trustDomain: example.org',
  );
  for (const issuer of ['{ file: ca.pem, trustDomain: example.org }', '{ file: ca.pem, identityFrom: dnsName }']) {
    write(issuer);
    expect((await runCommand(['check', '-c', file])).stderr).not.toContain('SPIFFE');
  }
});

test('a server certificate that is not valid for the hosts of publicUrl and the pages is reported', async () => {
  const folder = testFolder();
  const server = await issueServer(await createCa());
  writePki(folder, { 'server.pem': server.pem, 'server-key.pem': server.keyPem });
  const file = join(folder, 'gatehouse.yaml');
  const run = async (publicUrl: string, pages: string): Promise<string> => {
    writeFileSync(
      file,
      `publicUrl: ${publicUrl}\npages: { url: ${pages} }\nlisten: { tls: { certificate: server.pem, key: server-key.pem } }\n`,
    );
    return (await runCommand(['check', '-c', file])).stderr;
  };
  const both = await run('https://api.elsewhere.test', 'https://login.elsewhere.test');
  for (const [host, setting] of [
    ['api.elsewhere.test', 'publicUrl'],
    ['login.elsewhere.test', 'pages.url'],
  ])
    expect(both).toContain(
      `listen.tls.certificate: is not valid for ${host}, the host of ${setting}, and clients will reject it; request a certificate with the subjectAltName DNS:${host} (line 3)`,
    );
  expect(await run('https://localhost:8443', 'shared')).not.toContain('is not valid for');
  expect(await run('http://localhost:8443', 'shared')).toContain(
    'publicUrl: is http, but the listener uses TLS: clients that connect to it need https (line 1)',
  );
});

test.each([
  ['api.elsewhere.test', 'DNS:api.elsewhere.test'],
  ['192.0.2.7', 'IP:192.0.2.7'],
])(
  'a server certificate with %s only as its common name is reported, with the name to request',
  async (host, entry) => {
    const folder = testFolder();
    const ca = await createCa();
    const file = join(folder, 'gatehouse.yaml');
    writeFileSync(
      file,
      `publicUrl: https://${host}\nlisten: { tls: { certificate: server.pem, key: server-key.pem } }\n`,
    );
    for (const dnsNames of [[], ['other.elsewhere.test']]) {
      const server = await issueServer(ca, { commonName: host, dnsNames, addresses: [] });
      writePki(folder, { 'server.pem': server.pem, 'server-key.pem': server.keyPem });
      expect((await runCommand(['check', '-c', file])).stderr).toContain(
        `listen.tls.certificate: has ${host}, the host of publicUrl, only as the common name of its subject, which clients ignore; request a certificate with the subjectAltName ${entry} (line 2)`,
      );
    }
  },
);
