import { randomBytes } from 'node:crypto';
import { Server as TlsServer } from 'node:tls';
import { expect, test, vi } from 'vitest';
import { children, context, readOne, TAG } from '../../src/tls/der.ts';
import type { PublicListener, TlsMaterial } from '../../src/tls/listener.ts';
import { testListener } from '../support/listener.ts';
import { type Certified, issue, issueServer, makeCa } from '../support/pki.ts';
import { VERSIONS, visit } from '../support/resuming.ts';

const materialOf = (server: Certified): TlsMaterial => ({
  certificate: server.pem,
  key: server.keyPem,
  minVersion: 'TLSv1.2',
  issuers: [],
  tickets: { secret: randomBytes(32), scope: 'here' },
});

const listen = (
  material: TlsMaterial,
  askCertificate: 'always' | readonly string[] = 'always',
): Promise<PublicListener> =>
  testListener({
    tls: { ...material, askCertificate },
    onCall: (call) => call.response.end(JSON.stringify({ shown: call.certificate() !== undefined })),
  });

/** The lifetime hint of a ticket in seconds: `[9]` of a session as OpenSSL serialises it. */
function lifetimeIn(session: Buffer | undefined): number {
  const hint = children(readOne(session ?? Buffer.alloc(0), TAG.sequence)).find(
    ({ tag }) => tag === context(9),
  );
  return Number(`0x${readOne(hint?.content ?? Buffer.alloc(0), TAG.integer).content.toString('hex')}`);
}

test.each(VERSIONS)(
  'C02 resuming a session of %s never extends it: a resumed session gets no new ticket, also after a reload',
  async (version) => {
    const ca = await makeCa();
    const [server, alice] = [await issueServer(ca), await issue(ca)];
    const listener = await listen(materialOf(server));
    try {
      for (const turn of ['at the start', 'after a reload']) {
        if (turn === 'after a reload') listener.setSecureContext(materialOf(server));
        const first = await visit(listener.port, { ca, version, as: alice });
        expect([turn, first.isResumed, lifetimeIn(first.session)]).toEqual([turn, false, 600]);
        const again = await visit(listener.port, { ca, version, session: first.session });
        expect(again).toMatchObject({ isResumed: true, session: undefined, json: { shown: true } });
      }
    } finally {
      await listener.close();
    }
  },
);

test('ticket keys are overwritten as soon as OpenSSL has them, so that a later core dump does not hold them', async () => {
  using spy = vi.spyOn(TlsServer.prototype, 'setTicketKeys');
  const listener = await listen(materialOf(await issueServer(await makeCa())), ['strict.example.test']);
  try {
    listener.setTicketSecret(randomBytes(32));
    expect(spy).toHaveBeenCalledTimes(4);
    for (const [keys] of spy.mock.calls) expect(keys.equals(Buffer.alloc(48))).toBe(true);
  } finally {
    await listener.close();
  }
});
