import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FORM } from '../support/device-steps.ts';
import { failing } from '../support/fault-injection.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { ALICE, type House, openHouse, type Reply } from '../support/house.ts';
import { type Certified, EKU, issue, makeCa, makeCrl } from '../support/pki.ts';
import { under, withIntegration, withUser } from '../support/reconfigure.ts';

/** Section 3 of the wire: POST Authorize/Certificate, one test for each row of its table. */
let house: House;
freezeClock(250);
beforeAll(async () => {
  house = await openHouse();
});
afterAll(() => house.close());

const files = { client_id: 'report-runner', scope: 'files:read' };
const ask = (body: unknown, as?: Certified, headers: Record<string, string> = {}): Promise<Reply> =>
  house.post('/Authorize/Certificate', body, { headers, ...(as !== undefined && { as }) });

/** On this route the description is always there and specific; 401 comes with a challenge. */
function expectRefusal(reply: Reply, status: 400 | 401, error: string, words: RegExp): void {
  expect(reply, reply.text).toMatchObject({ status, json: { Error: error } });
  expect(reply.json['Error_description']).toMatch(words);
  if (status === 401) expect(reply.headers['www-authenticate']).toMatch(/realm=/);
  else expect(reply.headers['www-authenticate']).toBeUndefined();
  expect(reply.json).not.toHaveProperty('access_token');
}

describe('400', () => {
  test('wire 3: 200 gives the grant with identity, and echoes the scope verbatim', async () => {
    const reply = await ask({ ...files, scope: 'Files:read;REPORTS:write,read;' }, house.people.alice);
    expect(reply).toMatchObject({
      status: 200,
      json: { identity: ALICE, scope: 'Files:read;REPORTS:write,read;', token_type: 'Bearer' },
    });
  });

  test('wire 3: 400 invalid_request when the body, the content type or client_id is missing', async () => {
    const { alice } = house.people;
    expectRefusal(await ask({ scope: 'files' }, alice), 400, 'invalid_request', /client_id/);
    expectRefusal(await ask([], alice), 400, 'invalid_request', /JSON object/);
    expectRefusal(await ask(files, alice, { 'content-type': FORM }), 400, 'invalid_request', /Content-Type/);
    const empty = await house.ask({ path: '/authsvc/Authorize/Certificate', method: 'POST', as: alice });
    expectRefusal(empty, 400, 'invalid_request', /Content-Type/);
  });

  test('wire 3: 400 invalid_request with Retry-After for our own failure, and no half-made grant', async () => {
    const { alice } = house.people;
    const reply = await failing(house.gateway.store.grants, 'create', 'does not happen', () =>
      ask(files, alice),
    );
    expectRefusal(reply, 400, 'invalid_request', /temporary.*retry/i);
    expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
    expect((await ask(files, alice)).status).toBe(200);
  });

  test('wire 3: 400 invalid_grant when client_id names no integration', async () => {
    const reply = await ask({ ...files, client_id: 'nobody' }, house.people.alice);
    expectRefusal(reply, 400, 'invalid_grant', /client_id/);
  });

  test.each([
    ['missing', undefined, /required/],
    ['empty', '', /required/],
    ['malformed', 'files::read', /malformed at character 7/],
    ['wider than the integration’s', 'files:read,write', /exceeds.*files:write/],
  ])('wire 3: 400 invalid_scope when the scope is %s', async (_, scope, words) => {
    expectRefusal(
      await ask({ client_id: 'report-runner', scope }, house.people.alice),
      400,
      'invalid_scope',
      words,
    );
  });

  test('wire 3: 400 invalid_scope when the scope is wider than this identity’s access entries', async () => {
    const reply = await ask({ ...files, scope: 'reports:read;files:read' }, house.people.bob);
    expectRefusal(reply, 400, 'invalid_scope', /reports:read/);
  });

  test('wire 3: 400 unauthorized_client when the integration does not allow the certificate grant', async () => {
    await under(house, withIntegration('report-runner', { grants: ['device'] }), async () =>
      expectRefusal(await ask(files, house.people.alice), 400, 'unauthorized_client', /certificate grant/),
    );
  });

  test('wire 3: 400 unauthorized_client when this identity has no access to this integration', async () => {
    const reply = await ask({ ...files, client_id: 'other-app' }, house.people.bob);
    expectRefusal(reply, 400, 'unauthorized_client', /not allowed/);
  });

  test('wire 3: 400 unauthorized_client when this identity has access, but not by this grant type', async () => {
    const access = [{ groups: ['operators'], grants: ['device' as const] }, { groups: ['readers'] }];
    await under(house, withIntegration('report-runner', { access }), async () =>
      expectRefusal(await ask(files, house.people.alice), 400, 'unauthorized_client', /kind of grant/),
    );
  });
});

describe('401 invalid_client', () => {
  test('wire 3: no certificate', async () => {
    expectRefusal(await ask(files), 401, 'invalid_client', /required; none was presented/);
  });

  test('wire 3: a missing certificate is reported before any problem with client_id', async () => {
    const known = await ask(files);
    const unknown = await ask({ ...files, client_id: 'nobody' });
    expect(unknown.text).toBe(known.text);
    expect(unknown.status).toBe(known.status);
  });

  test('wire 3: an issuer that is not approved', async () => {
    const stranger = await issue(await makeCa({ name: 'Strangers' }), { commonName: 'alice' });
    const refused = await ask(files, stranger);
    expectRefusal(refused, 401, 'invalid_client', /approved issuer/);
    // The chain cannot be judged: the connection is closed.
    expect(refused.headers.connection).toBe('close');
    // Where there is no certificate, nothing can be wrong with it.
    expect((await ask(files)).headers.connection).toBe('keep-alive');
  });

  test('wire 3: an approved issuer that this integration does not approve', async () => {
    const second = await makeCa({ name: 'Second CA' });
    writeFileSync(join(house.folder, 'second.pem'), second.pem);
    const change = withIntegration('report-runner', { issuers: ['second'] });
    await under(
      house,
      (settings) =>
        change({
          ...settings,
          certificates: { ...settings.certificates, issuers: ['ca.pem', 'second.pem'] },
        }),
      async () => {
        expectRefusal(await ask(files, house.people.alice), 401, 'invalid_client', /approved issuer/);
        expect((await ask(files, await issue(second, { commonName: 'alice' }))).status).toBe(200);
        expect((await ask({ ...files, client_id: 'other-app' }, house.people.alice)).status).toBe(200);
      },
    );
  });

  test('wire 3: outside its validity, also when it ends on an open connection', async () => {
    const hour = 3_600_000;
    const ended = await issue(house.ca, {
      commonName: 'alice',
      notBefore: new Date(Date.now() - 2 * hour),
      notAfter: new Date(Date.now() - hour),
    });
    expectRefusal(await ask(files, ended), 401, 'invalid_client', /not valid now/);
    const short = await issue(house.ca, { commonName: 'alice', notAfter: new Date(Date.now() + hour) });
    expect((await ask(files, short)).status).toBe(200);
    house.clock.advance(3_601);
    expectRefusal(await ask(files, short), 401, 'invalid_client', /not valid now/);
  });

  test('wire 3: revoked, from the call after the list was loaded, on the same connection', async () => {
    const revoked = await issue(house.ca, { commonName: 'alice' });
    expect((await ask(files, revoked)).status).toBe(200);
    const nextUpdate = new Date(Date.now() + 86_400_000);
    writeFileSync(
      join(house.folder, 'ca.crl'),
      (await makeCrl(house.ca, { revoked: [revoked], nextUpdate })).pem,
    );
    await under(
      house,
      (settings) => ({ ...settings, certificates: { ...settings.certificates, crls: ['ca.crl'] } }),
      async () => {
        expectRefusal(await ask(files, revoked), 401, 'invalid_client', /revoked/);
        expect((await ask(files, house.people.alice)).status).toBe(200);
      },
    );
  });

  test('wire 3: a CA that was removed stops counting at once, on the same connection', async () => {
    const other = await makeCa({ name: 'Other CA' });
    writeFileSync(join(house.folder, 'other.pem'), other.pem);
    expect((await ask(files, house.people.alice)).status).toBe(200);
    await under(
      house,
      (settings) => ({ ...settings, certificates: { ...settings.certificates, issuers: ['other.pem'] } }),
      async () =>
        expectRefusal(await ask(files, house.people.alice), 401, 'invalid_client', /approved issuer/),
    );
  });

  test('wire 3: a key usage that is not clientAuth', async () => {
    const server = await issue(house.ca, { commonName: 'alice', extendedKeyUsage: [EKU.serverAuth] });
    expectRefusal(await ask(files, server), 401, 'invalid_client', /cannot be used here/);
  });

  test('wire 3: no identity in it, or an ambiguous one', async () => {
    const nobody = await issue(house.ca, { commonName: [], subject: [{ O: ['Example'] }] });
    expectRefusal(await ask(files, nobody), 401, 'invalid_client', /no single clear identity/);
    const both = await issue(house.ca, { commonName: ['alice', 'bob'] });
    expectRefusal(await ask(files, both), 401, 'invalid_client', /no single clear identity/);
  });

  test('wire 3: a name in another place than the configured one is not taken instead', async () => {
    const onlyMail = await issue(house.ca, {
      commonName: [],
      subject: [{ O: ['Example'] }],
      emails: ['alice@example.test'],
    });
    expectRefusal(await ask(files, onlyMail), 401, 'invalid_client', /no single clear identity/);
  });

  test('wire 3: a certificate header is ignored from untrusted peers', async () => {
    const pem = encodeURIComponent(house.people.alice.pem);
    const headers = {
      'client-cert': `:${house.people.alice.der.toString('base64')}:`,
      'x-forwarded-client-cert': `Cert="${pem}"`,
      'x-ssl-client-cert': pem,
      'x-forwarded-tls-client-cert': house.people.alice.der.toString('base64'),
    };
    expectRefusal(await ask(files, undefined, headers), 401, 'invalid_client', /none was presented/);
    expect((await ask(files, house.people.bob, headers)).json['identity']).not.toBe(ALICE);
  });
});

describe('401 access_denied', () => {
  test('wire 3: a name that is not in the directory', async () => {
    const stranger = await issue(house.ca, { commonName: 'mallory' });
    expectRefusal(await ask(files, stranger), 401, 'access_denied', /not in the directory/);
  });

  test('wire 3: a name that is disabled', async () => {
    await under(house, withUser('alice', { disabled: true }), async () =>
      expectRefusal(await ask(files, house.people.alice), 401, 'access_denied', /disabled/),
    );
  });

  test('wire 3: a name in no integration’s access list, whatever client_id is asked for', async () => {
    await under(house, withUser('bob', { groups: [] }), async () => {
      for (const client_id of ['report-runner', 'other-app', 'nobody'])
        expectRefusal(
          await ask({ ...files, client_id }, house.people.bob),
          401,
          'access_denied',
          /any API integration/,
        );
    });
  });

  test('wire 3: descriptions never tell another person’s data', async () => {
    const stranger = await issue(house.ca, { commonName: 'mallory' });
    for (const reply of [
      await ask(files, stranger),
      await ask({ ...files, scope: 'reports' }, house.people.bob),
    ])
      expect(reply.text).not.toMatch(/alice|bob|mallory|5f0c2a52|operators|readers/i);
  });
});
