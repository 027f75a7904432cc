import { randomUUID } from 'node:crypto';
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createTlsServer, request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { setTimeout } from 'node:timers/promises';
import type { TLSSocket } from 'node:tls';
import { type ConfirmMemory, confirmMemory } from '../../src/confirm/guess-limit.ts';
import type { Look } from '../../src/confirm/look.ts';
import { createConfirmPages } from '../../src/confirm/pages.ts';
import type { DeviceRequest } from '../../src/domain/device-request.ts';
import type { Integration } from '../../src/domain/integration.ts';
import type { Person } from '../../src/domain/person.ts';
import { parseScope, type Scope } from '../../src/domain/scope.ts';
import type { GrantDesk } from '../../src/grants/desk.ts';
import { askForDevice, type DeviceCodes } from '../../src/grants/device-grant.ts';
import { pollPace } from '../../src/grants/poll-pace.ts';
import { waitingRoom } from '../../src/grants/waiting-room.ts';
import { type Rate, rateLimit } from '../../src/http/rate-limit.ts';
import type { OpenIdProvider } from '../../src/identity/openid.ts';
import { createLogger } from '../../src/observability/logger.ts';
import type { CertificateJudge } from '../../src/ports/certificate-judge.ts';
import type { People } from '../../src/ports/directory.ts';
import { Fault } from '../../src/ports/fault.ts';
import { memoryStore } from '../../src/stores/memory.ts';
import { approveIssuer } from '../../src/tls/approved-issuer.ts';
import { createCertificateJudge } from '../../src/tls/certificate-judge.ts';
import { revocationLists } from '../../src/tls/revocation-lists.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { newKeyring } from '../../src/tokens/keyring-file.ts';
import { createMint } from '../../src/tokens/mint.ts';
import { createSealer } from '../../src/tokens/sealer.ts';
import type { Certified } from './pki.ts';

/**
 * The confirmation pages on a real listener, over a real grant core. The clock, the callers' addresses and the
 * failures of the store are the test's to choose.
 */
export interface ConfirmHouse {
  readonly url: string;
  readonly desk: GrantDesk;
  readonly memory: ConfirmMemory;
  readonly audits: readonly Readonly<Record<string, unknown>>[];
  readonly logText: () => string;
  readonly world: World;
  ask(options?: { readonly scope?: string; readonly clientId?: string }): Promise<DeviceCodes & Asked>;
  stateOf(asked: Asked): Promise<DeviceRequest['state']>;
  browser(options?: BrowserOptions): Browser;
  close(): Promise<void>;
}

export interface Asked {
  readonly requestId: string;
}

/** What a test may change while the house stands. */
export interface World {
  now: number;
  storeAway: boolean;
  /** Milliseconds the store and the directory take, so that requests overlap as they do in life. */
  latency: number;
  passwordsBusy: boolean;
  integrations: Map<string, Integration>;
  people: Map<string, Person & { readonly password: string }>;
}

export interface HouseOptions {
  readonly rates?: Partial<Record<'page' | 'codeGuesses' | 'allCodeGuesses', Rate>>;
  readonly signInRate?: Rate;
  readonly tls?: { readonly server: Certified; readonly clientCa: Certified };
  readonly sessionLifetime?: number;
  readonly look?: Look;
  readonly providers?: readonly OpenIdProvider[];
}

export const scopeOf = (text: string): Scope => {
  const parsed = parseScope(text);
  if (!parsed.ok) throw new Error(`not a scope: ${text}`);
  return parsed.value;
};

export const person = (
  name: string,
  groups: readonly string[],
  id: string,
): Person & { password: string } => ({
  identity: `local:{5f0c2a52-6d0e-4d0c-9c3e-${id.padStart(12, '0')}}`,
  displayName: name,
  directory: 'staff',
  groups: new Set(groups),
  disabled: false,
  password: `${name.split(' ')[0]?.toLowerCase()}-password`,
});

export const integration = (over: Partial<Integration> = {}): Integration => ({
  clientId: 'report-runner',
  name: 'Report runner',
  scope: scopeOf('reports:read,write;files:read'),
  grants: new Set(['certificate', 'device']),
  access: [
    { groups: new Set(['operators']), identities: new Set() },
    { groups: new Set(['readers']), identities: new Set(), scope: scopeOf('files:read') },
  ],
  accessLifetime: 3_600,
  grantLifetime: 86_400,
  bindToCertificate: false,
  ...over,
});

const takeTime = async ({ latency }: World): Promise<void> => {
  if (latency > 0) await setTimeout(latency);
};

/** Lets everything through to the store, until it is away. */
function fallible<T extends object>(part: T, world: World): T {
  return new Proxy(part, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name);
      if (typeof value !== 'function') return value;
      return async (...args: unknown[]) => {
        if (world.storeAway) throw new Fault('store_unavailable', 'the store is away', { retryAfter: 7 });
        const result: unknown = await Reflect.apply(value, target, args);
        await takeTime(world);
        return result;
      };
    },
  });
}

function peopleOf(world: World): People {
  const find = (test: (name: string, person: Person) => boolean) =>
    world.people.entries().find(([name, one]) => test(name, one))?.[1];
  return {
    takePasswords: true,
    byClaim: async (_directory, { value }) => find((name) => name === value),
    close: async () => {},
    byCertificateName: async (_directory, _source, wanted) => find((name) => name === wanted),
    byIdentity: async (identity) => find((_name, one) => one.identity === identity),
    async signIn(userName, password) {
      if (world.passwordsBusy) throw new Fault('overloaded', 'too many passwords at once', { retryAfter: 3 });
      await takeTime(world);
      const found = world.people.get(userName);
      return found?.password === password ? found : undefined;
    },
  };
}

function judgeOf(ca: Certified | undefined): CertificateJudge {
  const issuers = ca
    ? [approveIssuer({ name: 'ca', certificate: ca.pem, directory: 'staff', identityFrom: 'commonName' })]
    : [];
  const crls = revocationLists([]);
  return createCertificateJudge({
    issuers,
    crls,
    requireCrl: false,
    requireClientAuth: true,
    asciiNames: true,
  });
}

export async function confirmHouse(options: HouseOptions = {}): Promise<ConfirmHouse> {
  const world: World = {
    now: Math.floor(Date.now() / 1_000),
    storeAway: false,
    latency: 0,
    passwordsBusy: false,
    integrations: new Map([['report-runner', integration()]]),
    people: new Map([
      ['alice', person('Alice Example', ['operators'], '1')],
      ['rita', person('Rita Reader', ['readers'], '2')],
      ['bob', person('Bob Nobody', [], '3')],
      ['dora', { ...person('Dora Disabled', ['operators'], '4'), disabled: true }],
    ]),
  };
  const now = (): number => world.now;
  const openedAt = world.now;
  const lines: string[] = [];
  const log = createLogger({ level: 'debug', format: 'json', write: (line) => void lines.push(line) });
  const keyring = openKeyring(newKeyring('EdDSA'));
  const store = memoryStore({ now });
  const desk: GrantDesk = {
    store: {
      ...store,
      devices: fallible(store.devices, world),
      userCodes: fallible(store.userCodes, world),
      grantIndex: fallible(store.grantIndex, world),
      revocations: {
        ...store.revocations,
        announce: (revocation) => fallible(store.revocations, world).announce(revocation),
      },
    },
    people: peopleOf(world),
    certificates: judgeOf(options.tls?.clientCa),
    mint: createMint({ keyring, publicUrl: 'https://localhost', remembered: 100 }),
    sealer: createSealer(keyring, now),
    integrations: world.integrations,
    policy: {
      retryWindow: 10,
      reuse: 'revoke',
      supersede: false,
      device: { enabled: true, codeLifetime: 300, interval: 5 },
    },
    pace: pollPace(),
    waiting: waitingRoom({ all: 10_000, perClient: 10_000 }),
    servingSince: () => openedAt,
    now,
    log,
  };
  const plenty: Rate = { burst: 100_000, perSecond: 100_000 };
  const signIns = options.signInRate ?? plenty;
  const memory = confirmMemory({ now, rates: { from: signIns, failuresAs: plenty } });
  const rates = {
    page: rateLimit(options.rates?.page ?? plenty, now),
    codeGuesses: rateLimit(options.rates?.codeGuesses ?? plenty, now),
    allCodeGuesses: rateLimit(options.rates?.allCodeGuesses ?? plenty, now),
  };

  let publicUrl = '';
  const listener = (request: IncomingMessage, response: ServerResponse): void => {
    const { socket } = request;
    const said = request.headers['x-test-address'];
    const address = typeof said === 'string' ? said : (socket.remoteAddress ?? '');
    const [path = ''] = (request.url ?? '').split('?', 1);
    // Made anew for each request, as after a reload: nothing may be kept in the pages themselves.
    const pages = createConfirmPages({
      desk,
      basePath: '/authsvc/device',
      publicUrl,
      rates,
      memory,
      sessionLifetime: options.sessionLifetime ?? 900,
      bodyTimeout: 2,
      ...(options.look && { look: options.look }),
      ...(options.providers && { providers: options.providers }),
    });
    const call = {
      request,
      response,
      id: randomUUID(),
      arrivedAt: world.now,
      peer: address,
      clientAddress: address,
      certificate: () =>
        'encrypted' in socket ? (socket as TLSSocket).getPeerX509Certificate()?.raw : undefined,
      notes: {},
      note: () => {},
    };
    void pages.handle(call, path.slice('/authsvc/device'.length));
  };
  const server =
    options.tls === undefined
      ? createServer(listener)
      : createTlsServer(
          {
            cert: options.tls.server.pem,
            key: options.tls.server.keyPem,
            ca: options.tls.clientCa.pem,
            requestCert: true,
            rejectUnauthorized: false,
          },
          listener,
        );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  publicUrl = options.tls === undefined ? `http://127.0.0.1:${port}` : `https://localhost:${port}`;

  const audited = (): Readonly<Record<string, unknown>>[] =>
    lines.map((line) => JSON.parse(line) as Record<string, unknown>).filter((line) => line['audit'] === true);

  return {
    url: publicUrl,
    desk,
    memory,
    get audits() {
      return audited();
    },
    logText: () => lines.join(''),
    world,
    async ask({ scope = 'reports:read,write', clientId = 'report-runner' } = {}) {
      const asked = await askForDevice(desk, { clientId, scope, from: '198.51.100.7' });
      if (!asked.ok) throw new Error(`could not ask: ${asked.refusal.reason}`);
      const requestId = audited().findLast((line) => line['event'] === 'device_asked')?.['request'];
      return { ...asked.value, requestId: String(requestId) };
    },
    async stateOf({ requestId }) {
      const found = await store.devices.read(requestId);
      return found?.record.state ?? 'closed';
    },
    browser: (more) => createBrowser(publicUrl, options.tls?.clientCa, more),
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

export interface BrowserOptions {
  readonly address?: string;
  readonly certificate?: Certified;
}

export interface Answer {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly text: string;
}

export interface Browser {
  cookie: string | undefined;
  get(path: string, headers?: Record<string, string>): Promise<Answer>;
  send(method: string, path: string, body?: string, headers?: Record<string, string>): Promise<Answer>;
  /** Fills in the form of the page that was shown last and follows the way it is sent. */
  submit(action: string, fields?: Record<string, string>): Promise<Answer>;
  follow(answer: Answer): Promise<Answer>;
  /** Enter the code, sign in, and stop before the review's buttons. */
  reachReview(userCode: string, userName?: string): Promise<Answer>;
}

export const BASE = '/authsvc/device';

/** The token of the page's form with this action. */
export function formToken(page: string, action: string): string {
  const form = page.split('<form ').find((part) => part.includes(`action="${action}"`)) ?? '';
  return /name="form_token" value="([^"]*)"/.exec(form)?.[1] ?? '';
}

/** As much of a browser as the pages need: one cookie, forms, redirects, and what browsers say about a form's origin. */
function createBrowser(url: string, ca: Certified | undefined, options: BrowserOptions = {}): Browser {
  const { protocol, hostname, port } = new URL(url);
  let last: Answer | undefined;
  const browser: Browser = {
    cookie: undefined,
    get: (path, headers) => browser.send('GET', path, undefined, headers),
    send: (method, path, body, headers = {}) =>
      new Promise((resolve, reject) => {
        const start = protocol === 'https:' ? httpsRequest : httpRequest;
        const request = start(
          {
            hostname,
            port,
            path,
            method,
            agent: false,
            ...(ca && { ca: ca.pem }),
            ...(options.certificate && { cert: options.certificate.pem, key: options.certificate.keyPem }),
            headers: {
              ...(browser.cookie !== undefined && { cookie: browser.cookie }),
              ...(options.address !== undefined && { 'x-test-address': options.address }),
              ...(body !== undefined && {
                'content-type': 'application/x-www-form-urlencoded',
                'content-length': String(Buffer.byteLength(body)),
              }),
              ...headers,
            },
          },
          (response) => {
            let text = '';
            response.setEncoding('utf8').on('data', (part: string) => {
              text += part;
            });
            response.on('end', () => {
              const [cookie] = response.headers['set-cookie'] ?? [];
              if (cookie !== undefined) browser.cookie = cookie.split(';', 1)[0];
              last = { status: response.statusCode ?? 0, headers: response.headers, text };
              resolve(last);
            });
          },
        );
        request.on('error', reject);
        request.end(body);
      }),
    async submit(action, fields = {}) {
      const token = formToken(last?.text ?? '', action);
      const body = new URLSearchParams({ form_token: token, ...fields }).toString();
      const answer = await browser.send('POST', action, body, {
        origin: url,
        'sec-fetch-site': 'same-origin',
      });
      return browser.follow(answer);
    },
    async follow(answer) {
      const { location } = answer.headers;
      if (answer.status !== 303 || location === undefined) return answer;
      return browser.follow(await browser.get(location));
    },
    async reachReview(userCode, userName = 'alice') {
      await browser.get(BASE);
      const next = await browser.submit(BASE, { user_code: userCode });
      if (!next.text.includes('name="password"')) return next;
      return browser.submit(`${BASE}/sign-in`, { user_name: userName, password: `${userName}-password` });
    },
  };
  return browser;
}
