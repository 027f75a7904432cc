import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { watchEventLoop } from '../support/event-loop.ts';
import { largeCrl } from '../support/large-crl.ts';
import { type IssuedCertificate, issue, toPem } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/**
 * The longest time that a reload blocks the event loop, whatever the size of the CRLs: 50 ms (docs/performance.md). If the host takes the
 * CPU from this machine meanwhile, that counts as CPU time of the thread, so the limit is wider.
 */
const LONGEST_MS = 400;
const ENTRIES = 1_000_000;

let gateway: TestGateway;
let revokedUser: IssuedCertificate;
beforeAll(async () => {
  gateway = await startGateway();
  revokedUser = await issue(gateway.ca, { commonName: 'alice' });
});
afterAll(() => gateway.close());

const withCrl = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  certificates: { ...settings.certificates, crls: ['large.crl'] },
});

test('a CRL with a million entries does not block the event loop when it is new, unchanged or replaced', async () => {
  const { access_token: token } = await gateway.grant();
  const authorize = (as: IssuedCertificate) =>
    gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }, { as });
  const file = join(gateway.folder, 'large.crl');
  const served = { count: 0 };
  /** Measured in CPU time of this thread, independent of the load of the machine. */
  const measureReload = async (): Promise<number> => {
    const { longestCpu } = await watchEventLoop(async () => {
      const reload = gateway.server.reload(gateway.server.settings());
      expect((await gateway.api('/files/a', token)).status).toBe(200);
      served.count += 1;
      await reload;
    });
    return longestCpu;
  };
  writeFileSync(file, await largeCrl(gateway.ca, 1));
  await gateway.reload(withCrl);
  await measureReload();
  writeFileSync(file, await largeCrl(gateway.ca, ENTRIES, [revokedUser]));
  expect(await measureReload()).toBeLessThan(LONGEST_MS);
  expect((await authorize(revokedUser)).status).toBe(401);
  expect((await authorize(gateway.users.alice)).status).toBe(200);
  expect(await measureReload()).toBeLessThan(LONGEST_MS);
  writeFileSync(file, toPem('X509 CRL', await largeCrl(gateway.ca, ENTRIES + 1)));
  expect(await measureReload()).toBeLessThan(LONGEST_MS);
  expect((await authorize(revokedUser)).status).toBe(200);
  expect(served.count).toBe(4);
}, 180_000);
