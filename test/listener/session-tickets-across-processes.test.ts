import { execFile } from 'node:child_process';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Gateway, openGateway } from '../../src/server/gateway.ts';
import { ROTATION_SECONDS } from '../../src/server/ticket-secret-rotation.ts';
import {
  createKeyringFile,
  readKeyringFile,
  rotateKeyring,
  writeKeyringFile,
} from '../../src/tokens/keyring-file.ts';
import { needs } from '../set-up/programs.ts';
import { createCa, createCrl, issue, issueServer } from '../support/pki.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { scrape } from '../support/scrape.ts';
import {
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { ALICE, baseSettings, type LogLine, writeAndLoadSettings } from '../support/test-gateway.ts';
import {
  requestOnce,
  type SessionOptions,
  type SessionResult,
  TLS_VERSIONS,
} from '../support/tls-sessions.ts';

needs('openssl');

const GRANT = {
  path: '/authsvc/Authorize/Certificate',
  body: { client_id: 'report-runner', scope: 'files:read' },
} as const;

/** What came of a connection, and of a certificate grant on it. */
const seen = ({ isResumed, status, json }: SessionResult) => [
  isResumed ? 'resumed' : 'whole handshake',
  status,
  json['identity'] ?? json['Error'],
];

/** OpenSSL's own client, which writes sessions down and takes them up again. */
function openssl(folder: ServeFolder, port: number, path: string, args: readonly string[]): Promise<string> {
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

const handshakes = async ({ adminPort }: ServeProcess, kind: 'full' | 'resumed'): Promise<number> =>
  (await scrape(adminPort)).value(`gatehouse_tls_handshakes_total{kind="${kind}"}`) || 0;

/**
 * A period that ends during a test ends the sessions it is about; some tests move the clock by 25 s. Workers notice a new
 * period within a second of their own, and until all of them have, sessions are not resumed everywhere.
 */
beforeEach(() =>
  until(
    'the period has begun and does not end soon',
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

  const workerOf = async (path: string): Promise<unknown> =>
    (await until(`a log line for ${path}`, () => server.log.find((one) => one['path'] === path)))['worker'];

  test.each([
    ['TLSv1.2', '-tls1_2'],
    ['TLSv1.3', '-tls1_3'],
  ])(
    "C02 OpenSSL's client resumes a session of %s at both, as it reports, and the metric too",
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
      // RFC 8446 §4.6.1: how long a ticket is valid.
      expect(first).toMatch(/ticket lifetime hint: 600 \(seconds\)/);
      const workers = new Set<unknown>();
      let iterations = 0;
      await until('resumed at both', async () => {
        iterations += 1;
        const path = `/turn/${version}/${iterations}`;
        const reported = await openssl(folder, server.port, path, [flag, '-sess_in', session]);
        expect(reported).toMatch(new RegExp(`^Reused, ${version}`, 'm'));
        // C19: nothing is taken before the handshake has ended.
        expect(reported).not.toMatch(/Max Early Data: [1-9]/);
        // RFC 8446 §2.2: recorded traffic stays closed also for whoever can read tickets.
        if (version === 'TLSv1.3') expect(reported).toMatch(/^Server Temp Key: /m);
        workers.add(await workerOf(path));
        return workers.size === 2;
      });
      expect(workers).toEqual(new Set(server.workers));
      expect(await handshakes(server, 'full')).toBe(full + 1);
      expect(await handshakes(server, 'resumed')).toBe(resumed + iterations);
    },
  );

  test.each(TLS_VERSIONS)(
    'C01 C02 a session of %s that is resumed at the other worker keeps its identity',
    async (version) => {
      const { ca, alice } = folder;
      const first = await requestOnce(server.port, { ca, version, as: alice, ...GRANT });
      expect(seen(first)).toEqual(['whole handshake', 200, ALICE]);
      for (let attempt = 0; attempt < 4; attempt += 1)
        expect(
          seen(await requestOnce(server.port, { ca, version, session: first.session, ...GRANT })),
        ).toEqual(['resumed', 200, ALICE]);
      const unknown = await requestOnce(server.port, { ca, version, ...GRANT });
      for (let turn = 0; turn < 2; turn += 1)
        expect(
          seen(await requestOnce(server.port, { ca, version, session: unknown.session, ...GRANT })),
        ).toEqual(['resumed', 401, 'invalid_client']);
    },
  );

  test('a session outlives the workers it began with', async () => {
    const { ca, alice } = folder;
    const first = await requestOnce(server.port, { ca, version: 'TLSv1.3', as: alice, ...GRANT });
    server.signal('SIGUSR2');
    await until(
      'the workers were replaced',
      () => server.log.some(({ event }) => event === 'workers_restarted'),
      60,
    );
    const again = await requestOnce(server.port, {
      ca,
      version: 'TLSv1.3',
      session: first.session,
      ...GRANT,
    });
    expect(seen(again)).toEqual(['resumed', 200, ALICE]);
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

  const at = (which: 0 | 1, options: Omit<SessionOptions, 'ca'>): Promise<SessionResult> =>
    requestOnce(replicas[which]?.port ?? 0, { ca: folder.ca, ...GRANT, ...options });
  const sharing = async (): Promise<boolean> => {
    const { session } = await at(1, { version: 'TLSv1.3' });
    return (await at(0, { version: 'TLSv1.3', session })).isResumed;
  };
  const atBoth = async (options: Omit<SessionOptions, 'ca'>) => [
    seen(await at(0, options)),
    seen(await at(1, options)),
  ];
  const twice = (one: readonly unknown[]) => [one, one];
  const reloadBoth = async (change: (settings: SettingsInput) => SettingsInput): Promise<void> => {
    settings = change(settings);
    for (const replica of replicas) await replica.reload(writeAndLoadSettings(folder.path, settings));
  };

  test.each(TLS_VERSIONS)(
    'C01 C02 a session of %s is resumed at the other one, with its certificate',
    async (version) => {
      const { session } = await at(0, { version, as: folder.alice });
      expect(await atBoth({ version, session })).toEqual(twice(['resumed', 200, ALICE]));
    },
  );

  test('C03 a certificate that has expired meanwhile is refused on a resumed session too', async () => {
    // Redis allows clocks to differ by less than 30 s.
    const brief = await issue(folder.ca, { commonName: 'alice', notAfter: new Date(Date.now() + 20_000) });
    const first = await at(0, { version: 'TLSv1.3', as: brief });
    expect(seen(first)).toEqual(['whole handshake', 200, ALICE]);
    offset = 25;
    try {
      expect(await atBoth({ version: 'TLSv1.3', session: first.session })).toEqual(
        twice(['resumed', 401, 'invalid_client']),
      );
    } finally {
      offset = 0;
    }
  });

  test('C06 C07 a certificate that was revoked meanwhile is refused on a resumed session too', async () => {
    const formerUser = await issue(folder.ca, { commonName: 'alice' });
    const { session } = await at(0, { version: 'TLSv1.3', as: formerUser });
    const crl = await createCrl(folder.ca, { revoked: [formerUser] });
    folder.write('ca.crl', crl.pem);
    await reloadBoth((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, crls: ['ca.crl'] },
    }));
    expect(await atBoth({ version: 'TLSv1.3', session })).toEqual(twice(['resumed', 401, 'invalid_client']));
  });

  test.each(TLS_VERSIONS)(
    'C07 when a CA is removed, sessions of %s end with it, and its certificates are not trusted any more',
    async (version) => {
      const leaving = await createCa({ name: 'CN=Leaving CA' });
      const theirs = await issue(leaving, { commonName: 'alice' });
      folder.write('leaving.pem', leaving.pem);
      const trust = (...files: string[]): Promise<void> =>
        reloadBoth((settings) => ({
          ...settings,
          certificates: { ...settings.certificates, issuers: files },
        }));
      await trust('ca.pem', 'leaving.pem');
      const first = await at(0, { version, as: theirs });
      expect(seen(first)).toEqual(['whole handshake', 200, ALICE]);
      expect(await atBoth({ version, session: first.session })).toEqual(twice(['resumed', 200, ALICE]));
      await trust('ca.pem');
      const refused = twice(['whole handshake', 401, 'invalid_client']);
      expect(await atBoth({ version, session: first.session })).toEqual(refused);
      expect(await atBoth({ version, session: first.session, as: theirs })).toEqual(refused);
    },
  );

  test('O07 another server certificate is presented to returning clients', async () => {
    const { session } = await at(0, { version: 'TLSv1.3', as: folder.alice });
    const next = await issueServer(folder.ca);
    folder.write('server-key.pem', next.keyPem);
    folder.write('server.pem', next.pem);
    await reloadBoth((settings) => settings);
    for (const [how] of await atBoth({ version: 'TLSv1.3', session, as: folder.alice }))
      expect(how).toBe('whole handshake');
    const renewed = await at(1, { version: 'TLSv1.3', as: folder.alice });
    expect((await at(0, { version: 'TLSv1.3', session: renewed.session })).isResumed).toBe(true);
  });

  test('O08 rotated keys end all sessions when they become active: full handshakes, no errors, and then new sessions', async () => {
    const version = 'TLSv1.3';
    const { session } = await at(0, { version, as: folder.alice });
    const file = folder.file('keys.json');
    const rotation = { alg: 'EdDSA', now: Date.now() / 1_000, publishBefore: 20 } as const;
    writeKeyringFile(file, rotateKeyring(readKeyringFile(file), rotation), { replace: true });
    await reloadBoth((settings) => settings);
    expect(await atBoth({ version, session })).toEqual(twice(['resumed', 200, ALICE]));
    offset = 25;
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

  test('no error was logged', () => {
    const bad = ['internal_error', 'uncaught_exception', 'reload_failed'];
    expect(log.filter(({ event }) => bad.includes(event))).toEqual([]);
  });

  test('after a reload with `process` a session is resumed only where it began, with `off` nowhere', async () => {
    const version = 'TLSv1.3';
    const tickets = (sessionTickets: 'process' | 'off' | 'shared'): Promise<void> =>
      reloadBoth(({ listen, ...settings }) => ({
        ...settings,
        listen: {
          ...listen,
          tls: { certificate: 'server.pem', key: 'server-key.pem', sessionTickets },
        },
      }));
    const { session: shared } = await at(0, { version });
    await tickets('process');
    const { session: own } = await at(0, { version });
    const how = async (which: 0 | 1, session: Buffer | undefined) =>
      (await at(which, { version, session })).isResumed;
    expect([await how(0, shared), await how(1, shared)]).toEqual([false, false]);
    expect([await how(0, own), await how(1, own)]).toEqual([true, false]);
    await tickets('off');
    const { session: none } = await at(0, { version });
    for (const session of [shared, own, none]) expect(await how(0, session)).toBe(false);
    await tickets('shared');
    await until('they share again', () => sharing(), 60);
  });

  test('the store holds the secrets sealed and with an expiry; a Redis that has lost them does not get them again', async () => {
    const client = new Redis(redis.url);
    try {
      const kept = await client.keys('*passing-tickets-*');
      expect(kept.length).toBeGreaterThan(0);
      for (const key of kept) {
        expect(await client.ttl(key)).toBeGreaterThan(0);
        expect(await client.get(key)).toMatch(/"r":\{"sealed":"[\w-]{80}"\},"m":"[\w-]+\.[\w-]{43}"\}$/);
      }
      await client.flushall();
      await until('what lasts is put back', async () => (await client.keys('*{keys}:n')).length === 1, 60);
      expect(await client.keys('*passing-*')).toEqual([]);
    } finally {
      client.disconnect();
    }
  });
});
