import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { decodeJwt } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { type Reply, sendRequest } from '../support/https-client.ts';
import { createCa, type IssuedCertificate, issue } from '../support/pki.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
let carol: IssuedCertificate;

beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    tokens: { claims: ['name', 'email', 'groups'] },
    headers: { email: 'X-Forwarded-Email', groups: 'X-Forwarded-Groups' },
    upstreams: { default: { ...settings.upstreams?.['default'], assertion: {} } },
  }));
  carol = await issue(gateway.ca, { commonName: 'carol' });
});
afterAll(() => gateway.close());
beforeEach(() => {
  gateway.upstream.requests.length = 0;
});

const NAME = 'x-forwarded-preferred-username';

async function receive(token: string) {
  expect((await gateway.api('/files/1', token)).status).toBe(200);
  return gateway.upstream.requests.at(-1)?.headers ?? {};
}

/** The certificate names alice; the directory has her address and groups. */
const requestGrant = async (as: IssuedCertificate, clientId = 'report-runner') =>
  (await gateway.post('/Authorize/Certificate', { client_id: clientId, scope: 'files:read' }, { as })).json as {
    access_token: string;
    refresh_token: string;
  };

describe.each(['jwt', 'opaque'] as const)('with %s tokens', (format) => {
  beforeAll(() => gateway.reload((settings) => ({ ...settings, tokens: { ...settings.tokens, format } })));

  test('the upstream receives the name, the e-mail address and the groups', async () => {
    const { access_token: token } = await gateway.grant();
    const headers = await receive(token);
    expect(headers).toMatchObject({
      'x-forwarded-user': ALICE,
      [NAME]: 'alice',
      'x-forwarded-email': 'alice@example.test',
      'x-forwarded-groups': 'operators',
    });
    expect(decodeJwt(String(headers['x-gatehouse-assertion']))).toMatchObject({
      sub: ALICE,
      preferred_username: 'alice',
      email: 'alice@example.test',
      groups: ['operators'],
    });
  });

  test('any valid token may introspect itself, and no other', async () => {
    const [one, other] = [await gateway.grant(), await gateway.grant()];
    const introspect = (bearer: string, token: string): Promise<Reply> =>
      gateway.request({
        path: '/authsvc/oauth2/introspect',
        method: 'POST',
        headers: {
          authorization: `Bearer ${bearer}`,
          'content-type': 'application/x-www-form-urlencoded',
        },
        body: new URLSearchParams({ token }).toString(),
      });
    const own = await introspect(one.access_token, one.access_token);
    expect(own.status).toBe(200);
    expect(own.json).toMatchObject({ active: true, sub: ALICE, username: 'alice', groups: ['operators'] });
    expect((await introspect(one.access_token, other.access_token)).status).toBe(401);
    expect((await introspect(`${one.access_token}x`, `${one.access_token}x`)).status).toBe(401);
  });

  test('a refresh reads the profile from the directory again', async () => {
    const rename = (name: string) => (settings: SettingsInput) => {
      const [staff] = Object.entries(settings.directories ?? {});
      if (staff === undefined) throw new Error('no directory');
      const users = staff[1].users?.map((user) =>
        `local:${user.id}` === ALICE ? { ...user, name, email: `${name}@example.test` } : user,
      );
      return { ...settings, directories: { ...settings.directories, [staff[0]]: { ...staff[1], users } } };
    };
    const grant = await gateway.grant();
    await gateway.reload(rename('alicia'));
    try {
      expect(await receive(grant.access_token)).toMatchObject({ [NAME]: 'alice' });
      const refreshed = (await gateway.refresh(grant.refresh_token)).json;
      const retried = (await gateway.refresh(grant.refresh_token)).json;
      expect(retried['access_token']).toBe(refreshed['access_token']);
      const headers = await receive(String(refreshed['access_token']));
      expect(headers).toMatchObject({ [NAME]: 'alicia', 'x-forwarded-email': 'alicia@example.test' });
    } finally {
      await gateway.reload(rename('alice'));
    }
  });
});

test('by default an access token carries the name only, and the upstream receives the name only', async () => {
  await gateway.reload(({ headers: _headers, tokens: _tokens, ...settings }) => settings);
  const { access_token: token } = await gateway.grant();
  const { preferred_username, email, groups } = decodeJwt(token);
  expect({ preferred_username, email, groups }).toEqual({ preferred_username: 'alice' });
  const headers = await receive(token);
  expect(headers[NAME]).toBe('alice');
  expect(headers).not.toHaveProperty('x-forwarded-email');
  expect(headers).not.toHaveProperty('x-forwarded-groups');
  await gateway.reload((settings) => ({ ...settings, headers: { name: false } }));
  expect(await receive(token)).not.toHaveProperty(NAME);
  await gateway.reload((settings) => ({ ...settings, headers: {} }));
});

test('a workload without an entry keeps the name of its certificate when it refreshes', async () => {
  await gateway.reload((settings) => ({
    ...settings,
    directories: { ...settings.directories, machines: { label: 'machine', derive: true } },
    certificates: { ...settings.certificates, directory: 'machines' },
    integrations: (settings.integrations ?? []).map((integration) => ({
      ...integration,
      access: [...(integration.access ?? []), { directory: 'machines' }],
    })),
  }));
  const grant = await requestGrant(carol);
  expect((await receive(grant.access_token))[NAME]).toBe('carol');
  const refreshed = (await gateway.refresh(grant.refresh_token)).json;
  expect((await receive(String(refreshed['access_token'])))[NAME]).toBe('carol');
});

test('audit events of success name the request, the client address, the user and the certificate', async () => {
  await requestGrant(carol);
  const { serialNumber, fingerprint256 } = new X509Certificate(carol.pem);
  expect(gateway.auditEvents('grant_issued').at(-1)).toMatchObject({
    request_id: expect.stringMatching(/./),
    from: '127.0.0.1',
    name: 'carol',
    certificate_serial: serialNumber.toLowerCase().replace(/^0+/, ''),
    certificate_subject: 'CN=carol',
    certificate_fingerprint: fingerprint256.replaceAll(':', '').toLowerCase(),
    issuer: 'ca',
  });
});

test('a refused certificate and its issuer are named', async () => {
  const otherCa = await createCa({ name: 'CN=Rogue CA' });
  const mallory = await issue(otherCa, { commonName: 'mallory' });
  const reply = await gateway.post(
    '/Authorize/Certificate',
    { client_id: 'report-runner', scope: 'files:read' },
    { as: mallory },
  );
  expect(reply.status).toBe(401);
  expect(gateway.auditEvents('grant_denied').at(-1)).toMatchObject({
    reason: 'certificate_issuer_not_approved',
    request_id: reply.headers['x-request-id'],
    from: '127.0.0.1',
    certificate_subject: 'CN=mallory',
    certificate_issuer: expect.stringContaining('CN=Rogue CA'),
  });
});

describe('the operator', () => {
  const admin = async (method: string, path: string, body?: unknown): Promise<Reply> =>
    sendRequest({
      port: gateway.adminPort,
      plain: true,
      method,
      path: `/admin/v1${path}`,
      headers: {
        authorization: `Bearer ${readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim()}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  const find = async (query: Readonly<Record<string, string>>) => {
    const reply = await admin('GET', `/grants?${new URLSearchParams(query).toString()}`);
    return { status: reply.status, grants: reply.json['grants'] as Record<string, unknown>[] | undefined };
  };
  const issueFor = async (commonName: string) => {
    const certificate = await issue(gateway.ca, { commonName });
    const tokens = await requestGrant(certificate);
    return { certificate, tokens, x509: new X509Certificate(certificate.pem) };
  };

  test.each([
    ['name', () => 'dave'],
    ['name', () => 'DAVE'],
    ['serial', (x509: X509Certificate) => x509.serialNumber],
    ['serial', (x509: X509Certificate) => `00:${x509.serialNumber.toLowerCase()}`],
    ['serial', (x509: X509Certificate) => `serial=${x509.serialNumber}`],
    ['fingerprint', (x509: X509Certificate) => `sha256 Fingerprint=${x509.fingerprint256}`],
    ['fingerprint', (x509: X509Certificate) => x509.fingerprint256],
    ['fingerprint', (x509: X509Certificate) => x509.fingerprint256.replaceAll(':', '').toLowerCase()],
    ['subject', () => 'CN=dave'],
  ])('finds grants by %s', async (field, read) => {
    const { x509 } = await issueFor('dave');
    await issueFor('erin');
    const { grants } = await find({ [field]: read(x509) });
    expect(grants?.length).toBeGreaterThan(0);
    expect(grants?.every(({ name }) => name === 'dave')).toBe(true);
    expect(grants?.[0]).toMatchObject({ certificate_subject: 'CN=dave', certificate_issuer: 'ca' });
  });

  test('finds grants by the e-mail address in the directory, and rejects unclear questions', async () => {
    expect((await find({ email: 'unknown@example.test' })).grants).toEqual([]);
    for (const query of [
      { serial: 'xyz' },
      { fingerprint: 'abc' },
      { name: '' },
      { subject: 'x'.repeat(2_000) },
      { name: 'dave', serial: '1' },
    ])
      expect((await find(query)).status).toBe(400);
  });

  test('revokes the grants of one certificate, and not those of another with the same name', async () => {
    const [one, other] = [await issueFor('frank'), await issueFor('frank')];
    const reply = await admin('POST', '/revoke', { serial: one.x509.serialNumber });
    expect(reply.json).toMatchObject({ live_grants: 1 });
    expect((await gateway.api('/files/1', one.tokens.access_token)).status).toBe(401);
    expect((await gateway.api('/files/1', other.tokens.access_token)).status).toBe(200);
    expect(gateway.auditEvents('admin_action').at(-1)).toMatchObject({ act: 'revoke_grant', name: 'frank' });
  });

  test('revokes everything of a name that only grants know', async () => {
    const { tokens } = await issueFor('grace');
    expect((await admin('POST', '/revoke', { name: 'unknown' })).status).toBe(404);
    expect((await admin('POST', '/revoke', { name: 'grace' })).status).toBe(200);
    expect((await gateway.api('/files/1', tokens.access_token)).status).toBe(401);
    for (const body of [{ serial: 'xyz' }, { colour: 'red' }, { name: 'a', serial: '1' }, {}, { name: 7 }])
      expect((await admin('POST', '/revoke', body)).status).toBe(400);
  });
});
