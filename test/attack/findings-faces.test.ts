import { connect, createServer, type Server, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type LdapSettings, ldapDirectory } from '../../src/identity/ldap-directory.ts';
import type { Directory } from '../../src/ports/directory.ts';
import { BASE_DN, type LdapServer, ldapServer, SERVICE } from '../support/ldap-server.ts';

let server: LdapServer;
const opened: { close(): unknown }[] = [];
beforeAll(async () => {
  server = await ldapServer();
});
afterAll(async () => {
  for (const one of opened) await one.close();
  await server.remove();
});

function directory(changes: Partial<LdapSettings>): Directory {
  const made = ldapDirectory('corp', 'corp', {
    urls: [server.plain],
    startTls: false,
    ...SERVICE,
    timeout: 5,
    connections: 4,
    base: `ou=people,${BASE_DN}`,
    filter: '(objectClass=inetOrgPerson)',
    id: 'entryUUID',
    attributes: {
      userName: 'uid',
      displayName: 'displayName',
      commonName: 'cn',
      email: 'mail',
      userPrincipalName: 'userPrincipalName',
    },
    remember: 0,
    ...changes,
  });
  opened.push(made);
  return made;
}

/** Somebody in the middle: sees and changes what is not encrypted, and may cut connections. */
async function middleman(
  on: (client: Socket, server: Socket) => void,
): Promise<{ readonly url: string; readonly connections: () => number }> {
  let count = 0;
  const middle: Server = createServer((client) => {
    count += 1;
    const upstream = connect(server.port, '127.0.0.1');
    client.on('error', () => upstream.destroy()).on('close', () => upstream.destroy());
    upstream.on('error', () => client.destroy()).on('close', () => client.destroy());
    on(client, upstream);
  });
  await new Promise<void>((resolve) => middle.listen(0, '127.0.0.1', resolve));
  opened.push({ close: () => new Promise((resolve) => middle.close(resolve)) });
  const { port } = middle.address() as { port: number };
  return { url: `ldap://localhost:${port}`, connections: () => count };
}

/** A response to the bind that follows: success, whose text swallows the next 14 bytes, the real response. */
const FORGED = Buffer.from('301a02010361150a01000400040e', 'hex');

test('words put behind the answer to StartTLS by somebody in the middle end the connection: no bind is forged', async () => {
  let injected = 0;
  const middle = await middleman((client, upstream) => {
    client.pipe(upstream);
    upstream.once('data', (answer: Buffer) => {
      injected += 1;
      client.write(Buffer.concat([answer, FORGED]));
      upstream.pipe(client);
    });
  });
  const corp = directory({ urls: [middle.url], startTls: true, ca: server.ca.pem });
  await expect(corp.signIn('alice', 'not her password')).rejects.toMatchObject({
    code: 'directory_unavailable',
  });
  expect(injected).toBeGreaterThan(0);
});
