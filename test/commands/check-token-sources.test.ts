import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

const HASH = `sha256:${'A'.repeat(43)}`;
const ACCESS = 'access: [{ directory: staff }]';
const OPENID =
  'signIn: { openid: { corp: { title: Corp, issuer: "https://id.test", clientId: a, directory: staff, means: userName } } }';

async function check(
  integration: string,
  rest = '',
  route = 'requires: files',
  isDisabled = false,
): Promise<readonly string[]> {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(
    file,
    `
publicUrl: https://gate.test
listen: { behindTls: true }
upstreams: { default: { url: "http://127.0.0.1:9" } }
directories: { staff: { label: local, users: [{ name: carol, disabled: ${isDisabled} }, { name: dave, groups: [former], disabled: true }] } }
integrations: [{ clientId: files, scope: files${integration === '' ? '' : `, ${integration}`} }]
routes: [{ path: /files, ${route} }]
${rest}
`,
  );
  const { code, stderr } = await runCommand(['check', '-c', file, '--set', 'pages.url=shared']);
  expect([code, stderr]).toEqual([0, expect.anything()]);
  return stderr.split('\n').filter((line) => line.includes('obtain a token'));
}

test.each([
  ['a person without a password', ACCESS],
  ['only device authorization', `${ACCESS}, grants: [device]`],
  ['only certificates', `${ACCESS}, grants: [certificate]`],
  ['access only for certificates, and no issuer', 'access: [{ directory: staff, grants: [certificate] }]'],
])('check warns if there is no way to obtain a token: %s', async (_, integration) => {
  expect(await check(integration)).toHaveLength(1);
});

test.each([
  ['a client secret', `grants: [client], clientSecretHashes: ["${HASH}"]`, ''],
  ['an OpenID provider', ACCESS, OPENID],
])('check does not warn: %s', async (_, integration, rest) => {
  expect(await check(integration, rest)).toEqual([]);
});

test.each([
  ['only certificates, and no issuer', `${ACCESS}, grants: [certificate]`, ''],
  ['only device authorization, which is disabled', `${ACCESS}, grants: [device]`, 'device: { enabled: false }'],
  ['no access', '', ''],
  ['access only for a grant type that is off', 'access: [{ directory: staff, grants: [certificate] }]', ''],
  ['access only for a group of a disabled user', 'access: [{ groups: [former] }]', ''],
])('check names the integrations if they are the reason: %s', async (_, integration, rest) => {
  const [warning, ...more] = await check(integration, `${OPENID}\n${rest}`);
  expect(warning).toContain('integrations: none of them can obtain a token');
  expect(warning).not.toContain('is empty');
  expect(more).toEqual([]);
});

test('check warns if every user is disabled', async () => {
  const [warning] = await check(ACCESS, OPENID, 'requires: files', true);
  expect(warning).toContain('directories: every user is disabled');
});

test('check does not warn if no route requires a token', async () => {
  expect(await check(ACCESS, '', 'public: true')).toEqual([]);
});

test('check names the missing grant type of an integration with a secret', async () => {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(
    file,
    `
publicUrl: https://gate.test
listen: { behindTls: true }
pages: { url: shared }
upstreams: { default: { url: "http://127.0.0.1:9" } }
integrations: [{ clientId: files, scope: files, clientSecretHashes: ["${HASH}"] }]
routes: [{ path: /files, requires: files }]
`,
  );
  expect((await runCommand(['check', '-c', file])).stderr).toContain(
    'warning: integrations[0].grants: does not include client, although the integration has a secret or a key',
  );
});
