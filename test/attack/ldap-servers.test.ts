import { createServer, type Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createLdapDirectory, type LdapSettings } from '../../src/identity/ldap-directory.ts';
import type { Directory } from '../../src/ports/directory.ts';
import { LDAP_SETTINGS, type LdapServer, ROOT, startLdapServer } from '../support/ldap-server.ts';
import { createCa, type IssuedCertificate, issueServer } from '../support/pki.ts';
import { listenTcp, type TcpServer } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

const UNAVAILABLE = { name: 'Fault', code: 'directory_unavailable' };
const PASSWORD = 'a password of alice';

/** Encodes a BER element with a four-byte length, as Active Directory does. */
const element = (tag: number, ...contents: readonly Buffer[]): Buffer => {
  const content = Buffer.concat(contents);
  const head = Buffer.from([tag, 0x84, 0, 0, 0, 0]);
  head.writeUInt32BE(content.length, 2);
  return Buffer.concat([head, content]);
};
const octetString = (value: string): Buffer => element(0x04, Buffer.from(value));
const message = (id: number, operation: Buffer): Buffer => element(0x30, Buffer.from([0x02, 0x01, id]), operation);
/** LDAPResult (RFC 4511 §4.1.9). */
const result = (tag: number, code: number, more: Buffer = Buffer.alloc(0)): Buffer =>
  element(tag, Buffer.from([0x0a, 0x01, code]), octetString(''), octetString(''), more);

const BIND_RESPONSE = 0x61;
const SEARCH_DONE = 0x65;
const EXTENDED_RESPONSE = 0x78;
const getMessageId = (request: Buffer): number => request[request.indexOf(0x02) + 2] ?? 0;

interface ScriptedServer extends TcpServer {
  /** All bytes received without TLS. */
  readonly received: () => Buffer;
}

async function startScriptedServer(respond: (socket: Socket, request: Buffer) => void): Promise<ScriptedServer> {
  const parts: Buffer[] = [];
  const server = await listenTcp(
    createServer((socket) =>
      socket.on('data', (part: Buffer) => {
        parts.push(part);
        respond(socket, part);
      }),
    ),
  );
  onTestFinished(server.close);
  return { ...server, received: () => Buffer.concat(parts) };
}

function createDirectory(port: number, changes: Partial<LdapSettings> = {}): Directory {
  const directory = createLdapDirectory('corp', 'corp', {
    ...LDAP_SETTINGS,
    url: [`ldap://localhost:${port}`],
    timeout: 30,
    ...changes,
  });
  onTestFinished(() => directory.close());
  return directory;
}

describe('StartTLS cannot be downgraded', () => {
  let ca: IssuedCertificate;
  let certificate: IssuedCertificate;
  beforeAll(async () => {
    ca = await createCa();
    certificate = await issueServer(ca);
  });
  const startTls = (): Partial<LdapSettings> => ({ startTls: true, ca: ca.pem });

  /** Expects that no bind request and neither password was sent without TLS. */
  const expectNoSecretInPlaintext = ({ received }: ScriptedServer): void => {
    const sent = received().toString('latin1');
    expect(sent).toContain('1.3.6.1.4.1.1466.20037');
    for (const secret of [PASSWORD, LDAP_SETTINGS.password, LDAP_SETTINGS.bindDn]) expect(sent).not.toContain(secret);
  };

  test.each([
    ['it is refused: protocolError', () => message(1, result(EXTENDED_RESPONSE, 2))],
    ['it is refused: unavailable', () => message(1, result(EXTENDED_RESPONSE, 52))],
    ['it is refused: unwillingToPerform', () => message(1, result(EXTENDED_RESPONSE, 53))],
    ['a referral leads to another server', () => message(1, result(EXTENDED_RESPONSE, 10))],
    ['the response is to another message', () => message(2, result(EXTENDED_RESPONSE, 0))],
    ['the response is to another operation', () => message(1, result(BIND_RESPONSE, 0))],
    [
      'a Notice of Disconnection arrives first (RFC 4511 §4.4.1)',
      () => Buffer.concat([message(0, result(EXTENDED_RESPONSE, 52)), message(1, result(EXTENDED_RESPONSE, 0))]),
    ],
    [
      'a bind response is in the same segment',
      () => Buffer.concat([message(1, result(EXTENDED_RESPONSE, 0)), message(3, result(BIND_RESPONSE, 0))]),
    ],
    ['the response is not BER', () => Buffer.from('HTTP/1.1 200 OK\r\n\r\n')],
  ])('nothing is sent without TLS when %s', async (_what, response) => {
    const server = await startScriptedServer((socket) => socket.write(response()));
    await expect(createDirectory(server.port, startTls()).signIn('alice', PASSWORD)).rejects.toMatchObject(UNAVAILABLE);
    expectNoSecretInPlaintext(server);
  });

  test('nothing is sent without TLS when the server closes the connection instead of responding', async () => {
    const server = await startScriptedServer((socket) => socket.end());
    await expect(createDirectory(server.port, startTls()).signIn('alice', PASSWORD)).rejects.toMatchObject(UNAVAILABLE);
    expectNoSecretInPlaintext(server);
  });

  test('plaintext responses in place of the handshake are not treated as responses under TLS', async () => {
    // After the ClientHello, in a separate segment: the response of a plaintext server to a bind.
    const server = await startScriptedServer((socket, part) => {
      if (part[0] === 0x30) socket.write(message(1, result(EXTENDED_RESPONSE, 0)));
      else socket.write(message(2, result(BIND_RESPONSE, 0)));
    });
    await expect(createDirectory(server.port, startTls()).signIn('alice', PASSWORD)).rejects.toMatchObject(UNAVAILABLE);
    expectNoSecretInPlaintext(server);
  });

  test('a server whose certificate was issued by another CA receives no bind request', async () => {
    const other = await issueServer(await createCa());
    const server = await startScriptedServer((socket) => {
      socket.removeAllListeners('data');
      socket.write(message(1, result(EXTENDED_RESPONSE, 0)));
      new TLSSocket(socket, { isServer: true, cert: other.pem, key: other.keyPem }).on('error', () => {});
    });
    await expect(createDirectory(server.port, startTls()).signIn('alice', PASSWORD)).rejects.toMatchObject(UNAVAILABLE);
    expectNoSecretInPlaintext(server);
    expect(certificate.pem).not.toBe(other.pem);
  });
});

describe('responses of an LDAP server are limited', () => {
  /** An entry of a few bytes. */
  const entry = (id: number): Buffer =>
    Buffer.from([0x30, 0x0b, 0x02, 0x01, id, 0x64, 0x06, 0x04, 0x02, 0x61, 0x3d, 0x30, 0x00]);
  const isBind = (request: Buffer): boolean => request.includes(LDAP_SETTINGS.password);

  test('an endless search response closes the connection after a megabyte', async () => {
    let written = 0;
    const server = await startScriptedServer((socket, request) => {
      if (isBind(request)) return void socket.write(message(getMessageId(request), result(BIND_RESPONSE, 0)));
      const entries = Buffer.concat(Array.from({ length: 5_000 }, () => entry(getMessageId(request))));
      const more = (): void => {
        while (!socket.destroyed && socket.writableLength < 1_048_576) {
          written += entries.length;
          socket.write(entries);
        }
      };
      socket.on('drain', more);
      more();
    });
    await expect(createDirectory(server.port).findByCertificateName('commonName', 'x')).rejects.toMatchObject(
      UNAVAILABLE,
    );
    // Includes the socket buffers of both sides.
    expect(written).toBeLessThan(32 * 1_048_576);
  }, 60_000);

  test('a message that announces two gigabytes closes the connection after a megabyte', async () => {
    let closed: Promise<void> | undefined;
    let written = 0;
    const server = await startScriptedServer((socket, request) => {
      if (isBind(request)) return void socket.write(message(getMessageId(request), result(BIND_RESPONSE, 0)));
      closed = new Promise((resolve) => socket.once('close', resolve));
      socket.write(Buffer.from('30847fffffff', 'hex'));
      const more = (): void => {
        do written += 65_536;
        while (!socket.destroyed && socket.write(Buffer.alloc(65_536)));
      };
      socket.on('drain', more);
      more();
    });
    await expect(createDirectory(server.port).findByCertificateName('commonName', 'x')).rejects.toMatchObject({
      ...UNAVAILABLE,
      message: 'LDAP: a response is larger than 1 MiB or has too many chunks',
    });
    await closed;
    expect(written).toBeLessThan(32 * 1_048_576);
  }, 60_000);

  test('a message sent byte by byte closes the connection after several thousand chunks', async () => {
    let written = 0;
    const server = await startScriptedServer((socket, request) => {
      if (isBind(request)) return void socket.write(message(getMessageId(request), result(BIND_RESPONSE, 0)));
      socket.setNoDelay();
      socket.write(Buffer.from('30847fffffff', 'hex'));
      const more = (): void => {
        if (socket.destroyed || written > 524_288) return;
        written += 1;
        socket.write(Buffer.of(0));
        setImmediate(more);
      };
      more();
    });
    await expect(createDirectory(server.port).findByCertificateName('commonName', 'x')).rejects.toMatchObject(
      UNAVAILABLE,
    );
    expect(written).toBeLessThan(131_072);
  }, 60_000);

  test.each([
    [
      'thousands of messages in one segment',
      (id: number) => Buffer.concat(Array.from({ length: 80_000 }, () => entry(id))),
    ],
    ['a negative length', () => Buffer.from('3084fffffffa020103', 'hex')],
    ['an indefinite length', () => Buffer.from('3080020103', 'hex')],
  ])('the process survives %s', async (_what, response) => {
    const server = await startScriptedServer((socket, request) => {
      if (isBind(request)) return void socket.write(message(getMessageId(request), result(BIND_RESPONSE, 0)));
      const id = getMessageId(request);
      socket.write(Buffer.concat([response(id), message(id, result(SEARCH_DONE, 0))]));
      socket.end();
    });
    const outcome = createDirectory(server.port).findByCertificateName('commonName', 'x');
    // Either the response is read completely and no entry matches, or the directory is unavailable.
    await expect(outcome.catch((error: { code: string }) => error.code)).resolves.toSatisfy(
      (value) => value === undefined || value === 'directory_unavailable',
    );
  });
});

describe('referrals', () => {
  test('a referral in response to a bind or a search is not followed with any password', async () => {
    let connections = 0;
    const elsewhere = await listenTcp(createServer(() => void (connections += 1)));
    onTestFinished(elsewhere.close);
    const referral = element(0xa3, octetString(`ldap://localhost:${elsewhere.port}/ou=people,dc=example,dc=test`));
    for (const refused of ['bind', 'search'] as const) {
      const server = await startScriptedServer((socket, request) => {
        const isBind = request.includes(LDAP_SETTINGS.password);
        const code = isBind === (refused === 'bind') ? 10 : 0;
        const more = code === 10 ? referral : Buffer.alloc(0);
        socket.write(message(getMessageId(request), result(isBind ? BIND_RESPONSE : SEARCH_DONE, code, more)));
      });
      await expect(createDirectory(server.port).signIn('alice', PASSWORD)).rejects.toMatchObject(UNAVAILABLE);
      expect(server.received().includes(PASSWORD)).toBe(false);
    }
    expect(connections).toBe(0);
  });
});

test('sign-ins that the server delays leave connections for user lookups, which every refresh needs', async () => {
  let passwords = 0;
  const server = await startScriptedServer((socket, request) => {
    // Servers delay the response to a wrong password.
    if (request.includes(PASSWORD)) return void (passwords += 1);
    const tag = request.includes(LDAP_SETTINGS.password) ? BIND_RESPONSE : SEARCH_DONE;
    socket.write(message(getMessageId(request), result(tag, 0)));
  });
  const directory = createDirectory(server.port, { connections: 4 });
  const attempts = Array.from({ length: 40 }, (_, index) =>
    directory.signIn(`user-${index}`, PASSWORD).catch(() => undefined),
  );
  await until('two sign-ins are pending', () => passwords >= 2);
  for (let lookup = 0; lookup < 10; lookup += 1)
    expect(await directory.findByCertificateName('commonName', `x${lookup}`)).toBeUndefined();
  expect(passwords).toBe(2);
  await server.close();
  await Promise.all(attempts);
});

describe('a changed password', () => {
  let server: LdapServer;
  beforeAll(async () => {
    server = await startLdapServer();
  });
  afterAll(() => server.remove());

  test('applies at the next sign-in, also while the user is cached', async () => {
    const { Attribute, Change, Client } = await import('ldapts');
    const corp = createDirectory(server.port, { url: [server.ldapUrl], cacheLifetime: 3_600 });
    expect(await corp.signIn('alice', 'alice password')).toBeDefined();
    expect(await corp.findByCertificateName('commonName', 'Alice Example')).toBeDefined();
    const client = new Client({ url: server.ldapUrl });
    await client.bind(ROOT.dn, ROOT.password);
    await client.modify(
      `uid=alice,${LDAP_SETTINGS.base}`,
      new Change({
        operation: 'replace',
        modification: new Attribute({ type: 'userPassword', values: ['another password'] }),
      }),
    );
    await client.unbind();
    expect(await corp.signIn('alice', 'alice password')).toBeUndefined();
    expect(await corp.signIn('alice', 'another password')).toBeDefined();
  });
});

describe('a damaged response is an unavailable directory, and does not occupy the process', () => {
  const BIND_OK = (id: number): Buffer => message(id, result(BIND_RESPONSE, 0));
  const short = (tag: number, content: string): Buffer =>
    Buffer.concat([Buffer.from([tag, content.length / 2]), Buffer.from(content, 'hex')]);
  test.each([
    ['a referral that exceeds its message', (id: number) => short(0x30, `0201${hexByte(id)}73020440`)],
    ['an entry whose attributes exceed it', (id: number) => short(0x30, `0201${hexByte(id)}6404040030ff`)],
    ['an attribute whose values exceed it', (id: number) => short(0x30, `0201${hexByte(id)}640904003005300304003140`)],
    [
      'controls that exceed it',
      (id: number) => short(0x30, `0201${hexByte(id)}65070a0100040004 00a07f`.replace(' ', '')),
    ],
    ['a negative length', (id: number) => short(0x30, `0201${hexByte(id)}73080484fffffff00400`)],
    ['a message of negative length', () => Buffer.from('3084fffffff80201010000', 'hex')],
  ])('%s', async (_what, respond) => {
    const server = await startScriptedServer((socket, request) => {
      const id = getMessageId(request);
      socket.write(request.includes(0x60) && request[5] === 0x60 ? BIND_OK(id) : respond(id));
    });
    await expect(createDirectory(server.port, { timeout: 1 }).signIn('alice', PASSWORD)).rejects.toMatchObject(
      UNAVAILABLE,
    );
  });
});

const hexByte = (value: number): string => value.toString(16).padStart(2, '0');
