import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { getCertificateName } from '../../src/x509/certificate-name.ts';
import { decodeText, TAG } from '../../src/x509/der.ts';
import { issue } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      {
        clientId: 'browser-only',
        scope: 'files:read',
        grants: ['device'],
        access: [{ groups: ['operators'] }],
      },
      { clientId: 'readers-only', scope: 'files:read', access: [{ groups: ['readers'] }] },
      {
        clientId: 'readers-by-browser',
        scope: 'files:read',
        access: [{ groups: ['readers'] }, { groups: ['operators'], grants: ['device'] }],
      },
    ],
  }));
});
afterAll(() => gateway.close());

describe('C17: a valid certificate alone does not give a grant', () => {
  test.each([
    ['an integration without the certificate grant', 'browser-only', 'files:read', 400, 'unauthorized_client'],
    ['an integration whose access list names others', 'readers-only', 'files:read', 400, 'unauthorized_client'],
    [
      'an access list that allows the device grant only',
      'readers-by-browser',
      'files:read',
      400,
      'unauthorized_client',
    ],
    ['a scope beyond the integration', 'report-runner', 'files:delete', 400, 'invalid_scope'],
    ['an unknown integration', 'nobody', 'files:read', 400, 'invalid_grant'],
    ['everything matches', 'report-runner', 'files:read', 200, undefined],
  ])('%s', async (_, clientId, scope, status, error) => {
    const reply = await gateway.post(
      '/Authorize/Certificate',
      { client_id: clientId, scope },
      { as: gateway.users.alice },
    );
    expect([reply.status, reply.json['Error']]).toEqual([status, error]);
  });

  test('a scope beyond the access entries of the user', async () => {
    const body = { client_id: 'report-runner', scope: 'reports:read' };
    const reply = await gateway.post('/Authorize/Certificate', body, { as: gateway.users.bob });
    expect([reply.status, reply.json['Error']]).toEqual([400, 'invalid_scope']);
  });

  test('a name that is in no directory, for a known and an unknown integration', async () => {
    const unlisted = await issue(gateway.ca, { commonName: 'mallory' });
    for (const clientId of ['report-runner', 'nobody']) {
      const reply = await gateway.post(
        '/Authorize/Certificate',
        { client_id: clientId, scope: 'files:read' },
        { as: unlisted },
      );
      expect([reply.status, reply.json['Error']]).toEqual([401, 'access_denied']);
      expect(reply.headers['www-authenticate']).toBeDefined();
    }
  });
});

test('a byte order mark in a certificate name is part of the name, in every string type', () => {
  const bmp = decodeText({
    tag: TAG.bmpString,
    content: Buffer.from('feff0061006c006900630065', 'hex'),
    encoded: Buffer.alloc(0),
  });
  expect(bmp).toEqual({ ok: true, text: '\ufeffalice' });
  for (const asciiOnly of [true, false])
    expect(
      getCertificateName(
        { commonNames: [bmp], emails: [], userPrincipalNames: [] } as never,
        { identityFrom: 'commonName' },
        asciiOnly,
      ).ok,
    ).toBe(false);
});
