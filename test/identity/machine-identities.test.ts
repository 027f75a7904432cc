import { execFile, execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { readPage } from '../documentation/pages.ts';
import { needs } from '../set-up/programs.ts';
import { createCa, issue } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

needs('openssl');
needs('curl');

let gateway: TestGateway | undefined;
afterEach(() => gateway?.close());

/** The indented blocks of this kind in docs/certificates.md. */
const readSteps = (kind: string): string[] =>
  [...readPage('docs/certificates.md').matchAll(/^ {3}```(.*)\n([\s\S]*?)^ {3}```$/gm)].flatMap(
    ([, info, text = '']) => (info === kind ? [text.replace(/^ {3}/gm, '')] : []),
  );

test('the SPIFFE example of the documentation works as written, with certificates of OpenSSL', async () => {
  const [create = '', identify = '', request = ''] = readSteps('sh spiffe');
  const [yaml = ''] = readSteps('yaml spiffe');
  const settings = parse(yaml) as SettingsInput;
  const sh = (command: string, cwd: string): string =>
    execFileSync('/bin/sh', ['-ec', command], { cwd, encoding: 'utf8', stdio: 'pipe' });
  gateway = await startGateway(
    (base) => ({
      ...base,
      ...settings,
      directories: { ...base.directories, ...settings.directories },
      integrations: [...(base.integrations ?? []), ...(settings.integrations ?? [])],
    }),
    (folder) => void sh(create, folder),
  );
  const { folder, port, ca } = gateway;
  writeFileSync(join(folder, 'server-ca.pem'), ca.pem);
  const [id] = sh(identify, folder).split(' ');
  // The gateway is in this process, so curl must not block it.
  const { promise, resolve } = Promise.withResolvers<string>();
  execFile('/bin/sh', ['-ec', request.replace(':8443', `:${port}`)], { cwd: folder }, (_error, stdout) =>
    resolve(stdout),
  );
  expect(JSON.parse(await promise)).toMatchObject({ scope: 'files:read', identity: `wl:${id}` });
  expect(JSON.stringify(settings.integrations)).toContain(`wl:${id}`);
});

describe('two CAs with SPIFFE IDs', () => {
  const ACCESS = { clientId: 'billing', scope: 'files:read', access: [{ groups: ['workloads'] }] };

  test('neither can assert a workload of the other, and a listed workload is found by its URI', async () => {
    const [a, b] = await Promise.all([createCa({ name: 'CN=A' }), createCa({ name: 'CN=B' })]);
    gateway = await startGateway(
      (base) => ({
        ...base,
        certificates: {
          directory: 'workloads',
          identityFrom: 'uri',
          issuers: [
            { file: 'a.pem', trustDomain: 'a.test' },
            { file: 'b.pem', trustDomain: 'b.test' },
          ],
        },
        directories: {
          ...base.directories,
          workloads: {
            label: 'wl',
            users: [{ id: '0a0b0c0d', name: 'billing', uri: 'spiffe://a.test/billing', groups: ['workloads'] }],
          },
        },
        integrations: [...(base.integrations ?? []), ACCESS],
      }),
      (folder) => {
        writeFileSync(join(folder, 'a.pem'), a.pem);
        writeFileSync(join(folder, 'b.pem'), b.pem);
      },
    );
    const uris = ['spiffe://a.test/billing'];
    const [own, foreign] = await Promise.all([issue(a, { uris }), issue(b, { uris })]);
    const body = { client_id: 'billing', scope: 'files:read' };
    const allowed = await gateway.post('/Authorize/Certificate', body, { as: own });
    expect(allowed).toMatchObject({ status: 200, json: { identity: 'wl:0a0b0c0d' } });
    const refused = await gateway.post('/Authorize/Certificate', body, { as: foreign });
    expect(refused).toMatchObject({ status: 401, json: { Error: 'invalid_client' } });
    expect(gateway.auditEvents('grant_denied').at(-1)).toMatchObject({
      reason: 'certificate_name_unusable',
      detail: 'its URI is not in the trust domain of its issuer',
    });
  });
});
