import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { parse } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';
import { BASE_DN, type LdapServer, SERVICE_ACCOUNT, startLdapServer } from '../support/ldap-server.ts';
import { CLIENT, startOpenIdProvider } from '../support/openid-provider.ts';
import { issue, issueServer } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Runs the examples of docs/sign-in.md and docs/pages.md unchanged, except for the addresses of the servers. */
const readBlock = (page: string, kind: string): string => {
  const text = readFileSync(join(import.meta.dirname, '../../docs', page), 'utf8');
  const found = new RegExp(`^\`\`\`yaml ${kind}\\n([\\s\\S]*?)^\`\`\`$`, 'm').exec(text)?.[1];
  if (found === undefined) throw new Error(`${page} has no ${kind} block`);
  return found;
};

let ldap: LdapServer;
beforeAll(async () => {
  ldap = await startLdapServer();
});
afterAll(() => ldap.remove());

const withServer = (yaml: string): SettingsInput =>
  parse(
    yaml
      .replaceAll('ldaps://ldap.example.com', ldap.ldapsUrl)
      .replaceAll('ldaps://dc1.example.com', 'ldaps://127.0.0.1:2')
      .replaceAll('ldaps://dc2.example.com', ldap.ldapsUrl)
      .replaceAll('dc=example,dc=com', BASE_DN),
  ) as SettingsInput;

const startUntilFinished = async (...args: Parameters<typeof startGateway>): Promise<TestGateway> => {
  const gateway = await startGateway(...args);
  onTestFinished(() => gateway.close());
  return gateway;
};

const startWith = (example: SettingsInput): Promise<TestGateway> =>
  startUntilFinished(
    (settings) => ({
      ...settings,
      directories: example.directories ?? {},
      certificates: { issuers: ['ca.pem'], directory: 'corp', ...example.certificates },
    }),
    (folder) => {
      writeFileSync(join(folder, 'ldap-ca.pem'), ldap.ca.pem);
      writeFileSync(join(folder, 'ldap-password'), `${SERVICE_ACCOUNT.password}\n`, { mode: 0o600 });
    },
  );

test('the LDAP example: password and certificate sign-in work, and an unreachable server is never treated as "user not found"', async () => {
  const gateway = await startWith(withServer(readBlock('sign-in.md', 'ldap')));
  const alice = await issue(gateway.ca, { emails: ['alice@example.test'] });
  const body = { client_id: 'report-runner', scope: 'reports:read' };
  const byCertificate = () => gateway.post('/Authorize/Certificate', body, { as: alice });
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  const end = await steps.decideInBrowser(codes, { userName: 'alice', password: 'alice password' });
  expect(end.text).toContain('Approved');
  const byPassword = await steps.exchange(codes.device_code);
  expect(byPassword.status).toBe(200);
  const granted = await byCertificate();
  expect(granted.json).toMatchObject({ identity: 'corp:{5f0c2a52-6d0e-4d0c-9c3e-000000000001}' });

  const outsider = await issue(gateway.ca, { emails: ['nobody@example.test'] });
  const unknown = await gateway.post('/Authorize/Certificate', body, { as: outsider });
  expect([unknown.status, unknown.json['Error']]).toEqual([401, 'access_denied']);

  await ldap.stop();
  // alice is cached; dora has not been looked up before.
  const dora = await issue(gateway.ca, { emails: ['dora@example.test'] });
  const unreachable = await gateway.post('/Authorize/Certificate', body, { as: dora });
  expect([unreachable.status, unreachable.json['Error']]).toEqual([400, 'invalid_request']);
  expect(unreachable.headers['retry-after']).toBeDefined();
  gateway.clock.advance(60);
  const later = await steps.requestCodes();
  await expect(steps.decideInBrowser(later, { userName: 'alice', password: 'alice password' })).rejects.toThrow(
    /503[^]*The sign-in service can’t be reached/,
  );
  await ldap.start();
  expect((await byCertificate()).status).toBe(200);
});

test('the Active Directory example, while the first of two servers is unreachable', async () => {
  const example = withServer(readBlock('sign-in.md', 'active-directory'));
  // OpenLDAP lacks the matching rule for nested groups.
  const { corp } = example.directories ?? {};
  if (corp?.ldap?.groups) corp.ldap.groups.nested = false;
  const gateway = await startWith(example);
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.decideInBrowser(codes, { userName: 'alice', password: 'alice password' });
  expect((await steps.exchange(codes.device_code)).status).toBe(200);
  expect(gateway.auditEvents('sign_in').at(-1)).toMatchObject({
    identity: 'corp:{3f2504e0-4f89-11d3-9a0c-0305e82c3301}',
  });
  await expect(
    steps.decideInBrowser(await steps.requestCodes(), { userName: 'dora', password: 'dora password' }),
  ).rejects.toThrow(/403[^]*Incorrect username or password/);
});

test('the OpenID Connect example', async () => {
  const gateway = await startUntilFinished();
  const origin = `https://localhost:${gateway.port}`;
  const back = `${origin}/authsvc/device/openid/works`;
  const provider = await startOpenIdProvider(await issueServer(gateway.ca), [back]);
  onTestFinished(() => provider.stop());
  const example = parse(
    readBlock('sign-in.md', 'openid').replace('https://login.example.com', provider.issuer),
  ) as SettingsInput;
  const { works } = example.signIn?.openid ?? {};
  if (works === undefined) throw new Error('no provider');
  works.ca = 'ca.pem';
  writeFileSync(join(gateway.folder, 'openid-secret'), CLIENT.secret, { mode: 0o600 });
  await gateway.reload((settings) => ({
    ...settings,
    publicUrl: origin,
    ...example,
    certificates: { issuers: [] },
  }));
  const agent = createAgent({ ca: gateway.ca.pem });
  onTestFinished(() => agent.destroy());
  const browser = new FormBrowser({ agent });
  const choose = await browser.open(`${origin}/authsvc/device/grants`);
  // No user of this directory has a password, so there is no password form.
  expect(choose.text).not.toContain('name="password"');
  expect(choose.text).toContain('Sign in with Example Login');
  await browser.submit('/openid');
  await browser.submit('', { login: 'alice', password: 'x' });
  expect((await browser.submit('')).text).toContain('Alice Example');
});

test('the branding example', async () => {
  const example = parse(readBlock('pages.md', 'settings')) as SettingsInput;
  const gateway = await startUntilFinished(
    (settings) => ({ ...settings, ...example }),
    (folder) => writeFileSync(join(folder, 'logo.svg'), '<svg xmlns="http://www.w3.org/2000/svg"/>'),
  );
  const page = await gateway.request({ path: '/authsvc/device', headers: { 'accept-language': 'de' } });
  for (const text of ['<span>Example Works</span>', 'Hilfe', 'data:image/svg+xml;base64,', '#0f766e'])
    expect(page.text).toContain(text);
});
