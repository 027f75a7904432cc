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
const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((one) => one.close()));
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

/** A door of its own, as each worker and each replica has one. Tells whose certificate a connection has. */
async function openListener(
  given: TlsContextOptions = createTlsOptions(),
  ask: 'always' | readonly string[] = 'always',
): Promise<PublicListener & { readonly resumed: boolean[] }> {
  const resumed: boolean[] = [];
  const listener = await startTestListener({
    tls: { ...given, askCertificate: ask },
    onRequest(context) {
      const shown = context.certificate();
      const whose = shown === undefined ? 'nobody' : shown.equals(alice.der) ? 'alice' : 'somebody';
      context.response.end(JSON.stringify({ whose }));
    },
    onHandshake: (again) => resumed.push(again),
  });
  open.push(listener);
  return Object.assign(listener, { resumed });
}

const at = ({ port }: PublicListener, options: Omit<SessionOptions, 'ca'>): Promise<SessionResult> =>
  requestOnce(port, { ca, ...options });
const seen = ({ isResumed, json }: SessionResult) => [
  isResumed ? 'resumed' : 'whole handshake',
  json['whose'],
];

describe.each(TLS_VERSIONS)('a ticket of %s', (version) => {
  test('C02 resumes at every listener with the same secret, and keeps the proven certificate, or its absence', async () => {
    const [one, two] = [await openListener(), await openListener()];
    for (const as of [alice, undefined]) {
      const whose = as === undefined ? 'nobody' : 'alice';
      const first = await at(one, { version, as });
      expect(seen(first)).toEqual(['whole handshake', whose]);
      // The certificate is not offered again: what is known comes from the ticket.
      for (const next of [two, one, two])
        expect(seen(await at(next, { version, session: first.session }))).toEqual(['resumed', whose]);
    }
    expect(two.resumed).toEqual([true, true, true, true]);
    expect(one.resumed).toEqual([false, true, false, true]);
  });

  test('C02 keeps the certificate proved at first, whatever is presented now', async () => {
    const one = await openListener();
    const bob = await issue(ca, { commonName: 'bob' });
    const first = await at(one, { version, as: alice });
    // RFC 8446 §4.6.1: a resumed session is the old one; whatever else the client holds is not asked for.
    expect(seen(await at(one, { version, as: bob, session: first.session }))).toEqual(['resumed', 'alice']);
    expect(seen(await at(one, { version, as: bob }))).toEqual(['whole handshake', 'somebody']);
  });

  test('is not renewed when it is used: ten minutes after the proof it ends', async () => {
    const one = await openListener();
    const first = await at(one, { version, as: alice });
    const again = await at(one, { version, session: first.session });
    expect(seen(again)).toEqual(['resumed', 'alice']);
    expect([first.session === undefined, again.session]).toEqual([false, undefined]);
  });

  test('is not accepted after the secret has changed: a full handshake, never an error', async () => {
    const one = await openListener();
    const { session } = await at(one, { version, as: alice });
    one.setTicketSecret(randomBytes(32));
    expect(seen(await at(one, { version, session }))).toEqual(['whole handshake', 'nobody']);
    const renewed = await at(one, { version, session, as: alice });
    expect(seen(renewed)).toEqual(['whole handshake', 'alice']);
    expect(seen(await at(one, { version, session: renewed.session }))).toEqual(['resumed', 'alice']);
    one.setTicketSecret(SECRET);
    expect(seen(await at(one, { version, session: renewed.session }))).toEqual(['whole handshake', 'nobody']);
  });

  test('C07 is not understood where something else is trusted, and is again where the same is', async () => {
    const one = await openListener();
    const { session } = await at(one, { version, as: alice });
    one.setSecureContext(createTlsOptions({ secret: SECRET, scope: 'another' }));
    expect(seen(await at(one, { version, session }))).toEqual(['whole handshake', 'nobody']);
    const two = await openListener(createTlsOptions({ secret: SECRET, scope: 'another' }));
    expect(seen(await at(two, { version, session }))).toEqual(['whole handshake', 'nobody']);
    one.setSecureContext(createTlsOptions());
    expect(seen(await at(one, { version, session }))).toEqual(['resumed', 'alice']);
  });

  test('C18 is not accepted under a name with a different client certificate policy', async () => {
    const strict = ['strict.example.test'];
    const [one, two] = [
      await openListener(createTlsOptions(), strict),
      await openListener(createTlsOptions(), strict),
    ];
    const under = (serverName: string, more: Partial<SessionOptions> = {}) => ({
      version,
      serverName,
      ...more,
    });
    const unasked = await at(one, under('open.example.test', { as: alice }));
    expect(seen(unasked)).toEqual(['whole handshake', 'nobody']);
    const request = await at(one, under('strict.example.test', { as: alice }));
    expect(seen(request)).toEqual(['whole handshake', 'alice']);
    for (const next of [one, two]) {
      // It is asked, and may show what it has.
      const { session: open } = unasked;
      expect(seen(await at(next, under('strict.example.test', { session: open, as: alice })))).toEqual([
        'whole handshake',
        'alice',
      ]);
      expect(seen(await at(next, under('open.example.test', { session: request.session })))).toEqual([
        'whole handshake',
        'nobody',
      ]);
      expect(seen(await at(next, under('open.example.test', { session: open })))).toEqual([
        'resumed',
        'nobody',
      ]);
      expect(seen(await at(next, under('strict.example.test', { session: request.session })))).toEqual([
        'resumed',
        'alice',
      ]);
    }
  });

  test('with any of its bytes changed is not accepted: a full handshake, never an error', async () => {
    const one = await openListener();
    const { session = Buffer.alloc(0) } = await at(one, { version, as: alice });
    const { length } = findTicket(session);
    const offsets = [
      0,
      7,
      15,
      16,
      31,
      32,
      33,
      100,
      Math.floor(length / 2),
      length - 33,
      length - 32,
      length - 1,
    ];
    for (const offset of offsets)
      expect(seen(await at(one, { version, session: flipTicketBit(session, offset) }))).toEqual([
        'whole handshake',
        'nobody',
      ]);
    expect(seen(await at(one, { version, session }))).toEqual(['resumed', 'alice']);
  });

  test('is not given out where tickets are off', async () => {
    const one = await openListener({ ...createTlsOptions(), tickets: undefined });
    const { session } = await at(one, { version, as: alice });
    expect(seen(await at(one, { version, session }))).toEqual(['whole handshake', 'nobody']);
    const with_ = await at(await openListener(), { version, as: alice });
    expect(seen(await at(one, { version, session: with_.session }))).toEqual(['whole handshake', 'nobody']);
    // And switched on and off again at run time.
    one.setSecureContext(createTlsOptions());
    expect(seen(await at(one, { version, session: with_.session }))).toEqual(['resumed', 'alice']);
    one.setSecureContext({ ...createTlsOptions(), tickets: undefined });
    one.setTicketSecret(SECRET);
    expect(seen(await at(one, { version, session: with_.session }))).toEqual(['whole handshake', 'nobody']);
  });

  test('C07 of the administration does not exist: its certificates are verified at every connection', async () => {
    const admin = await openAdminListener({
      host: '127.0.0.1',
      port: 0,
      checks: [],
      tls: { certificate: server.pem, key: server.keyPem, clientCa: ca.pem },
      tokenFile: 'none',
      handleAdminRequest: async () => ({ status: 200, body: {} }),
    });
    open.push(admin);
    const path = '/admin/v1/grants';
    const first = await requestOnce(admin.port, { ca, version, as: alice, path });
    expect([first.status, first.isResumed]).toEqual([200, false]);
    const again = await requestOnce(admin.port, { ca, version, path, session: first.session });
    expect([again.status, again.isResumed]).toEqual([401, false]);
  });
});
