import { createServer, type RequestListener } from 'node:http';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createHttpClient } from '../../src/lib/http-client.ts';
import { Fault } from '../../src/ports/fault.ts';
import { createCertificateValidator } from '../../src/x509/certificate-validator.ts';
import { CrlFetcher, type CrlFetcherOptions, computeRefetchDelay, createCrlFiles } from '../../src/x509/crl-files.ts';
import { createCrlSet, parseCrlFile } from '../../src/x509/crl-set.ts';
import { fetchCrl } from '../../src/x509/revocation-requests.ts';
import { createCa, createCrl, type IssuedCertificate, type IssuedCrl, issue } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { approve, nowSeconds } from './validator.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

const daysFromNow = (count: number): Date => new Date(Date.now() + count * 86_400_000);
const body = { client_id: 'report-runner', scope: 'files:read' };

/** A server whose response tests change. */
async function startCrlServer(initial: RequestListener) {
  let listener = initial;
  let requests = 0;
  const server = createServer((request, response) => {
    requests += 1;
    listener(request, response);
  });
  const { port, close } = await listenTcp(server);
  cleanups.push(() => {
    server.closeAllConnections();
    return close();
  });
  return {
    url: `http://127.0.0.1:${port}/ca.crl`,
    get requests() {
      return requests;
    },
    respond(next: RequestListener) {
      listener = next;
    },
  };
}

const sendList =
  ({ der }: Pick<IssuedCrl, 'der'>, type = 'application/pkix-crl'): RequestListener =>
  (_request, response) =>
    response.setHeader('content-type', type).end(der);
const never: RequestListener = () => {};

describe('a fetcher', () => {
  let ca: IssuedCertificate;
  let other: IssuedCertificate;
  let alice: IssuedCertificate;
  beforeAll(async () => {
    [ca, other] = await Promise.all([createCa(), createCa({ name: 'CN=Other' })]);
    alice = await issue(ca);
  });

  async function startFetcher(
    url: string,
    options: Partial<CrlFetcherOptions> = {},
    limits: { readonly timeoutMs?: number } = {},
  ) {
    const httpClient = createHttpClient({ timeoutMs: limits.timeoutMs ?? 20_000, maxConnections: 1 });
    const crlFiles = createCrlFiles();
    const states: string[] = [];
    const fetcher = new CrlFetcher({
      url,
      issuers: [approve(ca), approve(other, 'commonName', 'other')],
      fetch: () => fetchCrl(url, 16 * 1_048_576, httpClient),
      parse: (bytes, issuers) => crlFiles.parse(url, bytes, issuers),
      refresh: 0.01,
      now: nowSeconds,
      onStateChange: (error) => states.push(error?.message ?? 'recovered'),
      ...options,
    });
    cleanups.push(() => {
      fetcher.close();
      return Promise.all([httpClient.destroy(), crlFiles.stop()]);
    });
    await fetcher.start();
    const validator = createCertificateValidator({
      issuers: [approve(ca), approve(other, 'commonName', 'other')],
      crls: createCrlSet([], [fetcher]),
      requireCrl: false,
      requireClientAuth: true,
      asciiNames: true,
    });
    const check = (certificate: IssuedCertificate = alice, now = nowSeconds()): string => {
      try {
        const outcome = validator.validateLocally(certificate.der, now);
        return outcome.ok ? 'accepted' : outcome.refusal.reason;
      } catch (error) {
        expect(error).toBeInstanceOf(Fault);
        return (error as Fault).code;
      }
    };
    return { fetcher, states, check, validator };
  }

  test('uses the list, in DER or PEM, and a newer one as soon as it is published', async () => {
    const good = await createCrl(ca);
    const server = await startCrlServer(sendList(good));
    const { check, validator, states } = await startFetcher(server.url);
    expect(check()).toBe('accepted');
    const before = validator.revision;
    const revoking = await createCrl(ca, { revoked: [alice], thisUpdate: daysFromNow(-0.01) });
    server.respond((_request, response) => response.end(revoking.pem));
    await until('the newer list is used', () => check() === 'certificate_revoked');
    expect(validator.revision).not.toBe(before);
    expect(states).toEqual([]);
  });

  const FAILURES: Readonly<Record<string, { readonly listener: RequestListener; readonly message: RegExp }>> = {
    'an error status': {
      listener: (_request, response) => response.writeHead(500).end('x'.repeat(100_000)),
      message: /responded with 500/,
    },
    'a redirect': {
      listener: (_request, response) => response.writeHead(302, { location: '/elsewhere' }).end(),
      message: /responded with 302/,
    },
    'a page': {
      listener: (_request, response) => response.setHeader('content-type', 'text/html; charset=utf-8').end('<p>'),
      message: /content type/,
    },
    'an empty body': { listener: (_request, response) => response.end(), message: /no revocation list/ },
    'a compressed body': {
      listener: (_request, response) => response.setHeader('content-encoding', 'gzip').end(gzipSync('x')),
      message: /content coding/,
    },
    'an announced length beyond the limit': {
      listener: (_request, response) => response.writeHead(200, { 'content-length': 70 * 1_048_576 }).write('x'),
      message: /longer than/,
    },
    'a closed connection': { listener: (request) => request.socket.destroy(), message: /./ },
  };

  test.each(Object.keys(FAILURES))('keeps the last list after %s, and recovers', async (name) => {
    const { listener, message } = FAILURES[name] as (typeof FAILURES)[string];
    const good = await createCrl(ca, { revoked: [alice] });
    const server = await startCrlServer(sendList(good));
    const { check, states } = await startFetcher(server.url);
    server.respond(listener);
    await until('the fetch has failed or recovered', () => states.length === 1);
    expect(states[0]).toMatch(message);
    expect(check()).toBe('certificate_revoked');
    server.respond(sendList(good));
    await until('the fetch has failed or recovered', () => states.length === 2);
    expect(states[1]).toBe('recovered');
  });

  test('a body without an announced length ends at the limit', async () => {
    const server = await startCrlServer((_request, response) => {
      const chunk = Buffer.alloc(1_048_576);
      const write = (): void => {
        while (!response.destroyed && response.write(chunk));
      };
      response.on('drain', write).on('error', () => {});
      write();
    });
    const { states, check } = await startFetcher(server.url);
    expect(states[0]).toMatch(/longer than/);
    expect(check()).toBe('certificate_status_unavailable');
  });

  test('a server that does not respond in time is a failure', async () => {
    const server = await startCrlServer(never);
    const { states, check } = await startFetcher(server.url, {}, { timeoutMs: 200 });
    expect(states).toHaveLength(1);
    expect(check()).toBe('certificate_status_unavailable');
  });

  test('refuses an older list, a damaged one, one of an unapproved key, an expired one and one from the future', async () => {
    const revoking = await createCrl(ca, { revoked: [alice], thisUpdate: daysFromNow(-1) });
    const otherCa = await createCa();
    const expired = await createCrl(ca, { thisUpdate: daysFromNow(-0.5), nextUpdate: daysFromNow(-0.2) });
    const bad: readonly (readonly [Pick<IssuedCrl, 'der'>, RegExp])[] = [
      [await createCrl(ca, { thisUpdate: daysFromNow(-2) }), /older than the one in use/],
      [{ der: (await createCrl(ca)).der.subarray(0, -1) }, /is not a revocation list/],
      [await createCrl(ca, { signedBy: otherCa.keys }), /not signed by any of the approved issuers/],
      [expired, /has expired/],
      [await createCrl(ca, { thisUpdate: daysFromNow(0.01) }), /from the future/],
    ];
    for (const [list, message] of bad) {
      const server = await startCrlServer(sendList(revoking));
      const { check, states } = await startFetcher(server.url);
      server.respond(sendList(list));
      await until('the fetch has failed or recovered', () => states.length === 1);
      expect(states[0]).toMatch(message);
      expect(check()).toBe('certificate_revoked');
      server.respond(sendList(await createCrl(ca, { thisUpdate: daysFromNow(-0.1) })));
      await until('a correct list is used', () => check() === 'accepted');
    }
  });

  test('uses a list of a CA whose clock is less than five minutes ahead', async () => {
    const fourMinutes = 4 / 1_440;
    const server = await startCrlServer(
      sendList(await createCrl(ca, { revoked: [alice], thisUpdate: daysFromNow(fourMinutes) })),
    );
    const { check } = await startFetcher(server.url);
    expect(check()).toBe('certificate_revoked');
  });

  test('before the first fetch, the status of every issuer without a list is unavailable', async () => {
    const server = await startCrlServer((_request, response) => response.writeHead(404).end());
    const { check } = await startFetcher(server.url);
    expect(check()).toBe('certificate_status_unavailable');
    expect(check(await issue(other))).toBe('certificate_status_unavailable');
  });

  test('a covered issuer without a list stays unavailable after the list of another one arrived', async () => {
    const mallory = await issue(other);
    const lists = [await createCrl(ca), await createCrl(other, { revoked: [mallory] })] as const;
    const server = await startCrlServer(sendList(lists[0]));
    // An attacker sends the list of one issuer in response to both requests, or removes one from a bundle.
    const { check, fetcher } = await startFetcher(server.url);
    expect(check()).toBe('accepted');
    expect(check(mallory)).toBe('certificate_status_unavailable');
    server.respond((_request, response) => response.end(lists.map(({ pem }) => pem).join('')));
    await until('both lists are used', () => fetcher.lists.length === 2);
    expect(check(mallory)).toBe('certificate_revoked');
    server.respond(sendList(lists[0]));
    const { revision } = fetcher;
    await until('the bundle was fetched without the list', () => fetcher.revision > revision + 1);
    expect(check(mallory)).toBe('certificate_revoked');
  });

  test('the old key of an issuer stays unavailable while only the list of its new key is published', async () => {
    const renewed = await createCa();
    const issuers = [approve(ca), approve(renewed)];
    const server = await startCrlServer(sendList(await createCrl(renewed)));
    const { fetcher } = await startFetcher(server.url, { issuers, issuer: 'ca' });
    expect(fetcher.lists).toHaveLength(1);
    const fromFile = parseCrlFile('old.crl', (await createCrl(ca, { revoked: [alice] })).der, issuers);
    const getStatus = (loaded: typeof fromFile): string =>
      createCrlSet(loaded, [fetcher]).getStatus(approve(ca).keyFingerprint, alice.serial, nowSeconds());
    expect(getStatus([])).toBe('unavailable');
    // A list from another source is enough.
    expect(getStatus(fromFile)).toBe('revoked');
  });

  test('with `issuer`, only that issuer waits, and lists of another issuer are refused', async () => {
    const server = await startCrlServer(sendList(await createCrl(other)));
    const { check, states } = await startFetcher(server.url, { issuer: 'ca' });
    expect(states[0]).toBe('it is the revocation list of other, and not of ca');
    expect(check()).toBe('certificate_status_unavailable');
    expect(check(await issue(other))).toBe('accepted');
  });

  test('after its nextUpdate, a list that cannot be renewed makes the status unavailable, except of revoked certificates', async () => {
    const bob = await issue(ca);
    const server = await startCrlServer(
      sendList(await createCrl(ca, { revoked: [alice], nextUpdate: daysFromNow(1) })),
    );
    const { check } = await startFetcher(server.url);
    const later = nowSeconds() + 2 * 86_400;
    expect(check(bob)).toBe('accepted');
    expect(check(bob, later)).toBe('certificate_status_unavailable');
    expect(check(alice, later)).toBe('certificate_revoked');
  });

  test('is fetched after `refresh`, but before nextUpdate, and never in a tight loop', () => {
    const now = nowSeconds();
    const endingIn = (...seconds: number[]) => seconds.map((left) => ({ nextUpdate: now + left }));
    expect(computeRefetchDelay(endingIn(86_400), 3_600, now)).toBe(3_600);
    expect(computeRefetchDelay(endingIn(86_400, 600), 3_600, now)).toBe(300);
    expect(computeRefetchDelay(endingIn(3), 3_600, now)).toBe(10);
    expect(computeRefetchDelay(endingIn(-5), 3_600, now)).toBe(10);
  });

  test('a list of the old key of an issuer stays when the list of its new key is published', async () => {
    const renewed = await createCa();
    const issuers = [approve(ca), approve(renewed)];
    const server = await startCrlServer(sendList(await createCrl(ca, { revoked: [alice] })));
    const { fetcher } = await startFetcher(server.url, { issuers });
    server.respond(sendList(await createCrl(renewed)));
    await until('both lists are used', () => fetcher.lists.length === 2);
    const keys = new Set(fetcher.lists.map(({ issuerKey }) => issuerKey));
    expect(keys).toEqual(new Set(issuers.map(({ keyFingerprint }) => keyFingerprint)));
  });
});

describe('a gateway with a revocation list at a URL', () => {
  async function setUp(url: string, more: Record<string, unknown> = {}): Promise<TestGateway> {
    const change: SettingsChange = (settings) => ({
      ...settings,
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'bound-app',
          scope: 'files:read',
          access: [{ groups: ['operators'] }],
          bindToCertificate: true,
        },
      ],
      certificates: { ...settings.certificates, crls: [{ url, ...more }] },
    });
    const gateway = await startGateway(change);
    cleanups.push(() => gateway.close());
    return gateway;
  }
  const setRefresh =
    (url: string, refresh: string): SettingsChange =>
    (settings) => ({ ...settings, certificates: { ...settings.certificates, crls: [{ url, refresh }] } });

  test('starts without it; certificates are a temporary error until it is fetched, and other requests work', async () => {
    const server = await startCrlServer(never);
    const gateway = await setUp(server.url);
    const { alice } = gateway.users;
    expect((await gateway.api('/health')).status).toBe(200);
    const refused = await gateway.request({
      path: '/authsvc/oauth2/token',
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: 'grant_type=client_credentials&client_id=report-runner',
      as: alice,
    });
    expect(refused).toMatchObject({ status: 503, json: { error: 'temporarily_unavailable' } });
    expect(refused.headers['retry-after']).toBeDefined();
    expect(gateway.auditEvents('grant_denied')).toEqual([]);
    expect(gateway.log.find(({ code }) => code === 'certificate_status_unavailable')).toMatchObject({
      event: 'dependency_failed',
      error: expect.stringContaining(server.url),
    });

    server.respond(sendList(await createCrl(gateway.ca)));
    // A change of how it is fetched fetches it at once.
    await gateway.reload(setRefresh(server.url, '2h'));
    await until(
      'the list is used for new grants',
      async () => (await gateway.post('/Authorize/Certificate', body, { as: alice })).status === 200,
    );
  });

  test('a bound token stops with the next list, and its 503 is temporary', async () => {
    const server = await startCrlServer(never);
    const gateway = await setUp(server.url);
    const { alice } = gateway.users;
    server.respond(sendList(await createCrl(gateway.ca)));
    await gateway.reload(setRefresh(server.url, '2h'));
    await until(
      'the list is used for new grants',
      async () => (await gateway.post('/Authorize/Certificate', body, { as: alice })).status === 200,
    );
    const granted = await gateway.post(
      '/Authorize/Certificate',
      { client_id: 'bound-app', scope: 'files:read' },
      { as: alice },
    );
    const token = String(granted.json['access_token']);
    const refreshToken = String(granted.json['refresh_token']);
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);

    // Past its nextUpdate: not the client's fault.
    server.respond((_request, response) => response.writeHead(500).end());
    gateway.clock.advance(8 * 86_400);
    const fresh = await gateway.post('/Authorize/Certificate', body, { as: alice });
    expect(fresh.status).not.toBe(200);
    expect(gateway.auditEvents('grant_denied')).toEqual([]);
    expect(
      gateway.log.some(({ event, code }) => event === 'dependency_failed' && code === 'certificate_status_unavailable'),
    ).toBe(true);
    const refreshed = await gateway.post(
      '/Authorize/Token',
      { client_id: 'bound-app', refresh_token: refreshToken },
      { as: alice },
    );
    expect(refreshed.json['Error']).not.toBe('invalid_grant');
    expect(refreshed.headers['retry-after']).toBeDefined();
    gateway.clock.advance(-8 * 86_400);
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);

    server.respond(sendList(await createCrl(gateway.ca, { revoked: [alice], thisUpdate: daysFromNow(-0.01) })));
    await gateway.reload(setRefresh(server.url, '3h'));
    await until(
      'the list is used for bound tokens',
      async () => (await gateway.api('/files/a', token, { as: alice })).status === 401,
    );
    expect((await gateway.post('/Authorize/Certificate', body, { as: alice })).status).toBe(401);
  });

  test('a reload keeps the list in use, and metrics and log show a failing fetch', async () => {
    const server = await startCrlServer(never);
    const gateway = await setUp(server.url);
    const { alice } = gateway.users;
    server.respond(sendList(await createCrl(gateway.ca, { revoked: [alice] })));
    await gateway.reload(setRefresh(server.url, '2h'));
    await until(
      'the list is used for new grants',
      async () => (await gateway.post('/Authorize/Certificate', body, { as: alice })).status === 401,
    );
    server.respond((_request, response) => response.writeHead(500).end());
    await gateway.reload(setRefresh(server.url, '3h'));
    await until('it is logged', () =>
      gateway.log.some(({ event, url }) => event === 'crl_fetch_failed' && url === server.url),
    );
    expect((await gateway.post('/Authorize/Certificate', body, { as: alice })).status).toBe(401);

    const { samples } = await readMetrics(gateway);
    expect(samples(`gatehouse_crl_fetches_total{url="${server.url}",outcome="success"}`)).toBe(1);
    expect(samples(`gatehouse_crl_fetches_total{url="${server.url}",outcome="failure"}`)).toBeGreaterThan(0);
    expect(samples(`gatehouse_crl_fetch_success_timestamp_seconds{url="${server.url}"}`)).toBeGreaterThan(1);
    expect(samples('gatehouse_crl_age_seconds{issuer="ca"}')).toBeGreaterThan(0);
    expect(samples('gatehouse_crl_next_update_seconds{issuer="ca"}')).toBeGreaterThan(nowSeconds());
  });

  test('a list that expires soon is logged', async () => {
    const server = await startCrlServer(never);
    const gateway = await setUp(server.url);
    const list = { thisUpdate: daysFromNow(-9), nextUpdate: daysFromNow(1) };
    server.respond(sendList(await createCrl(gateway.ca, list)));
    await gateway.reload(setRefresh(server.url, '2h'));
    await until('it is logged', () =>
      gateway.log.some(({ event, warning }) => event === 'certificate_warning' && /expires on/.test(String(warning))),
    );
  });
});

async function readMetrics(gateway: TestGateway) {
  const response = await fetch(`http://127.0.0.1:${gateway.adminPort}/metrics`);
  const text = await response.text();
  return {
    samples: (series: string): number =>
      Number(
        text
          .split('\n')
          .find((line) => line.startsWith(`${series} `))
          ?.split(' ')[1],
      ),
  };
}
