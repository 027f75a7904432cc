import { randomBytes } from 'node:crypto';
import { Server as TlsServer } from 'node:tls';
import { expect, test, vi } from 'vitest';
import type { PublicListener, TlsContextOptions } from '../../src/listener/listener.ts';
import { children, contextTag, readElement, TAG } from '../../src/x509/der.ts';
import { startTestListener } from '../support/listener.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { requestOnce, TLS_VERSIONS } from '../support/tls-sessions.ts';

const createTlsOptions = (server: IssuedCertificate): TlsContextOptions => ({
  certificate: server.pem,
  key: server.keyPem,
  minVersion: 'TLSv1.2',
  issuers: [],
  tickets: { secret: randomBytes(32), scope: 'here' },
});

const listen = (
  tlsOptions: TlsContextOptions,
  askCertificate: 'always' | readonly string[] = 'always',
): Promise<PublicListener> =>
  startTestListener({
    tls: { ...tlsOptions, askCertificate },
    onRequest: (context) => ({
      status: 200,
      headers: {},
      body: JSON.stringify({ shown: context.certificate() !== undefined }),
    }),
  });

/** The lifetime hint of a ticket in seconds: `[9]` of a session as OpenSSL serialises it. */
function readLifetimeHint(session: Buffer | undefined): number {
  const hint = children(readElement(session ?? Buffer.alloc(0), TAG.sequence)).find(({ tag }) => tag === contextTag(9));
  return Number(`0x${readElement(hint?.content ?? Buffer.alloc(0), TAG.integer).content.toString('hex')}`);
}

test.each(TLS_VERSIONS)(
  'C02 resuming a %s session never extends it: a resumed session gets no new ticket, also after a reload',
  async (version) => {
    const ca = await createCa();
    const [server, alice] = [await issueServer(ca), await issue(ca)];
    const listener = await listen(createTlsOptions(server));
    try {
      for (const phase of ['at the start', 'after a reload']) {
        if (phase === 'after a reload') listener.setSecureContext(createTlsOptions(server));
        const first = await requestOnce(listener.port, { ca, version, as: alice });
        expect([phase, first.isResumed, readLifetimeHint(first.session)]).toEqual([phase, false, 600]);
        const resumed = await requestOnce(listener.port, { ca, version, session: first.session });
        expect(resumed).toMatchObject({ isResumed: true, session: undefined, json: { shown: true } });
      }
    } finally {
      await listener.close();
    }
  },
);

test('ticket keys are overwritten as soon as OpenSSL has copied them, so that a later core dump does not contain them', async () => {
  using spy = vi.spyOn(TlsServer.prototype, 'setTicketKeys');
  const listener = await listen(createTlsOptions(await issueServer(await createCa())), ['strict.example.test']);
  try {
    listener.setTicketSecret(randomBytes(32));
    expect(spy).toHaveBeenCalledTimes(4);
    for (const [keys] of spy.mock.calls) expect(keys.equals(Buffer.alloc(48))).toBe(true);
  } finally {
    await listener.close();
  }
});
