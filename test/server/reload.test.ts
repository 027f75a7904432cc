import { readFileSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { createCa, issue } from '../support/pki.ts';
import { type Client, until } from '../support/serve-process.ts';
import {
  connectClient,
  reloadUnderLoad,
  renewCertificatesUnderLoad,
  startLoad,
  startReloading,
} from './reload-under-load.ts';

test('O06 no request fails during reloads under load, half of them invalid, and each is served by one configuration', () =>
  reloadUnderLoad(5));

test('O07 no handshake fails while the server certificate is replaced, with incomplete files in between', () =>
  renewCertificatesUnderLoad(4));

const decodePart = (part: string): Record<string, unknown> =>
  JSON.parse(Buffer.from(part, 'base64url').toString()) as Record<string, unknown>;

test('O08 a new signing key is published before it is used, and no token is rejected meanwhile', async () => {
  const { folder, server } = await startReloading();
  const client = connectClient(folder, server);
  const { access_token: token } = await client.grant();
  const load = startLoad({
    port: server.port,
    ca: folder.ca.pem,
    path: '/files/1',
    token,
    http1: 2,
    http2: 1,
  });
  await load.waitForMore(20);
  const file = folder.file('data/keys.json');
  expect((await runCommand(['keys', 'rotate', file, '--publish-before', '3s'])).code).toBe(0);
  server.signal('SIGHUP');
  const { signing } = JSON.parse(readFileSync(file, 'utf8')) as {
    signing: readonly { readonly kid: string; readonly activeFrom: number }[];
  };
  const [old, fresh] = signing;
  await until('both keys are published', async () => {
    const { json } = await client.request({ path: '/authsvc/oauth2/jwks' });
    return isDeepStrictEqual(
      (json['keys'] as { kid: string }[]).map(({ kid }) => kid),
      [old?.kid, fresh?.kid],
    );
  });
  await until('the new key is used for signing', async () => {
    const { access_token: next } = await client.grant();
    expect(await client.isAccepted(next)).toBe(true);
    const [header, claims] = next.split('.').slice(0, 2).map(decodePart);
    const isFresh = Number(claims?.['iat']) >= (fresh?.activeFrom ?? 0);
    expect(header?.['kid']).toBe((isFresh ? fresh : old)?.kid);
    return isFresh;
  });
  expect(await client.isAccepted(token)).toBe(true);
  await load.waitForMore(20);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(await server.stop()).toBe(0);
});

test('O09 removing or adding an issuer also applies to open connections', async () => {
  const { folder, server } = await startReloading();
  const otherCa = await createCa({ name: 'CN=Other CA, O=Example' });
  const other = connectClient(folder, server, await issue(otherCa, { commonName: 'alice' }));
  const known = connectClient(folder, server);
  const grant = (client: Client) =>
    client.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' });
  const statuses = async (): Promise<readonly number[]> => [(await grant(known)).status, (await grant(other)).status];
  expect(await statuses()).toEqual([200, 401]);
  for (const [pem, expected] of [
    [otherCa.pem, [401, 200]],
    [folder.ca.pem, [200, 401]],
  ] as const) {
    folder.write('ca.pem', pem);
    server.signal('SIGHUP');
    await until(`the certificates get ${expected.join()}`, async () => isDeepStrictEqual(await statuses(), expected));
  }
  expect(await server.stop()).toBe(0);
});
