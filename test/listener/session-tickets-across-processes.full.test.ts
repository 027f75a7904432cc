import { execFile } from 'node:child_process';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Gateway, openGateway } from '../../src/server/gateway.ts';
import { ROTATION_SECONDS } from '../../src/server/ticket-secret-rotation.ts';
import { createKeyringFile, readKeyringFile, rotateKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { needs } from '../set-up/programs.ts';
import { createCa, createCrl, issue, issueServer } from '../support/pki.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { scrape } from '../support/scrape.ts';
import { createServeFolder, type ServeFolder, type ServeProcess, startServe, until } from '../support/serve-process.ts';
import { ALICE, baseSettings, type LogLine, writeAndLoadSettings } from '../support/test-gateway.ts';
import { requestOnce, type SessionOptions, type SessionResult, TLS_VERSIONS } from '../support/tls-sessions.ts';

needs('openssl');

const GRANT = {
  path: '/authsvc/Authorize/Certificate',
  body: { client_id: 'report-runner', scope: 'files:read' },
} as const;

/** The kind of handshake, and the result of a certificate grant on the connection. */
const summarize = ({ isResumed, status, json }: SessionResult) => [
  isResumed ? 'resumed' : 'full handshake',
  status,
  json['identity'] ?? json['Error'],
];

/** Runs OpenSSL's client, which can save and resume sessions. */
function runOpenssl(folder: ServeFolder, port: number, path: string, args: readonly string[]): Promise<string> {
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
      ].concat(['-ign_eof', ...args]),
      { timeout: 20_000 },
      (error, out) => (error === null ? resolve(out) : reject(error)),
    );
    child.stdin?.end(`GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n`);
  });
}

const countHandshakes = async ({ adminPort }: ServeProcess, kind: 'full' | 'resumed'): Promise<number> =>
  (await scrape(adminPort)).value(`gatehouse_tls_handshakes_total{kind="${kind}"}`) || 0;

/**
 * A rotation period that ends during a test invalidates its sessions; some tests advance the clock by 25 s. Workers notice
 * a new period within a second, and until all have, sessions are not resumed everywhere.
 */
beforeEach(() =>
  until(
    'the rotation period has started and does not end soon',
    () => {
      const age = (Date.now() / 1_000) % ROTATION_SECONDS;
      return age > 10 && age < ROTATION_SECONDS - 50;
    },
    65,
  ),
);

describe('two workers', () => {
  let folder: ServeFolder;
  let server: ServeProcess;
  beforeAll(async () => {
    folder = await createServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers: 2 },
      log: { level: 'info' },
    }));
    folder.write('alice.pem', folder.alice.pem);
    folder.write('alice-key.pem', folder.alice.keyPem);
    server = await startServe(folder);
  });
  afterAll(() => folder?.remove());

  const getWorker = async (path: string): Promise<unknown> =>
    (await until(`${path} is logged`, () => server.log.find((line) => line['path'] === path)))['worker'];

  test.each([
    ['TLSv1.2', '-tls1_2'],
    ['TLSv1.3', '-tls1_3'],
  ])("C02 OpenSSL's client resumes a %s session at both workers, and the metric counts it", async (version, flag) => {
    const session = folder.file(`session-${version}.pem`);
    const certificate = ['-cert', folder.file('alice.pem'), '-key', folder.file('alice-key.pem')];
    const [full, resumed] = [await countHandshakes(server, 'full'), await countHandshakes(server, 'resumed')];
    const first = await runOpenssl(folder, server.port, '/health', [flag, '-sess_out', session, ...certificate]);
    expect(first).toMatch(new RegExp(`^New, ${version}`, 'm'));
    // RFC 8446 §4.6.1: the ticket lifetime.
    expect(first).toMatch(/ticket lifetime hint: 600 \(seconds\)/);
    const workers = new Set<unknown>();
    let iterations = 0;
    await until('the session was resumed at both workers', async () => {
      iterations += 1;
      const path = `/resumed/${version}/${iterations}`;
      const output = await runOpenssl(folder, server.port, path, [flag, '-sess_in', session]);
      expect(output).toMatch(new RegExp(`^Reused, ${version}`, 'm'));
      // C19: early data is not accepted.
      expect(output).not.toMatch(/Max Early Data: [1-9]/);
      // RFC 8446 §2.2: forward secrecy even against an attacker who can decrypt tickets.
      if (version === 'TLSv1.3') expect(output).toMatch(/^Server Temp Key: /m);
      workers.add(await getWorker(path));
      return workers.size === 2;
    });
    expect(workers).toEqual(new Set(server.workers));
    expect(await countHandshakes(server, 'full')).toBe(full + 1);
    expect(await countHandshakes(server, 'resumed')).toBe(resumed + iterations);
  });

  test.each(TLS_VERSIONS)(
    'C01 C02 a %s session that is resumed at the other worker keeps its identity',
    async (version) => {
      const { ca, alice } = folder;
      const first = await requestOnce(server.port, { ca, version, as: alice, ...GRANT });
      expect(summarize(first)).toEqual(['full handshake', 200, ALICE]);
      for (let attempt = 0; attempt < 4; attempt += 1)
        expect(summarize(await requestOnce(server.port, { ca, version, session: first.session, ...GRANT }))).toEqual([
          'resumed',
          200,
          ALICE,
        ]);
      const anonymous = await requestOnce(server.port, { ca, version, ...GRANT });
      for (let attempt = 0; attempt < 2; attempt += 1)
        expect(
          summarize(await requestOnce(server.port, { ca, version, session: anonymous.session, ...GRANT })),
        ).toEqual(['resumed', 401, 'invalid_client']);
    },
  );

  test('a session survives the restart of the workers', async () => {
    const { ca, alice } = folder;
    const first = await requestOnce(server.port, { ca, version: 'TLSv1.3', as: alice, ...GRANT });
    server.signal('SIGUSR2');
    await until('the workers are replaced', () => server.log.some(({ event }) => event === 'workers_restarted'), 60);
    const resumed = await requestOnce(server.port, {
      ca,
      version: 'TLSv1.3',
      session: first.session,
      ...GRANT,
    });
    expect(summarize(resumed)).toEqual(['resumed', 200, ALICE]);
  });
});

describe('two replicas on one Redis with the same keys', () => {
  let redis: RedisServer;
  let folder: ServeFolder;
  let settings: SettingsInput;
  let replicas: readonly Gateway[] = [];
  const log: LogLine[] = [];
  let offset = 0;
  beforeAll(async () => {
    redis = await startRedis();
    folder = await createServeFolder();
    writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
    settings = {
      ...baseSettings(folder.upstream.port),
      store: { type: 'redis', url: redis.url },
      keys: { file: 'keys.json' },
    };
    const open = (): Promise<Gateway> =>
      openGateway({
        settings: writeAndLoadSettings(folder.path, settings),
        log: createLogger({
          level: 'info',
          format: 'json',
          write: (line) => log.push(JSON.parse(line) as LogLine),
        }),
        now: () => Date.now() / 1_000 + offset,
      });
    replicas = [await open(), await open()];
  });
  afterAll(async () => {
    await Promise.all(replicas.map((replica) => replica.close()));
    await folder?.remove();
    await redis?.stop();
  });

  const requestAt = (which: 0 | 1, options: Omit<SessionOptions, 'ca'>): Promise<SessionResult> =>
    requestOnce(replicas[which]?.port ?? 0, { ca: folder.ca, ...GRANT, ...options });
  const areSessionsShared = async (): Promise<boolean> => {
    const { session } = await requestAt(1, { version: 'TLSv1.3' });
    return (await requestAt(0, { version: 'TLSv1.3', session })).isResumed;
  };
  const requestAtBoth = async (options: Omit<SessionOptions, 'ca'>) => [
    summarize(await requestAt(0, options)),
    summarize(await requestAt(1, options)),
  ];
  const twice = (result: readonly unknown[]) => [result, result];
  const reloadBoth = async (change: (settings: SettingsInput) => SettingsInput): Promise<void> => {
    settings = change(settings);
    for (const replica of replicas) await replica.reload(writeAndLoadSettings(folder.path, settings));
  };

  test.each(TLS_VERSIONS)(
    'C01 C02 a %s session is resumed at the other replica, with its certificate',
    async (version) => {
      const { session } = await requestAt(0, { version, as: folder.alice });
      expect(await requestAtBoth({ version, session })).toEqual(twice(['resumed', 200, ALICE]));
    },
  );

  test('C03 a certificate that expired meanwhile is also refused on a resumed session', async () => {
    // The Redis store tolerates clock differences of less than 30 s.
    const shortLived = await issue(folder.ca, {
      commonName: 'alice',
      notAfter: new Date(Date.now() + 20_000),
    });
    const first = await requestAt(0, { version: 'TLSv1.3', as: shortLived });
    expect(summarize(first)).toEqual(['full handshake', 200, ALICE]);
    offset = 25;
    try {
      expect(await requestAtBoth({ version: 'TLSv1.3', session: first.session })).toEqual(
        twice(['resumed', 401, 'invalid_client']),
      );
    } finally {
      offset = 0;
    }
  });

  test('C06 C07 a certificate that was revoked meanwhile is also refused on a resumed session', async () => {
    const formerUser = await issue(folder.ca, { commonName: 'alice' });
    const { session } = await requestAt(0, { version: 'TLSv1.3', as: formerUser });
    const crl = await createCrl(folder.ca, { revoked: [formerUser] });
    folder.write('ca.crl', crl.pem);
    await reloadBoth((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, crls: ['ca.crl'] },
    }));
    expect(await requestAtBoth({ version: 'TLSv1.3', session })).toEqual(twice(['resumed', 401, 'invalid_client']));
  });

  test.each(TLS_VERSIONS)(
    'C07 when a CA is removed, its %s sessions are no longer resumed, and its certificates are no longer trusted',
    async (version) => {
      const removedCa = await createCa({ name: 'CN=Leaving CA' });
      const removedCaCertificate = await issue(removedCa, { commonName: 'alice' });
      folder.write('leaving.pem', removedCa.pem);
      const trust = (...files: string[]): Promise<void> =>
        reloadBoth((settings) => ({
          ...settings,
          certificates: { ...settings.certificates, issuers: files },
        }));
      await trust('ca.pem', 'leaving.pem');
      const first = await requestAt(0, { version, as: removedCaCertificate });
      expect(summarize(first)).toEqual(['full handshake', 200, ALICE]);
      expect(await requestAtBoth({ version, session: first.session })).toEqual(twice(['resumed', 200, ALICE]));
      await trust('ca.pem');
      const refused = twice(['full handshake', 401, 'invalid_client']);
      expect(await requestAtBoth({ version, session: first.session })).toEqual(refused);
      expect(await requestAtBoth({ version, session: first.session, as: removedCaCertificate })).toEqual(refused);
    },
  );

  test('O07 a new server certificate is presented to returning clients', async () => {
    const { session } = await requestAt(0, { version: 'TLSv1.3', as: folder.alice });
    const next = await issueServer(folder.ca);
    folder.write('server-key.pem', next.keyPem);
    folder.write('server.pem', next.pem);
    await reloadBoth((settings) => settings);
    for (const [handshake] of await requestAtBoth({ version: 'TLSv1.3', session, as: folder.alice }))
      expect(handshake).toBe('full handshake');
    const renewed = await requestAt(1, { version: 'TLSv1.3', as: folder.alice });
    expect((await requestAt(0, { version: 'TLSv1.3', session: renewed.session })).isResumed).toBe(true);
  });

  test('O08 when rotated keys become active, clients do full handshakes without errors and get new sessions', async () => {
    const version = 'TLSv1.3';
    const { session } = await requestAt(0, { version, as: folder.alice });
    const file = folder.file('keys.json');
    const rotation = { alg: 'EdDSA', now: Date.now() / 1_000, publishBefore: 20 } as const;
    writeKeyringFile(file, rotateKeyring(readKeyringFile(file), rotation), { replace: true });
    await reloadBoth((settings) => settings);
    expect(await requestAtBoth({ version, session })).toEqual(twice(['resumed', 200, ALICE]));
    offset = 25;
    await until('the old ticket is no longer accepted', async () =>
      (await requestAtBoth({ version, session, as: folder.alice })).every(([handshake, status]) => {
        expect(status).toBe(200);
        return handshake === 'full handshake';
      }),
    );
    await until('both replicas share the new secret', async () => {
      const fresh = await requestAt(1, { version, as: folder.alice });
      return (
        summarize(await requestAt(0, { version, session: fresh.session })).join() === ['resumed', 200, ALICE].join()
      );
    });
  });

  test('no error was logged', () => {
    const errorEvents = ['internal_error', 'uncaught_exception', 'reload_failed'];
    expect(log.filter(({ event }) => errorEvents.includes(event))).toEqual([]);
  });

  test('after a reload with `process` a session is resumed only by its own process, with `off` nowhere', async () => {
    const version = 'TLSv1.3';
    const setSessionTickets = (sessionTickets: 'process' | 'off' | 'shared'): Promise<void> =>
      reloadBoth(({ listen, ...settings }) => ({
        ...settings,
        listen: {
          ...listen,
          tls: { certificate: 'server.pem', key: 'server-key.pem', sessionTickets },
        },
      }));
    const { session: sharedSession } = await requestAt(0, { version });
    await setSessionTickets('process');
    const { session: processSession } = await requestAt(0, { version });
    const isResumedAt = async (which: 0 | 1, session: Buffer | undefined) =>
      (await requestAt(which, { version, session })).isResumed;
    expect([await isResumedAt(0, sharedSession), await isResumedAt(1, sharedSession)]).toEqual([false, false]);
    expect([await isResumedAt(0, processSession), await isResumedAt(1, processSession)]).toEqual([true, false]);
    await setSessionTickets('off');
    const { session: noSession } = await requestAt(0, { version });
    for (const session of [sharedSession, processSession, noSession]) expect(await isResumedAt(0, session)).toBe(false);
    await setSessionTickets('shared');
    await until('sessions are shared again', () => areSessionsShared(), 60);
  });

  test('the store holds the secrets sealed and with an expiry, and they are not restored after a data loss of Redis', async () => {
    const client = new Redis(redis.url);
    try {
      const ticketKeys = await client.keys('*transient-tickets-*');
      expect(ticketKeys.length).toBeGreaterThan(0);
      for (const key of ticketKeys) {
        expect(await client.ttl(key)).toBeGreaterThan(0);
        expect(await client.get(key)).toMatch(/"r":\{"sealed":"[\w-]{80}"\},"m":"[\w-]+\.[\w-]{43}"\}$/);
      }
      await client.flushall();
      await until('permanent records are restored', async () => (await client.keys('*{keys}:n')).length === 1, 60);
      expect(await client.keys('*transient-*')).toEqual([]);
    } finally {
      client.disconnect();
    }
  });
});
