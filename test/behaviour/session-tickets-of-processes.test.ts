import { execFile, execFileSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PERIOD } from '../../src/gateway/ticket-secret.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { ALICE } from '../support/house.ts';
import { type Certified, issue, issueServer, makeCa, makeCrl } from '../support/pki.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { VERSIONS, type Visit, type VisitOptions, visit } from '../support/resuming.ts';
import { scrape } from '../support/scrape.ts';
import {
  makeServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

const GRANT = {
  path: '/authsvc/Authorize/Certificate',
  body: { client_id: 'report-runner', scope: 'files:read' },
} as const;

/** What came of a connection, and of a certificate grant on it. */
const seen = ({ isResumed, status, json }: Visit) => [
  isResumed ? 'resumed' : 'whole handshake',
  status,
  json['identity'] ?? json['Error'],
];

/** OpenSSL's own client, which writes sessions down and takes them up again. */
function openssl(folder: ServeFolder, port: number, path: string, words: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = execFile(
      'openssl',
      [
        's_client',
        '-connect',
        `127.0.0.1:${port}`,
        '-servername',
        'localhost',
        '-CAfile',
        folder.file('ca.pem'),
      ].concat(['-ign_eof', ...words]),
      { timeout: 20_000 },
      (error, out) => (error === null ? resolve(out) : reject(error)),
    );
    child.stdin?.end(`GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
  });
}

const handshakes = async ({ adminPort }: ServeProcess, kind: 'full' | 'resumed'): Promise<number> =>
  (await scrape(adminPort)).value(`gatehouse_tls_handshakes_total{kind="${kind}"}`) || 0;

/** A period that ended in the middle of a test would end the sessions it is about. */
beforeAll(
  () => until('the next period is not near', () => PERIOD - ((Date.now() / 1_000) % PERIOD) > 90, 100),
  110_000,
);

describe('two workers', () => {
  let folder: ServeFolder;
  let server: ServeProcess;
  beforeAll(async () => {
    folder = await makeServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers: 2 },
      log: { level: 'info' },
    }));
    folder.write('alice.pem', folder.alice.pem);
    folder.write('alice-key.pem', folder.alice.keyPem);
    server = await startServe(folder);
  });
  afterAll(() => folder?.remove());

  const workerOf = async (path: string): Promise<unknown> =>
    (await until(`a log line for ${path}`, () => server.log.find((one) => one['path'] === path)))['worker'];

  test.each([
    ['TLSv1.2', '-tls1_2'],
    ['TLSv1.3', '-tls1_3'],
  ])(
    "C02 OpenSSL's client resumes a session of %s at both, as told by itself and by the metric",
    async (version, flag) => {
      const session = folder.file(`session-${version}.pem`);
      const certificate = ['-cert', folder.file('alice.pem'), '-key', folder.file('alice-key.pem')];
      const [full, resumed] = [await handshakes(server, 'full'), await handshakes(server, 'resumed')];
      const first = await openssl(folder, server.port, '/health', [
        flag,
        '-sess_out',
        session,
        ...certificate,
      ]);
      expect(first).toMatch(new RegExp(`^New, ${version}`, 'm'));
      // For as long a proof is taken on its word.
      expect(first).toMatch(/ticket lifetime hint: 600 \(seconds\)/);
      const workers = new Set<unknown>();
      for (let turn = 0; turn < 6; turn += 1) {
        const path = `/turn/${version}/${turn}`;
        const told = await openssl(folder, server.port, path, [flag, '-sess_in', session]);
        expect(told).toMatch(new RegExp(`^Reused, ${version}`, 'm'));
        // C19: nothing is taken before the handshake has ended.
        expect(told).not.toMatch(/Max Early Data: [1-9]/);
        // RFC 8446 §2.2: recorded traffic stays closed also for whoever can read tickets.
        if (version === 'TLSv1.3') expect(told).toMatch(/^Server Temp Key: /m);
        workers.add(await workerOf(path));
      }
      expect(workers).toEqual(new Set(server.workers));
      expect(await handshakes(server, 'full')).toBe(full + 1);
      expect(await handshakes(server, 'resumed')).toBe(resumed + 6);
    },
  );

  test.each(VERSIONS)(
    'C01 C02 who resumes at the other one is the one who proved it, with %s',
    async (version) => {
      const { ca, alice } = folder;
      const first = await visit(server.port, { ca, version, as: alice, ...GRANT });
      expect(seen(first)).toEqual(['whole handshake', 200, ALICE]);
      for (let turn = 0; turn < 4; turn += 1)
        expect(seen(await visit(server.port, { ca, version, session: first.session, ...GRANT }))).toEqual([
          'resumed',
          200,
          ALICE,
        ]);
      const nobody = await visit(server.port, { ca, version, ...GRANT });
      for (let turn = 0; turn < 2; turn += 1)
        expect(seen(await visit(server.port, { ca, version, session: nobody.session, ...GRANT }))).toEqual([
          'resumed',
          401,
          'invalid_client',
        ]);
    },
  );

  test('a session outlives the workers it began with', async () => {
    const { ca, alice } = folder;
    const first = await visit(server.port, { ca, version: 'TLSv1.3', as: alice, ...GRANT });
    server.signal('SIGUSR2');
    await until(
      'the workers were replaced',
      () => server.log.some(({ event }) => event === 'workers_restarted'),
      60,
    );
    const again = await visit(server.port, { ca, version: 'TLSv1.3', session: first.session, ...GRANT });
    expect(seen(again)).toEqual(['resumed', 200, ALICE]);
  });
});

describe('two replicas on one Redis with the same keys', () => {
  let redis: RedisServer;
  let folder: ServeFolder;
  let replicas: readonly ServeProcess[] = [];
  beforeAll(async () => {
    redis = await redisServer();
    folder = await makeServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, port: 0 },
      store: { type: 'redis', url: redis.url },
      keys: { file: 'keys.json' },
      log: { level: 'info' },
    }));
    writeKeyringFile(folder.file('keys.json'), newKeyring('EdDSA'), { replace: false });
    replicas = await Promise.all([startServe(folder), startServe(folder)]);
    await until('they share', () => sharing(), 60);
  });
  afterAll(async () => {
    await folder?.remove();
    await redis?.stop();
  });

  /** A Redis that is late on a busy machine is told as a temporary error, and whoever is told so asks again. */
  const at = (which: 0 | 1, options: Omit<VisitOptions, 'ca'>): Promise<Visit> =>
    until(
      'an answer',
      async () => {
        const made = await visit(replicas[which]?.port ?? 0, { ca: folder.ca, ...GRANT, ...options });
        return made.status === 400 && made.json['Error'] === 'invalid_request' ? undefined : made;
      },
      60,
    );
  const sharing = async (): Promise<boolean> => {
    const { session } = await at(1, { version: 'TLSv1.3' });
    return (await at(0, { version: 'TLSv1.3', session })).isResumed;
  };
  const atBoth = async (options: Omit<VisitOptions, 'ca'>) => [
    seen(await at(0, options)),
    seen(await at(1, options)),
  ];
  const twice = (one: readonly unknown[]) => [one, one];
  /** Does something, and waits until both replicas have taken it. */
  const andBothReload = async (act: () => void): Promise<void> => {
    const from = replicas.map(({ log }) => log.length);
    act();
    for (const [index, { log }] of replicas.entries())
      await until('it is taken', () => log.slice(from[index]).some(({ event }) => event === 'reloaded'));
  };
  const reissue = (one: Certified): void => {
    folder.write('server-key.pem', one.keyPem);
    folder.write('server.pem', one.pem);
  };

  test.each(VERSIONS)('C01 C02 a session of %s goes on at the other one, with its leaf', async (version) => {
    const { session } = await at(0, { version, as: folder.alice });
    expect(await atBoth({ version, session })).toEqual(twice(['resumed', 200, ALICE]));
  });

  test('C03 a certificate that has run out meanwhile is refused on a resumed session too', async () => {
    const brief = await issue(folder.ca, { commonName: 'alice', notAfter: new Date(Date.now() + 8_000) });
    const first = await at(0, { version: 'TLSv1.3', as: brief });
    expect(seen(first)).toEqual(['whole handshake', 200, ALICE]);
    await until(
      'the certificate has run out',
      () => Date.now() > new X509Certificate(brief.pem).validToDate.getTime(),
    );
    await until(
      'it is refused',
      async () => (await at(1, { version: 'TLSv1.3', session: first.session })).status === 401,
    );
    expect(await atBoth({ version: 'TLSv1.3', session: first.session })).toEqual(
      twice(['resumed', 401, 'invalid_client']),
    );
  });

  test('C06 C07 a certificate that was revoked meanwhile is refused on a resumed session too', async () => {
    const leaver = await issue(folder.ca, { commonName: 'alice' });
    const { session } = await at(0, { version: 'TLSv1.3', as: leaver });
    const crl = await makeCrl(folder.ca, { revoked: [leaver] });
    await andBothReload(() => {
      folder.write('ca.crl', crl.pem);
      folder.configure((settings) => ({
        ...settings,
        certificates: { ...settings.certificates, crls: ['ca.crl'] },
      }));
    });
    expect(await atBoth({ version: 'TLSv1.3', session })).toEqual(twice(['resumed', 401, 'invalid_client']));
  });

  test.each(VERSIONS)(
    'C07 when a CA is removed, sessions of %s end with it, and its certificates are not believed any more',
    async (version) => {
      const leaving = await makeCa({ name: 'CN=Leaving CA' });
      const theirs = await issue(leaving, { commonName: 'alice' });
      folder.write('leaving.pem', leaving.pem);
      const issuers = (files: string[]) => () =>
        folder.configure((settings) => ({
          ...settings,
          certificates: { ...settings.certificates, issuers: files },
        }));
      await andBothReload(issuers(['ca.pem', 'leaving.pem']));
      const first = await at(0, { version, as: theirs });
      expect(seen(first)).toEqual(['whole handshake', 200, ALICE]);
      expect(await atBoth({ version, session: first.session })).toEqual(twice(['resumed', 200, ALICE]));
      await andBothReload(issuers(['ca.pem']));
      const refused = twice(['whole handshake', 401, 'invalid_client']);
      expect(await atBoth({ version, session: first.session })).toEqual(refused);
      expect(await atBoth({ version, session: first.session, as: theirs })).toEqual(refused);
    },
  );

  test('O07 another server certificate is shown to everybody who comes back', async () => {
    const { session } = await at(0, { version: 'TLSv1.3', as: folder.alice });
    const next = await issueServer(folder.ca);
    await andBothReload(() => reissue(next));
    // Key and certificate are two files: each replica may have read them in two steps.
    await until('both show it', async () =>
      (await atBoth({ version: 'TLSv1.3', session, as: folder.alice })).every(
        ([how]) => how === 'whole handshake',
      ),
    );
    const renewed = await at(1, { version: 'TLSv1.3', as: folder.alice });
    await until(
      'they agree again',
      async () => (await at(0, { version: 'TLSv1.3', session: renewed.session })).isResumed,
    );
  });

  test('O08 rotated keys end all sessions when they become active: whole handshakes, no errors, and then new sessions', async () => {
    const version = 'TLSv1.3';
    const { session } = await at(0, { version, as: folder.alice });
    await andBothReload(() =>
      execFileSync(process.execPath, [
        join(import.meta.dirname, '../../src/main.ts'),
        'keys',
        'rotate',
        folder.file('keys.json'),
        '--publish-before',
        '3s',
      ]),
    );
    await until('the old ticket is not understood any more', async () =>
      (await atBoth({ version, session, as: folder.alice })).every(([how, status]) => {
        expect(status).toBe(200);
        return how === 'whole handshake';
      }),
    );
    await until('both have the same secret again', async () => {
      const fresh = await at(1, { version, as: folder.alice });
      return seen(await at(0, { version, session: fresh.session })).join() === ['resumed', 200, ALICE].join();
    });
  });

  test('nothing failed on the way', () => {
    const bad = ['unexpected_error', 'uncaught_exception', 'reload_failed'];
    for (const { log } of replicas) expect(log.filter(({ event }) => bad.includes(event))).toEqual([]);
  });

  test('of its own, or off, sessions stay where they began, or end at once; both by a reload', async () => {
    const version = 'TLSv1.3';
    const tickets = (sessionTickets: 'process' | 'off' | 'shared') => () =>
      folder.configure(({ listen, ...settings }) => ({
        ...settings,
        listen: {
          ...listen,
          tls: { certificate: 'server.pem', key: 'server-key.pem', sessionTickets },
        },
      }));
    const { session: shared } = await at(0, { version });
    await andBothReload(tickets('process'));
    const { session: own } = await at(0, { version });
    const how = async (which: 0 | 1, session: Buffer | undefined) =>
      (await at(which, { version, session })).isResumed;
    expect([await how(0, shared), await how(1, shared)]).toEqual([false, false]);
    expect([await how(0, own), await how(1, own)]).toEqual([true, false]);
    await andBothReload(tickets('off'));
    const { session: none } = await at(0, { version });
    for (const session of [shared, own, none]) expect(await how(0, session)).toBe(false);
    await andBothReload(tickets('shared'));
    await until('they share again', () => sharing(), 60);
  });

  test('the store holds the secrets sealed and for a time; a Redis that has lost them is not told again', async () => {
    const client = new Redis(redis.url);
    try {
      const kept = await client.keys('*passing-tickets-*');
      expect(kept.length).toBeGreaterThan(0);
      for (const key of kept) {
        expect(await client.ttl(key)).toBeGreaterThan(0);
        expect(await client.get(key)).toMatch(/"r":\{"sealed":"[\w-]{80}"\}\}$/);
      }
      await client.flushall();
      await until('what lasts is put back', async () => (await client.keys('*{keys}:n')).length === 1, 60);
      expect(await client.keys('*passing-*')).toEqual([]);
    } finally {
      client.disconnect();
    }
  });
});
