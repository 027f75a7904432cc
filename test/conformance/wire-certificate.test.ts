import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FORM } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createCa, createCrl, EKU, type IssuedCertificate, issue } from '../support/pki.ts';
import { withIntegration, withSettings, withUser } from '../support/reconfigure.ts';
import { ALICE, type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Wire specification, section 3: POST Authorize/Certificate, one test for each row of its table. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const files = { client_id: 'report-runner', scope: 'files:read' };
const requestGrant = (body: unknown, as?: IssuedCertificate, headers: Record<string, string> = {}): Promise<Reply> =>
  gateway.post('/Authorize/Certificate', body, { headers, ...(as !== undefined && { as }) });

/** Every error of this operation has a specific description; 401 has a challenge. */
function expectRefusal(reply: Reply, status: 400 | 401, error: string, args: RegExp): void {
  expect(reply, reply.text).toMatchObject({ status, json: { Error: error } });
  expect(reply.json['Error_description']).toMatch(args);
  if (status === 401) expect(reply.headers['www-authenticate']).toMatch(/realm=/);
  else expect(reply.headers['www-authenticate']).toBeUndefined();
  expect(reply.json).not.toHaveProperty('access_token');
}

describe('400', () => {
  test('wire 3: 200 returns the grant with identity, and echoes the scope verbatim', async () => {
    const reply = await requestGrant({ ...files, scope: 'Files:read;REPORTS:write,read;' }, gateway.users.alice);
    expect(reply).toMatchObject({
      status: 200,
      json: { identity: ALICE, scope: 'Files:read;REPORTS:write,read;', token_type: 'Bearer' },
    });
  });

  test('wire 3: 400 invalid_request when the body, the content type or client_id is missing', async () => {
    const { alice } = gateway.users;
    expectRefusal(await requestGrant({ scope: 'files' }, alice), 400, 'invalid_request', /client_id/);
    expectRefusal(await requestGrant([], alice), 400, 'invalid_request', /JSON object/);
    expectRefusal(await requestGrant(files, alice, { 'content-type': FORM }), 400, 'invalid_request', /Content-Type/);
    const empty = await gateway.request({
      path: '/authsvc/Authorize/Certificate',
      method: 'POST',
      as: alice,
    });
    expectRefusal(empty, 400, 'invalid_request', /Content-Type/);
  });

  test('wire 3: 400 invalid_request with Retry-After for a store failure, and no partial grant', async () => {
    const { alice } = gateway.users;
    const reply = await withFailure(gateway.server.store.grants, 'create', 'not executed', () =>
      requestGrant(files, alice),
    );
    expectRefusal(reply, 400, 'invalid_request', /temporary.*retry/i);
    expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
    expect((await requestGrant(files, alice)).status).toBe(200);
  });

  test('wire 3: 400 invalid_grant when client_id names no integration', async () => {
    const reply = await requestGrant({ ...files, client_id: 'nobody' }, gateway.users.alice);
    expectRefusal(reply, 400, 'invalid_grant', /client_id/);
  });

  test.each([
    ['missing', undefined, /required/],
    ['empty', '', /required/],
    ['malformed', 'files::read', /malformed at character 7/],
    ['wider than the integration’s', 'files:read,write', /does not allow.*files:write/],
  ])('wire 3: 400 invalid_scope when the scope is %s', async (_, scope, words) => {
    expectRefusal(
      await requestGrant({ client_id: 'report-runner', scope }, gateway.users.alice),
      400,
      'invalid_scope',
      words,
    );
  });

  test('wire 3: 400 invalid_scope when the scope is wider than this identity’s access entries', async () => {
    const reply = await requestGrant({ ...files, scope: 'reports:read;files:read' }, gateway.users.bob);
    expectRefusal(reply, 400, 'invalid_scope', /reports:read/);
  });

  test('wire 3: 400 unauthorized_client when the integration does not allow the certificate grant', async () => {
    await withSettings(gateway, withIntegration('report-runner', { grants: ['device'] }), async () =>
      expectRefusal(await requestGrant(files, gateway.users.alice), 400, 'unauthorized_client', /certificate grant/),
    );
  });

  test('wire 3: 400 unauthorized_client when this identity has no access to this integration', async () => {
    const reply = await requestGrant({ ...files, client_id: 'other-app' }, gateway.users.bob);
    expectRefusal(reply, 400, 'unauthorized_client', /may not use/);
  });

  test('wire 3: 400 unauthorized_client when this identity has access, but not with this grant type', async () => {
    const access = [{ groups: ['operators'], grants: ['device' as const] }, { groups: ['readers'] }];
    await withSettings(gateway, withIntegration('report-runner', { access }), async () =>
      expectRefusal(await requestGrant(files, gateway.users.alice), 400, 'unauthorized_client', /grant type/),
    );
  });
});

describe('401 invalid_client', () => {
  test('wire 3: no certificate', async () => {
    expectRefusal(await requestGrant(files), 401, 'invalid_client', /required; none was presented/);
  });

  test('wire 3: a missing certificate is reported before any problem with client_id', async () => {
    const known = await requestGrant(files);
    const unknown = await requestGrant({ ...files, client_id: 'nobody' });
    expect(unknown.text).toBe(known.text);
    expect(unknown.status).toBe(known.status);
  });

  test('wire 3: an issuer that is not approved', async () => {
    const outsider = await issue(await createCa({ name: 'Strangers' }), { commonName: 'alice' });
    const rejected = await requestGrant(files, outsider);
    expectRefusal(rejected, 401, 'invalid_client', /approved issuer/);
    // The chain was not verified, so the connection is closed.
    expect(rejected.headers.connection).toBe('close');
    // Without a certificate, the connection stays open.
    expect((await requestGrant(files)).headers.connection).toBe('keep-alive');
  });

  test('wire 3: an approved issuer that this integration does not approve', async () => {
    const second = await createCa({ name: 'Second CA' });
    writeFileSync(join(gateway.folder, 'second.pem'), second.pem);
    const change = withIntegration('report-runner', { issuers: ['second'] });
    await withSettings(
      gateway,
      (settings) =>
        change({
          ...settings,
          certificates: { ...settings.certificates, issuers: ['ca.pem', 'second.pem'] },
        }),
      async () => {
        expectRefusal(await requestGrant(files, gateway.users.alice), 401, 'invalid_client', /approved issuer/);
        expect((await requestGrant(files, await issue(second, { commonName: 'alice' }))).status).toBe(200);
        expect((await requestGrant({ ...files, client_id: 'other-app' }, gateway.users.alice)).status).toBe(200);
      },
    );
  });

  test('wire 3: outside its validity period, also if it expires on an open connection', async () => {
    const hour = 3_600_000;
    const ended = await issue(gateway.ca, {
      commonName: 'alice',
      notBefore: new Date(Date.now() - 2 * hour),
      notAfter: new Date(Date.now() - hour),
    });
    expectRefusal(await requestGrant(files, ended), 401, 'invalid_client', /not valid now/);
    const short = await issue(gateway.ca, { commonName: 'alice', notAfter: new Date(Date.now() + hour) });
    expect((await requestGrant(files, short)).status).toBe(200);
    gateway.clock.advance(3_601);
    expectRefusal(await requestGrant(files, short), 401, 'invalid_client', /not valid now/);
  });

  test('wire 3: revoked, from the next call after the CRL was loaded, on the same connection', async () => {
    const revoked = await issue(gateway.ca, { commonName: 'alice' });
    expect((await requestGrant(files, revoked)).status).toBe(200);
    const nextUpdate = new Date(Date.now() + 86_400_000);
    writeFileSync(
      join(gateway.folder, 'ca.crl'),
      (await createCrl(gateway.ca, { revoked: [revoked], nextUpdate })).pem,
    );
    await withSettings(
      gateway,
      (settings) => ({ ...settings, certificates: { ...settings.certificates, crls: ['ca.crl'] } }),
      async () => {
        expectRefusal(await requestGrant(files, revoked), 401, 'invalid_client', /revoked/);
        expect((await requestGrant(files, gateway.users.alice)).status).toBe(200);
      },
    );
  });

  test('wire 3: a removed CA is not trusted from the next call on, on the same connection', async () => {
    const other = await createCa({ name: 'Other CA' });
    writeFileSync(join(gateway.folder, 'other.pem'), other.pem);
    expect((await requestGrant(files, gateway.users.alice)).status).toBe(200);
    await withSettings(
      gateway,
      (settings) => ({ ...settings, certificates: { ...settings.certificates, issuers: ['other.pem'] } }),
      async () =>
        expectRefusal(await requestGrant(files, gateway.users.alice), 401, 'invalid_client', /approved issuer/),
    );
  });

  test('wire 3: a key usage that is not clientAuth', async () => {
    const server = await issue(gateway.ca, { commonName: 'alice', extendedKeyUsage: [EKU.serverAuth] });
    expectRefusal(await requestGrant(files, server), 401, 'invalid_client', /cannot be used here/);
  });

  test('wire 3: a certificate without an identity, or with an ambiguous one', async () => {
    const unknown = await issue(gateway.ca, { commonName: [], subject: [{ O: ['Example'] }] });
    expectRefusal(await requestGrant(files, unknown), 401, 'invalid_client', /no single clear identity/);
    const both = await issue(gateway.ca, { commonName: ['alice', 'bob'] });
    expectRefusal(await requestGrant(files, both), 401, 'invalid_client', /no single clear identity/);
  });

  test('wire 3: a name in another field than the configured one is not used instead', async () => {
    const onlyMail = await issue(gateway.ca, {
      commonName: [],
      subject: [{ O: ['Example'] }],
      emails: ['alice@example.test'],
    });
    expectRefusal(await requestGrant(files, onlyMail), 401, 'invalid_client', /no single clear identity/);
  });

  test('wire 3: a certificate header is ignored from untrusted peers', async () => {
    const pem = encodeURIComponent(gateway.users.alice.pem);
    const headers = {
      'client-cert': `:${gateway.users.alice.der.toString('base64')}:`,
      'x-forwarded-client-cert': `Cert="${pem}"`,
      'x-ssl-client-cert': pem,
      'x-forwarded-tls-client-cert': gateway.users.alice.der.toString('base64'),
    };
    expectRefusal(await requestGrant(files, undefined, headers), 401, 'invalid_client', /none was presented/);
    expect((await requestGrant(files, gateway.users.bob, headers)).json['identity']).not.toBe(ALICE);
  });
});

describe('401 access_denied', () => {
  test('wire 3: a name that is not in the directory', async () => {
    const outsider = await issue(gateway.ca, { commonName: 'mallory' });
    expectRefusal(await requestGrant(files, outsider), 401, 'access_denied', /not in the directory/);
  });

  test('wire 3: a name that is disabled', async () => {
    await withSettings(gateway, withUser('alice', { disabled: true }), async () =>
      expectRefusal(await requestGrant(files, gateway.users.alice), 401, 'access_denied', /disabled/),
    );
  });

  test('wire 3: a name in no integration’s access list, whatever client_id is requested', async () => {
    await withSettings(gateway, withUser('bob', { groups: [] }), async () => {
      for (const client_id of ['report-runner', 'other-app', 'nobody'])
        expectRefusal(
          await requestGrant({ ...files, client_id }, gateway.users.bob),
          401,
          'access_denied',
          /any API integration/,
        );
    });
  });

  test('wire 3: descriptions never reveal another user’s data', async () => {
    const outsider = await issue(gateway.ca, { commonName: 'mallory' });
    for (const reply of [
      await requestGrant(files, outsider),
      await requestGrant({ ...files, scope: 'reports' }, gateway.users.bob),
    ])
      expect(reply.text).not.toMatch(/alice|bob|mallory|5f0c2a52|operators|readers/i);
  });
});
