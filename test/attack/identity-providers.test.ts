import { connect, createServer, type Socket } from 'node:net';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createLdapDirectory, type LdapSettings } from '../../src/identity/ldap-directory.ts';
import { createOpenIdProvider } from '../../src/identity/openid-provider.ts';
import type { Directory } from '../../src/ports/directory.ts';
import { LDAP_SETTINGS, type LdapServer, startLdapServer } from '../support/ldap-server.ts';
import { CLIENT, startOpenIdProvider } from '../support/openid-provider.ts';
import { createCa, issueServer } from '../support/pki.ts';

describe('LDAP with StartTLS', () => {
  let server: LdapServer;
  beforeAll(async () => {
    server = await startLdapServer();
  });
  afterAll(() => server.remove());

  /** Connects to the directory through a man in the middle that can read and change unencrypted bytes. */
  async function connectThrough(
    intercept: (client: Socket, upstream: Socket) => void,
    changes: Partial<LdapSettings> = {},
  ): Promise<Directory> {
    const relay = createServer((client) => {
      const upstream = connect(server.port, '127.0.0.1');
      client.on('error', () => upstream.destroy()).on('close', () => upstream.destroy());
      upstream.on('error', () => client.destroy()).on('close', () => client.destroy());
      intercept(client, upstream);
    });
    await new Promise<void>((resolve) => relay.listen(0, '127.0.0.1', resolve));
    onTestFinished(() => new Promise<void>((resolve) => relay.close(() => resolve())));
    const { port } = relay.address() as { port: number };
    const directory = createLdapDirectory('corp', 'corp', {
      ...LDAP_SETTINGS,
      url: [`ldap://localhost:${port}`],
      startTls: true,
      ca: server.ca.pem,
      timeout: 30,
      ...changes,
    });
    // Cleanups run in reverse order: the directory closes its connections before the server waits for them.
    onTestFinished(() => directory.close());
    return directory;
  }

  /** A successful bind response whose diagnostic message consumes the 14 bytes of the real response. */
  const FORGED = Buffer.from('301a02010361150a01000400040e', 'hex');

  test('bytes injected after the StartTLS response close the connection, so no bind response can be forged', async () => {
    let injected = 0;
    const corp = await connectThrough((client, upstream) => {
      client.pipe(upstream);
      upstream.once('data', (response: Buffer) => {
        injected += 1;
        client.write(Buffer.concat([response, FORGED]));
        upstream.pipe(client);
      });
    });
    await expect(corp.signIn('alice', 'not her password')).rejects.toMatchObject({
      code: 'directory_unavailable',
    });
    expect(injected).toBeGreaterThan(0);
  });

  test('a server that accepts StartTLS and then sends nothing counts as unreachable after `timeout`', async () => {
    const corp = await connectThrough(
      (client, upstream) => {
        client.pipe(upstream);
        upstream.once('data', (response: Buffer) => {
          upstream.pause();
          client.write(response);
        });
      },
      { timeout: 1 },
    );
    await expect(corp.signIn('alice', 'alice password')).rejects.toMatchObject({
      code: 'directory_unavailable',
    });
  });
});

test('an OpenID provider can be closed twice, as happens in a reload under load', async () => {
  const ca = await createCa();
  const callback = 'https://localhost/authsvc/device/openid/there';
  const running = await startOpenIdProvider(await issueServer(ca), [callback]);
  onTestFinished(() => running.stop());
  const provider = createOpenIdProvider('there', {
    title: { en: 'There' },
    issuer: running.issuer,
    clientId: CLIENT.id,
    clientSecret: CLIENT.secret,
    sendSecret: 'basic',
    scope: 'openid',
    ca: ca.pem,
    directory: 'staff',
    claim: 'sub',
    means: 'subject',
    timeout: 30,
  });
  await provider.startSignIn(callback);
  await provider.close();
  await expect(provider.close()).resolves.toBeUndefined();
});
