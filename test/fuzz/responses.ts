import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { recordFigures } from '../support/figures.ts';
import { createForeignKey, formatKeySet } from '../support/foreign-issuer.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';
import { LDAP_SETTINGS, startLdapServer } from '../support/ldap-server.ts';
import { createOcspAuthority } from '../support/ocsp-server.ts';
import { createDiscovery, createProviderSettings } from '../support/openid-provider.ts';
import { createCa, createCrl, issue } from '../support/pki.ts';
import { startRedis } from '../support/redis-server.ts';
import {
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import type { SettingsChange } from '../support/test-gateway.ts';
import { computeAccept, openWebSocket } from '../support/websocket.ts';
import { breakLdapResponse, breakRedisReply } from './broken-responses.ts';
import { httpResponse, type Peer, startHttpPeer, startRelayPeer } from './hostile-peers.ts';
import { randomBelow } from './mutations.ts';

/**
 * Sends damaged responses to a running gatehouse process from every peer that it reads from. The process must stay alive with a small heap, log
 * what happened, and serve others. `npm run fuzz:responses` damages the responses of all places;
 * `-- --only crl --count 10000 --seed 7` those of one, with other responses.
 */
export const PLACES = [
  'websocket',
  'response',
  'health',
  'issuer',
  'introspection',
  'crl',
  'ocsp',
  'openid',
  'ldap',
  'redis',
  'otlp',
  'webhook',
] as const;
export type Place = (typeof PLACES)[number];

/** The log events of which each place must have caused at least one. */
const EVENTS: Readonly<Record<Place, readonly string[]>> = {
  websocket: ['upstream_failed', 'upstream_aborted'],
  response: ['upstream_failed', 'upstream_aborted', 'upstream_retried'],
  health: ['target_ejected'],
  issuer: ['issuer_unavailable'],
  introspection: ['introspection_failed'],
  crl: ['crl_fetch_failed'],
  ocsp: ['ocsp_failed'],
  openid: ['openid_refused', 'dependency_failed'],
  ldap: ['dependency_failed'],
  redis: ['store_unreachable', 'dependency_failed', 'internal_error'],
  otlp: ['span_export_failed'],
  webhook: ['audit_sink_failed'],
};
/** None of these may be logged. */
const FAULTS: ReadonlySet<string> = new Set(['uncaught_exception', 'unhandled_rejection', 'internal_error']);
/** A reply of Redis that is valid for another command may be a contradiction, which is an internal error of that request. */
const REDIS_FAULTS: ReadonlySet<string> = new Set(['uncaught_exception', 'unhandled_rejection']);

/** Less than Node chooses at the memory limit of the chart. */
const HEAP_MB = 96;
const PARALLEL = 16;
/** Sources with a path of their own, which are fetched after each reload. */
const SOURCES = 4;
const PUBLIC_URL = 'https://localhost:8443';
/** How many requests are made between two reloads. */
const REQUESTS_PER_RELOAD = 64;

interface FuzzOptions {
  /** Damaged responses of each place that requests cause; the others send what they are asked for meanwhile. */
  readonly count: number;
  readonly seed: number;
  readonly only?: Place | undefined;
  readonly log?: (line: string) => void;
}

export async function fuzzResponses(options: FuzzOptions): Promise<Readonly<Record<string, number>>> {
  const { only } = options;
  const figures: Record<string, number> = {};
  if (only !== 'redis') Object.assign(figures, await fuzzPeers(options));
  if (only === undefined || only === 'redis') Object.assign(figures, await fuzzRedis(options));
  return figures;
}

interface Target {
  readonly folder: ServeFolder;
  readonly server: ServeProcess;
  readonly peers: readonly Peer[];
  readonly faults: ReadonlySet<string>;
}

async function fuzzPeers({ count, seed, only, log = () => {} }: FuzzOptions) {
  const cleanups: (() => unknown)[] = [];
  const openPeer = async (peer: Promise<Peer>): Promise<Peer> => {
    const opened = await peer;
    cleanups.push(opened.close);
    return opened;
  };
  let seeds = seed;
  /** All responses of other places are valid. */
  const place = (name: Place, validOneOf: number) => ({
    name,
    below: randomBelow((seeds += 1)),
    validOneOf: only === undefined || only === name ? validOneOf : 1,
  });
  try {
    const [crlCa, ldapCa, key, pair] = await Promise.all([
      createCa({ name: 'CN=List CA' }),
      createCa({ name: 'CN=Directory CA' }),
      createForeignKey('ES256', 'k1'),
      generateKeyPair('ES256'),
    ]);
    const crl = await createCrl(crlCa);
    const jwk = { ...(await exportJWK(pair.publicKey)), kid: 'a', alg: 'ES256' };
    let nonce = '';

    const frameBytes = randomBelow(seed + 50);
    const websocket = await openPeer(
      startHttpPeer(place('websocket', 4), ({ head }) => {
        const accept = computeAccept(/^sec-websocket-key: *(\S+)/im.exec(head)?.[1] ?? '');
        const head101 = Buffer.from(
          `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
        );
        // Frames of any kind follow.
        return Buffer.concat([head101, Buffer.from(Array.from({ length: frameBytes(64) }, () => frameBytes(256)))]);
      }),
    );
    const response = await openPeer(startHttpPeer(place('response', 4), () => httpResponse('ok', 'text/plain')));
    const health = await openPeer(startHttpPeer(place('health', 4), () => httpResponse('ok', 'text/plain')));
    const issuer: Peer = await openPeer(
      startHttpPeer(place('issuer', 2), ({ path, head }) => {
        if (path.endsWith('/keys')) return httpResponse(formatKeySet(key));
        const url = `http://${/^host: *(\S+)/im.exec(head)?.[1]}${path.replace('/.well-known/openid-configuration', '')}`;
        return httpResponse(JSON.stringify({ issuer: url, jwks_uri: `${url}/keys` }));
      }),
    );
    const introspection = await openPeer(
      startHttpPeer(place('introspection', 4), () =>
        httpResponse(
          JSON.stringify({
            active: true,
            sub: 'carol',
            scope: 'files.read',
            aud: 'files-api',
            client_id: 'cli',
          }),
        ),
      ),
    );
    const crls = await openPeer(startHttpPeer(place('crl', 4), () => httpResponse(crl.der, 'application/pkix-crl')));
    const openid = await openPeer(
      startHttpPeer(place('openid', 2), async ({ path, head }) => {
        const [, base = '', endpoint = ''] = /^(\/r\d+)(.*)$/.exec(path.split('?')[0] ?? '') ?? [];
        const url = `http://${/^host: *(\S+)/im.exec(head)?.[1]}${base}`;
        if (endpoint === '/keys') return httpResponse(JSON.stringify({ keys: [jwk] }));
        if (endpoint !== '/token') return httpResponse(JSON.stringify(createDiscovery(url)));
        const idToken = await new SignJWT({ nonce, preferred_username: 'alice' })
          .setProtectedHeader({ alg: 'ES256', kid: 'a' })
          .setIssuer(url)
          .setSubject('alice')
          .setAudience('gatehouse')
          .setIssuedAt()
          .setExpirationTime('5m')
          .sign(pair.privateKey);
        return httpResponse(JSON.stringify({ access_token: 'x', token_type: 'Bearer', id_token: idToken }));
      }),
    );
    const otlp = await openPeer(startHttpPeer(place('otlp', 4), () => httpResponse('{}')));
    const webhook = await openPeer(startHttpPeer(place('webhook', 4), () => httpResponse('{}')));
    const slapd = await startLdapServer();
    cleanups.push(() => slapd.remove());
    const ldap = await openPeer(
      startRelayPeer({ ...place('ldap', 3), to: Number(new URL(slapd.ldapUrl).port) }, breakLdapResponse),
    );

    const folder = await createServeFolder();
    cleanups.push(() => folder.remove());
    folder.write('crl-ca.pem', crlCa.pem);
    folder.write('ldap-ca.pem', ldapCa.pem);
    const authority = await createOcspAuthority(folder.ca);
    cleanups.push(() => authority.remove());
    const users = await Promise.all(
      Array.from({ length: 8 }, (_, index) =>
        issue(folder.ca, { commonName: 'alice', subject: [{ O: [`Example ${index}`] }] }),
      ),
    );
    const directoryUser = await issue(ldapCa, { commonName: 'alice' });
    authority.setIndex(users.map((user) => [user, 'good']));
    const ocspResponses = new Map<string, Buffer>();
    const ocsp = await openPeer(
      startHttpPeer(place('ocsp', 4), ({ body }) => {
        const id = body.toString('base64');
        const cached = ocspResponses.get(id) ?? authority.respond(Buffer.from(body));
        ocspResponses.set(id, cached);
        return httpResponse(cached, 'application/ocsp-response');
      }),
    );
    const peers = [websocket, response, health, issuer, introspection, crls, ocsp, openid, ldap, otlp, webhook];

    const configure =
      (round: number): SettingsChange =>
      (settings) => ({
        ...settings,
        publicUrl: PUBLIC_URL,
        certificates: {
          directory: 'staff',
          issuers: [
            {
              file: 'ca.pem',
              name: 'main',
              ocsp: { url: `http://127.0.0.1:${ocsp.port}/r${round}`, timeout: '1s' },
            },
            { file: 'crl-ca.pem', name: 'lists' },
            { file: 'ldap-ca.pem', name: 'ldap', directory: 'corp' },
          ],
          crls: Array.from({ length: SOURCES }, (_, index) => ({
            url: `http://127.0.0.1:${crls.port}/r${round}/${index}.crl`,
            issuer: 'lists',
            timeout: '1s',
          })),
        },
        directories: {
          ...settings.directories,
          corp: {
            label: 'corp',
            ldap: {
              ...LDAP_SETTINGS,
              cacheLifetime: '0s',
              url: `ldap://127.0.0.1:${ldap.port}`,
              timeout: '1s',
            },
          },
        },
        trustedIssuers: Object.fromEntries(
          Array.from({ length: SOURCES }, (_, index) => [
            `issuer-${index}`,
            {
              issuer: `http://127.0.0.1:${issuer.port}/r${round}/${index}`,
              audience: 'files-api',
              scopes: { 'files.read': 'files:read' },
              timeout: '1s',
              ...(index === 0 && {
                introspection: {
                  url: `http://127.0.0.1:${introspection.port}/r${round}`,
                  clientId: 'gatehouse',
                  clientSecret: 'secret',
                },
              }),
            },
          ]),
        ),
        signIn: {
          openid: {
            corp: createProviderSettings(`http://127.0.0.1:${openid.port}/r${round}`, { timeout: '1s' }),
          },
        },
        upstreams: {
          ...settings.upstreams,
          broken: {
            url: `http://127.0.0.1:${response.port}`,
            timeouts: { connect: '1s', headers: '1s', idle: '1s' },
          },
          sockets: {
            url: `http://127.0.0.1:${websocket.port}`,
            timeouts: { connect: '1s', headers: '1s', idle: '1s', websocket: '1s' },
          },
          ...Object.fromEntries(
            Array.from({ length: SOURCES }, (_, index) => [
              `checked-${index}`,
              {
                urls: [`http://127.0.0.1:${health.port}`, `http://localhost:${health.port}`],
                health: { path: '/health', interval: '2s', timeout: '1s' },
              },
            ]),
          ),
        },
        routes: [
          ...(settings.routes ?? []),
          { path: '/broken/**', public: true, upstream: 'broken' },
          { path: '/ws/**', public: true, upstream: 'sockets', websocket: true },
          ...Array.from({ length: SOURCES }, (_, index) => ({
            path: `/checked/${index}`,
            public: true as const,
            upstream: `checked-${index}`,
          })),
          { path: '/foreign/**', requires: 'files:read', issuers: ['issuer-0'] },
        ],
        tracing: { otlp: `http://127.0.0.1:${otlp.port}/v1/traces`, ratio: 1 },
        audit: {
          sink: 'webhook',
          webhook: { url: `http://127.0.0.1:${webhook.port}/`, secret: 's'.repeat(40) },
        },
      });
    const base = folder;
    let initial: Parameters<SettingsChange>[0] | undefined;
    const reconfigure = (round: number): void =>
      base.configure((settings) => {
        initial ??= settings;
        return configure(round)(initial);
      });
    reconfigure(0);
    const server = await startServe(folder, { nodeOptions: [`--max-old-space-size=${HEAP_MB}`] });
    cleanups.push(() => server.stop());
    const target: Target = { folder, server, peers, faults: FAULTS };

    const agent = createAgent({ ca: folder.ca.pem, port: server.port });
    cleanups.push(() => agent.destroy());
    const { port } = server;
    const request = async (path: string, headers = {}): Promise<unknown> =>
      withClient(folder, port, undefined, (client) => client.request({ path, headers }));
    const grantAs = (user: (typeof users)[number]): Promise<unknown> =>
      withClient(folder, port, user, (client) =>
        client.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }),
      );
    const signIn = async (): Promise<void> => {
      const browser = new FormBrowser({ agent, base: `${PUBLIC_URL}/authsvc/device` });
      await browser.open(`${PUBLIC_URL}/authsvc/device/grants`);
      const { redirectTo } = await browser.post('/openid', { provider: 'corp' });
      if (redirectTo === undefined) return;
      const query = new URL(redirectTo).searchParams;
      nonce = query.get('nonce') ?? '';
      await browser.get(`${PUBLIC_URL}/authsvc/device/openid/corp?code=1&state=${query.get('state')}`);
    };
    const triggers: Readonly<Partial<Record<Place, (step: number) => Promise<unknown>>>> = {
      websocket: async (step) => {
        const client = await openWebSocket({ port, ca: folder.ca.pem, path: `/ws/${step}`, token: '' });
        client.send('x');
        client.destroy();
      },
      response: (step) => request(`/broken/${step}`),
      introspection: (step) => request('/foreign/x', { authorization: `Bearer opaque-${seed}-${step}` }),
      ocsp: (step) => grantAs(users[step % users.length] as (typeof users)[number]),
      ldap: () => grantAs(directoryUser),
      openid: signIn,
    };
    let round = 0;
    await runSteps(target, count, log, async (step) => {
      if (step % REQUESTS_PER_RELOAD === 0 && step > 0) {
        round += 1;
        reconfigure(round);
        server.signal('SIGHUP');
      }
      // A damaged response may be a closed connection for the client as well.
      await Promise.allSettled(
        Object.entries(triggers)
          .filter(([name]) => only === undefined || only === name)
          .map(([, trigger]) => trigger(step)),
      );
    });
    return await conclude(target, only);
  } finally {
    for (const cleanup of cleanups.toReversed()) await cleanup();
  }
}

async function fuzzRedis({ count, seed, log = () => {} }: FuzzOptions) {
  const redis = await startRedis();
  const cleanups: (() => unknown)[] = [() => redis.stop()];
  try {
    // Valid while it starts: gatehouse checks the server first.
    let isBroken = false;
    const below = randomBelow(seed + 100);
    const peer = await startRelayPeer(
      { name: 'redis', to: redis.port, validOneOf: 2, below: (limit) => (isBroken ? below(limit) : 0) },
      breakRedisReply,
    );
    cleanups.push(peer.close);
    const folder = await createServeFolder((settings) => ({
      ...settings,
      store: { type: 'redis', url: `redis://127.0.0.1:${peer.port}/0` },
      keys: { file: 'keys.json' },
    }));
    cleanups.push(() => folder.remove());
    writeKeyringFile(join(folder.path, 'keys.json'), createKeyringFile('EdDSA'), { replace: false });
    const server = await startServe(folder, { nodeOptions: [`--max-old-space-size=${HEAP_MB}`] });
    cleanups.push(() => server.stop());
    isBroken = true;
    const target: Target = { folder, server, peers: [peer], faults: REDIS_FAULTS };
    await runSteps(target, count, log, async (step) => {
      await Promise.allSettled([
        withClient(folder, server.port, folder.alice, async (client) => {
          const { access_token: token, refresh_token: refresh } = await client.grant();
          await client.refresh(refresh);
          await client.revoke(token);
        }),
      ]);
      // Requests fail at once until gatehouse has reconnected.
      await until('Redis sent another damaged reply', () => peer.broken() > step);
    });
    isBroken = false;
    await until('a grant succeeds again', () =>
      withClient(folder, server.port, folder.alice, (client) => client.grant()).then(
        () => true,
        () => false,
      ),
    );
    return await conclude(target, 'redis');
  } finally {
    for (const cleanup of cleanups.toReversed()) await cleanup();
  }
}

async function withClient<T>(
  folder: ServeFolder,
  port: number,
  as: Parameters<typeof connect>[2],
  use: (client: ReturnType<typeof connect>) => Promise<T>,
): Promise<T> {
  const client = connect(folder, port, as);
  try {
    return await use(client);
  } finally {
    client.close();
  }
}

/** Runs `count` steps, some at a time, and checks meanwhile that the process serves others. */
async function runSteps(
  target: Target,
  count: number,
  log: (line: string) => void,
  run: (step: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  const work = async (): Promise<void> => {
    while (next < count) {
      const step = next;
      next += 1;
      await run(step);
      if (step % 20 === 0) await checkHealth(target);
      if (step % 500 === 0)
        log(`${step} of ${count}: ${target.peers.map((peer) => `${peer.name} ${peer.broken()}`).join(', ')}`);
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, work));
  await checkHealth(target);
}

async function checkHealth(target: Target): Promise<void> {
  const { folder, server, faults } = target;
  const fault = server.log.find(({ event }) => faults.has(event));
  if (fault !== undefined) throw createFailure(target, JSON.stringify(fault));
  try {
    const { status } = await withClient(folder, server.port, undefined, (client) =>
      client.request({ path: '/health' }),
    );
    if (status === 200) return;
    throw createFailure(target, `another client got ${status}`);
  } catch (error) {
    throw createFailure(target, `another client was not served: ${(error as Error).message}`);
  }
}

const createFailure = ({ peers, server }: Target, what: string): Error =>
  new Error(
    [
      what,
      server.errors().slice(-2_000),
      ...peers.flatMap((peer) =>
        peer.last().map((bytes) => `${peer.name}: ${JSON.stringify(bytes.toString('latin1').slice(0, 160))}`),
      ),
    ].join('\n'),
  );

/** Every place that sent damaged responses must be mentioned in the log. */
async function conclude(target: Target, only: Place | undefined): Promise<Record<string, number>> {
  const { server, peers } = target;
  await checkHealth(target);
  for (const peer of peers) {
    const events = EVENTS[peer.name as Place];
    if (peer.broken() < 20 || (only !== undefined && only !== peer.name)) continue;
    await until(`one of ${events.join(', ')} is logged for ${peer.name}`, () =>
      server.log.some(({ event }) => events.includes(event)),
    );
  }
  const code = await server.stop();
  if (code !== 0) throw createFailure(target, `the process ended with ${code}`);
  return Object.fromEntries(peers.map((peer) => [peer.name, peer.broken()]));
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      count: { type: 'string', default: '2000' },
      seed: { type: 'string', default: String(Math.trunc(Math.random() * 1_000_000)) },
    },
  });
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  const only = PLACES.find((place) => place === values.only);
  if (values.only !== undefined && only === undefined)
    throw new Error(`expected --only ${PLACES.join(', ')}; got ${values.only}`);
  print(`seed ${values.seed}`);
  const figures = await fuzzResponses({
    count: Number(values.count),
    seed: Number(values.seed),
    only,
    log: print,
  });
  recordFigures('broken-responses', { seed: Number(values.seed), ...figures, faults: 0 });
}
