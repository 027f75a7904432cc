import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type AdminListener, openAdminListener } from '../../src/admin/listener.ts';
import { SERVER_TLS_POLICY } from '../../src/lib/tls-policy.ts';
import type { PublicListener } from '../../src/listener/listener.ts';
import { needs } from '../set-up/programs.ts';
import { sendClientHello } from '../support/client-hello.ts';
import { startTestListener } from '../support/listener.ts';
import { createCa, type IssuedCertificate, issueServer, type KeyKind } from '../support/pki.ts';

needs('openssl');

const SUITES = {
  EC: [0xc02b, 0xc02c, 0xcca9],
  RSA: [0xc02f, 0xc030, 0xcca8],
} as const;
const ALLOWED: readonly number[] = [...SUITES.EC, ...SUITES.RSA];
/** RFC 5746 §3.3 and RFC 7507: these values are signals and no cipher suites. */
const SIGNALS = [0x00ff, 0x5600];
const OTHERS = Array.from({ length: 0x1_0000 }, (_, suite) => suite).filter(
  (suite) => !ALLOWED.includes(suite) && !SIGNALS.includes(suite),
);
const run = (program: string, args: readonly string[]): Promise<{ stdout: string }> =>
  new Promise((resolve) => {
    execFile(program, args, (_error, stdout) => resolve({ stdout })).stdin?.end();
  });
const HANDSHAKE_FAILURE = { kind: 'alert', description: 40 };

let ca: IssuedCertificate;
beforeAll(async () => {
  ca = await createCa();
});

describe.each([
  ['EC', 'p256'],
  ['RSA', 'rsa2048'],
] as const)('with an %s certificate', (kind, key: KeyKind) => {
  let publicListener: PublicListener;
  let admin: AdminListener;
  let ports: readonly number[];
  beforeAll(async () => {
    const server = await issueServer(ca, { key });
    const tls = { certificate: server.pem, key: server.keyPem };
    publicListener = await startTestListener({
      tls: { ...tls, minVersion: 'TLSv1.2', issuers: [ca.pem], askCertificate: 'always' },
      onRequest: () => ({ status: 200, headers: {} }),
    });
    admin = await openAdminListener({
      host: '127.0.0.1',
      port: 0,
      checks: [],
      tokenFile: 'none',
      tls: { ...tls, clientCa: ca.pem },
    });
    ports = [publicListener.port, admin.port];
  });
  afterAll(() => Promise.all([publicListener.close(), admin.close()]));

  test('both listeners accept the suites with forward secrecy and AEAD in TLS 1.2', async () => {
    for (const port of ports)
      for (const suite of SUITES[kind])
        expect(await sendClientHello(port, [suite])).toEqual({ kind: 'accepted', suite });
  });

  test('both listeners refuse every other value in TLS 1.2', async () => {
    // OpenSSL reads at most 16 KiB of a ClientHello in one record.
    const size = 4_096;
    for (const port of ports)
      for (let start = 0; start < OTHERS.length; start += size)
        expect(await sendClientHello(port, OTHERS.slice(start, start + size))).toEqual(HANDSHAKE_FAILURE);
  });

  test.each([
    ['accepted', ['X25519MLKEM768', 'X25519', 'P-256', 'P-384']],
    ['refused', ['X448', 'P-521', 'ffdhe2048', 'ffdhe3072', 'brainpoolP256r1tls13']],
  ])('a key exchange is %s with the groups %s', async (expected, groups) => {
    for (const port of ports)
      for (const ecdhCurve of groups) {
        const socket = connect({ host: '127.0.0.1', port, ca: ca.pem, servername: 'localhost', ecdhCurve });
        const outcome = await once(socket, 'secureConnect').then(
          () => 'accepted',
          () => 'refused',
        );
        socket.destroy();
        expect([ecdhCurve, outcome]).toEqual([ecdhCurve, expected]);
      }
  });

  test('both listeners request client certificates only with signatures that they accept', async () => {
    for (const port of ports) {
      const { stdout } = await run('openssl', ['s_client', '-connect', `127.0.0.1:${port}`, '-tls1_2']);
      const requested = /^Requested Signature Algorithms: (.*)$/m.exec(stdout)?.[1]?.split(':') ?? [];
      expect(requested).toContain('ECDSA+SHA256');
      expect(requested.filter((name) => /DSA\+SHA(1|224)$|RSA\+SHA(1|224)$|^DSA/.test(name))).toEqual([]);
    }
  });

  test('neither listener renegotiates', async () => {
    for (const port of ports) {
      const socket = connect({
        host: '127.0.0.1',
        port,
        ca: ca.pem,
        servername: 'localhost',
        maxVersion: 'TLSv1.2',
      });
      await once(
        socket.on('error', () => {}),
        'secureConnect',
      );
      const refused = await new Promise<boolean>((resolve) => {
        socket.once('close', () => resolve(true));
        socket.renegotiate({}, (error) => resolve(error !== null));
      });
      socket.destroy();
      expect(refused).toBe(true);
    }
  });
});

test('docs/security.md lists the suites and groups', () => {
  const text = readFileSync(join(import.meta.dirname, '../../docs/security.md'), 'utf8');
  const suites = text.match(/`(?:TLS_|ECDHE-)[A-Z0-9_-]+`/g)?.map((name) => name.slice(1, -1));
  expect(suites).toEqual(SERVER_TLS_POLICY.ciphers.split(':'));
  const groups = SERVER_TLS_POLICY.ecdhCurve.split(/[/:]/).map((group) => `\`${group}\``);
  expect(text).toContain(groups.join(', '));
});
