import { readFileSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { createCa, issue } from '../support/pki.ts';
import { type Client, until } from '../support/serve-process.ts';
import {
  clientOf,
  loadOf,
  reloadUnderLoad,
  renewCertificatesUnderLoad,
  startReloading,
} from './reload-under-load.ts';

test('O06 reloads under load, half of them invalid: no request fails, and each sees one configuration', () =>
  reloadUnderLoad(5));

test('O07 server certificates one after the other, incomplete ones between them, and no handshake fails', () =>
  renewCertificatesUnderLoad(4));

const decoded = (part: string): Record<string, unknown> =>
  JSON.parse(Buffer.from(part, 'base64url').toString()) as Record<string, unknown>;

test('O08 a new signing key is published before it signs, and no token is refused over it', async () => {
  const { folder, server } = await startReloading();
  const one = clientOf(folder, server);
  const { access_token: token } = await one.grant();
  const load = loadOf({ port: server.port, ca: folder.ca.pem, path: '/files/1', token, http1: 2, http2: 1 });
  await load.waitForMore(20);
  const file = folder.file('data/keys.json');
  expect((await runCommand(['keys', 'rotate', file, '--publish-before', '3s'])).code).toBe(0);
  server.signal('SIGHUP');
  const { signing } = JSON.parse(readFileSync(file, 'utf8')) as {
    signing: readonly { readonly kid: string; readonly activeFrom: number }[];
  };
  const [old, fresh] = signing;
  await until('both keys are published', async () => {
    const { json } = await one.request({ path: '/authsvc/oauth2/jwks' });
    return isDeepStrictEqual(
      (json['keys'] as { kid: string }[]).map(({ kid }) => kid),
      [old?.kid, fresh?.kid],
    );
  });
  await until('the new key signs', async () => {
    const { access_token: next } = await one.grant();
    expect(await one.isAccepted(next)).toBe(true);
    const [header, claims] = next.split('.').slice(0, 2).map(decoded);
    const isFresh = Number(claims?.['iat']) >= (fresh?.activeFrom ?? 0);
    expect(header?.['kid']).toBe((isFresh ? fresh : old)?.kid);
    return isFresh;
  });
  expect(await one.isAccepted(token)).toBe(true);
  await load.waitForMore(20);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(await server.stop()).toBe(0);
});

test('O09 an issuer that is removed or added applies to connections that are open already', async () => {
  const { folder, server } = await startReloading();
  const otherCa = await createCa({ name: 'CN=Other CA, O=Example' });
  const other = clientOf(folder, server, await issue(otherCa, { commonName: 'alice' }));
  const known = clientOf(folder, server);
  const grant = (one: Client) =>
    one.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' });
  const statuses = async (): Promise<readonly number[]> => [
    (await grant(known)).status,
    (await grant(other)).status,
  ];
  expect(await statuses()).toEqual([200, 401]);
  for (const [pem, expected] of [
    [otherCa.pem, [401, 200]],
    [folder.ca.pem, [200, 401]],
  ] as const) {
    folder.write('ca.pem', pem);
    server.signal('SIGHUP');
    await until(`the certificates get ${expected.join()}`, async () =>
      isDeepStrictEqual(await statuses(), expected),
    );
  }
  expect(await server.stop()).toBe(0);
});
