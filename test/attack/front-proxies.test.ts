import { afterAll, beforeAll, expect, test } from 'vitest';
import { type House, openHouse } from '../support/house.ts';
import type { Certified } from '../support/pki.ts';
import { under, withForwardedCertificates, withIntegration } from '../support/reconfigure.ts';
import { until } from '../support/serve-process.ts';

let house: House;
beforeAll(async () => {
  house = await openHouse();
});
afterAll(() => house.close());

const clientCert = (who: Certified) => ({ 'client-cert': `:${who.der.toString('base64')}:` });
const authorize = (headers: Record<string, string>) =>
  house.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }, { headers });

test('a certificate-bound token works with the certificate that the front proxy forwards, and with no other', () =>
  under(
    house,
    (settings) =>
      withForwardedCertificates(withIntegration('report-runner', { bindToCertificate: true })(settings)),
    async () => {
      const { alice, bob } = house.people;
      const token = String((await authorize(clientCert(alice))).json['access_token']);
      expect((await house.api('/files/a', token, { headers: clientCert(alice) })).status).toBe(200);
      expect((await house.api('/files/a', token, { headers: clientCert(bob) })).status).toBe(401);
      expect((await house.api('/files/a', token)).status).toBe(401);
      // The front proxy's own certificate does not identify its client.
      expect((await house.api('/files/a', token, { as: alice })).status).toBe(401);
    },
  ));

test('with forwardedHeader set, a forwarded certificate in any other header is ignored', () =>
  under(
    house,
    (settings) => ({
      ...settings,
      certificates: {
        ...settings.certificates,
        forwardedFrom: ['127.0.0.1'],
        forwardedHeader: 'ssl-client-cert',
      },
    }),
    async () => {
      const { alice } = house.people;
      expect((await authorize(clientCert(alice))).status).toBe(401);
      expect((await authorize({ 'ssl-client-cert': encodeURIComponent(alice.pem) })).status).toBe(200);
    },
  ));

test('a proxy removed from trustedProxies by a reload can no longer name the client address', async () => {
  const clientAddress = async (path: string): Promise<unknown> => {
    await house.api(path, undefined, { headers: { 'x-forwarded-for': '203.0.113.9' } });
    const line = await until('the request is logged', () =>
      house.log.find((one) => one.event === 'request' && one['path'] === path),
    );
    return line['from'];
  };
  await under(
    house,
    (settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }),
    async () => expect(await clientAddress('/listed')).toBe('203.0.113.9'),
  );
  expect(await clientAddress('/removed')).toBe('127.0.0.1');
});
