import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { watchEventLoop } from '../support/event-loop.ts';
import { largeCrl } from '../support/large-crl.ts';
import { type IssuedCertificate, issue, toPem } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** docs/performance.md: no request waits longer for a reload, whatever is in the lists. */
const LONGEST_MS = 50;
const ENTRIES = 1_000_000;

let gateway: TestGateway;
let gone: IssuedCertificate;
beforeAll(async () => {
  gateway = await startGateway();
  gone = await issue(gateway.ca, { commonName: 'alice' });
});
afterAll(() => gateway.close());

const withList = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  certificates: { ...settings.certificates, crls: ['large.crl'] },
});

test('a revocation list of a million entries does not block the event loop: new, unchanged and replaced', async () => {
  const { access_token: token } = await gateway.grant();
  const authorize = (as: IssuedCertificate) =>
    gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }, { as });
  const file = join(gateway.folder, 'large.crl');
  const served = { count: 0 };
  /** In CPU time of this thread, so that a busy machine changes nothing. */
  const blocked = async (): Promise<number> => {
    const { longestCpu } = await watchEventLoop(async () => {
      const reload = gateway.server.reload(gateway.server.settings());
      expect((await gateway.api('/files/a', token)).status).toBe(200);
      served.count += 1;
      await reload;
    });
    return longestCpu;
  };
  writeFileSync(file, await largeCrl(gateway.ca, 1));
  await gateway.reload(withList);
  await blocked();
  writeFileSync(file, await largeCrl(gateway.ca, ENTRIES, [gone]));
  expect(await blocked()).toBeLessThan(LONGEST_MS);
  expect((await authorize(gone)).status).toBe(401);
  expect((await authorize(gateway.users.alice)).status).toBe(200);
  expect(await blocked()).toBeLessThan(LONGEST_MS);
  writeFileSync(file, toPem('X509 CRL', await largeCrl(gateway.ca, ENTRIES + 1)));
  expect(await blocked()).toBeLessThan(LONGEST_MS);
  expect((await authorize(gone)).status).toBe(200);
  expect(served.count).toBe(4);
}, 180_000);
