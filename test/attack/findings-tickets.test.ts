import { randomBytes } from 'node:crypto';
import { Server as TlsServer } from 'node:tls';
import { expect, test, vi } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import type { Peers } from '../../src/tls/caller.ts';
import { openPublicListener } from '../../src/tls/listener.ts';
import { issueServer, makeCa } from '../support/pki.ts';

const NOBODY: Peers = { some: false, includes: () => false };

test('keys of tickets are overwritten as soon as OpenSSL has them: a core dump of later holds none of before', async () => {
  using spy = vi.spyOn(TlsServer.prototype, 'setTicketKeys');
  const server = await issueServer(await makeCa());
  const listener = await openPublicListener({
    host: '127.0.0.1',
    port: 0,
    tls: {
      certificate: server.pem,
      key: server.keyPem,
      minVersion: 'TLSv1.2',
      issuers: [],
      tickets: { secret: randomBytes(32), scope: 'here' },
      askCertificate: ['strict.example.test'],
    },
    limits: { headers: 16_384, headerTimeout: 10, connections: 100 },
    proxyProtocol: NOBODY,
    trustedProxies: NOBODY,
    onCall: () => {},
    log: createLogger({ level: 'error', format: 'json', write: () => {} }),
    now: () => Date.now() / 1_000,
  });
  try {
    listener.setTicketSecret(randomBytes(32));
    expect(spy).toHaveBeenCalledTimes(4);
    for (const [keys] of spy.mock.calls) expect(keys.equals(Buffer.alloc(48))).toBe(true);
  } finally {
    await listener.close();
  }
});
