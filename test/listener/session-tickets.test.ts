import { randomBytes } from 'node:crypto';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { openAdminListener } from '../../src/admin/listener.ts';
import type { PublicListener, TlsContextOptions } from '../../src/listener/listener.ts';
import { startTestListener } from '../support/listener.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import {
  findTicket,
  flipTicketBit,
  requestOnce,
  type SessionOptions,
  type SessionResult,
  TLS_VERSIONS,
} from '../support/tls-sessions.ts';

let ca: IssuedCertificate;
let server: IssuedCertificate;
let alice: IssuedCertificate;
beforeAll(async () => {
  ca = await createCa();
  [server, alice] = await Promise.all([issueServer(ca), issue(ca)]);
});
const openListeners: { close(): Promise<void> }[] = [];
afterEach(async () => {
  await Promise.all(openListeners.splice(0).map((listener) => listener.close()));
});

const SECRET = randomBytes(32);
const createTlsOptions = (
  tickets: TlsContextOptions['tickets'] = { secret: SECRET, scope: 'one' },
): TlsContextOptions => ({
  certificate: server.pem,
  key: server.keyPem,
  minVersion: 'TLSv1.2',
  issuers: [ca.pem],
  ...(tickets && { tickets }),
});

/** Opens a listener, like each worker and replica. It responds with the owner of the connection's certificate. */
async function openListener(
  given: TlsContextOptions = createTlsOptions(),
  askCertificate: 'always' | readonly string[] = 'always',
): Promise<PublicListener & { readonly resumed: boolean[] }> {
  const resumed: boolean[] = [];
  const listener = await startTestListener({
    tls: { ...given, askCertificate },
    onRequest(context) {
      const certificate = context.certificate();
      const whose =
        certificate === undefined ? 'no certificate' : certificate.equals(alice.der) ? 'alice' : 'another client';
      return { status: 200, headers: {}, body: JSON.stringify({ whose }) };
    },
    onHandshake: (isResumed) => resumed.push(isResumed),
  });
  openListeners.push(listener);
  return Object.assign(listener, { resumed });
}

const requestAt = ({ port }: PublicListener, options: Omit<SessionOptions, 'ca'>): Promise<SessionResult> =>
  requestOnce(port, { ca, ...options });
const summarize = ({ isResumed, json }: SessionResult) => [isResumed ? 'resumed' : 'full handshake', json['whose']];

describe.each(TLS_VERSIONS)('a ticket of %s', (version) => {
  test('C02 resumes at every listener with the same secret, and keeps the proven certificate, or its absence', async () => {
    const [listener, otherListener] = [await openListener(), await openListener()];
    for (const as of [alice, undefined]) {
      const whose = as === undefined ? 'no certificate' : 'alice';
      const first = await requestAt(listener, { version, as });
      expect(summarize(first)).toEqual(['full handshake', whose]);
      // The client does not present the certificate again: it comes from the ticket.
      for (const next of [otherListener, listener, otherListener])
        expect(summarize(await requestAt(next, { version, session: first.session }))).toEqual(['resumed', whose]);
    }
    expect(otherListener.resumed).toEqual([true, true, true, true]);
    expect(listener.resumed).toEqual([false, true, false, true]);
  });

  test('C02 keeps the certificate of the original handshake, whatever is presented now', async () => {
    const listener = await openListener();
    const bob = await issue(ca, { commonName: 'bob' });
    const first = await requestAt(listener, { version, as: alice });
    // RFC 8446 §4.6.1: a resumed session keeps the certificate of the original one; no other is requested.
    expect(summarize(await requestAt(listener, { version, as: bob, session: first.session }))).toEqual([
      'resumed',
      'alice',
    ]);
    expect(summarize(await requestAt(listener, { version, as: bob }))).toEqual(['full handshake', 'another client']);
  });

  test('is not renewed when it is used, so that it ends ten minutes after the original handshake', async () => {
    const listener = await openListener();
    const first = await requestAt(listener, { version, as: alice });
    const resumedResult = await requestAt(listener, { version, session: first.session });
    expect(summarize(resumedResult)).toEqual(['resumed', 'alice']);
    expect([first.session === undefined, resumedResult.session]).toEqual([false, undefined]);
  });

  test('is not accepted after the secret has changed: a full handshake, never an error', async () => {
    const listener = await openListener();
    const { session } = await requestAt(listener, { version, as: alice });
    listener.setTicketSecret(randomBytes(32));
    expect(summarize(await requestAt(listener, { version, session }))).toEqual(['full handshake', 'no certificate']);
    const renewed = await requestAt(listener, { version, session, as: alice });
    expect(summarize(renewed)).toEqual(['full handshake', 'alice']);
    expect(summarize(await requestAt(listener, { version, session: renewed.session }))).toEqual(['resumed', 'alice']);
    listener.setTicketSecret(SECRET);
    expect(summarize(await requestAt(listener, { version, session: renewed.session }))).toEqual([
      'full handshake',
      'no certificate',
    ]);
  });

  test('C07 is not accepted by a listener with another scope, and is accepted again with the same scope', async () => {
    const listener = await openListener();
    const { session } = await requestAt(listener, { version, as: alice });
    listener.setSecureContext(createTlsOptions({ secret: SECRET, scope: 'another' }));
    expect(summarize(await requestAt(listener, { version, session }))).toEqual(['full handshake', 'no certificate']);
    const otherListener = await openListener(createTlsOptions({ secret: SECRET, scope: 'another' }));
    expect(summarize(await requestAt(otherListener, { version, session }))).toEqual([
      'full handshake',
      'no certificate',
    ]);
    listener.setSecureContext(createTlsOptions());
    expect(summarize(await requestAt(listener, { version, session }))).toEqual(['resumed', 'alice']);
  });

  test('C18 is not accepted for a name with a different client certificate policy', async () => {
    const strict = ['strict.example.test'];
    const [listener, otherListener] = [
      await openListener(createTlsOptions(), strict),
      await openListener(createTlsOptions(), strict),
    ];
    const withServerName = (serverName: string, more: Partial<SessionOptions> = {}) => ({
      version,
      serverName,
      ...more,
    });
    const withoutRequest = await requestAt(listener, withServerName('open.example.test', { as: alice }));
    expect(summarize(withoutRequest)).toEqual(['full handshake', 'no certificate']);
    const withRequest = await requestAt(listener, withServerName('strict.example.test', { as: alice }));
    expect(summarize(withRequest)).toEqual(['full handshake', 'alice']);
    for (const next of [listener, otherListener]) {
      // The client is asked for a certificate and may present one.
      const { session: openListeners } = withoutRequest;
      expect(
        summarize(await requestAt(next, withServerName('strict.example.test', { session: openListeners, as: alice }))),
      ).toEqual(['full handshake', 'alice']);
      expect(
        summarize(await requestAt(next, withServerName('open.example.test', { session: withRequest.session }))),
      ).toEqual(['full handshake', 'no certificate']);
      expect(summarize(await requestAt(next, withServerName('open.example.test', { session: openListeners })))).toEqual(
        ['resumed', 'no certificate'],
      );
      expect(
        summarize(await requestAt(next, withServerName('strict.example.test', { session: withRequest.session }))),
      ).toEqual(['resumed', 'alice']);
    }
  });

  test('with any of its bytes changed is not accepted: a full handshake, never an error', async () => {
    const listener = await openListener();
    const { session = Buffer.alloc(0) } = await requestAt(listener, { version, as: alice });
    const { length } = findTicket(session);
    const offsets = [0, 7, 15, 16, 31, 32, 33, 100, Math.floor(length / 2), length - 33, length - 32, length - 1];
    for (const offset of offsets)
      expect(summarize(await requestAt(listener, { version, session: flipTicketBit(session, offset) }))).toEqual([
        'full handshake',
        'no certificate',
      ]);
    expect(summarize(await requestAt(listener, { version, session }))).toEqual(['resumed', 'alice']);
  });

  test('is not issued when tickets are disabled', async () => {
    const listener = await openListener({ ...createTlsOptions(), tickets: undefined });
    const { session } = await requestAt(listener, { version, as: alice });
    expect(summarize(await requestAt(listener, { version, session }))).toEqual(['full handshake', 'no certificate']);
    const resumable = await requestAt(await openListener(), { version, as: alice });
    expect(summarize(await requestAt(listener, { version, session: resumable.session }))).toEqual([
      'full handshake',
      'no certificate',
    ]);
    // Also when tickets are enabled and disabled at run time.
    listener.setSecureContext(createTlsOptions());
    expect(summarize(await requestAt(listener, { version, session: resumable.session }))).toEqual(['resumed', 'alice']);
    listener.setSecureContext({ ...createTlsOptions(), tickets: undefined });
    listener.setTicketSecret(SECRET);
    expect(summarize(await requestAt(listener, { version, session: resumable.session }))).toEqual([
      'full handshake',
      'no certificate',
    ]);
  });

  test('C07 is not issued by the admin listener, whose client certificates are verified for every connection', async () => {
    const admin = await openAdminListener({
      host: '127.0.0.1',
      port: 0,
      checks: [],
      tls: { certificate: server.pem, key: server.keyPem, clientCa: ca.pem },
      tokenFile: 'none',
      handleAdminRequest: async () => ({ status: 200, body: {} }),
    });
    openListeners.push(admin);
    const path = '/admin/v1/grants';
    const first = await requestOnce(admin.port, { ca, version, as: alice, path });
    expect([first.status, first.isResumed]).toEqual([200, false]);
    const resumedResult = await requestOnce(admin.port, { ca, version, path, session: first.session });
    expect([resumedResult.status, resumedResult.isResumed]).toEqual([401, false]);
  });
});
