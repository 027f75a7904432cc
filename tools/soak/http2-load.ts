import { createHash, randomBytes } from 'node:crypto';
import type { RequestListener } from 'node:http';
import { type ClientHttp2Session, connect, constants, type OutgoingHttpHeaders } from 'node:http2';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TokenGrant } from '../../test/support/https-client.ts';
import type { ServeFolder, ServeProcess } from '../../test/support/serve-process.ts';
import { BAD_CLIENT_NAMES, type BadClientName, runBadClient } from './bad-http2-clients.ts';
import type { RunningLoad, SoakLoad } from './load.ts';

const LARGE = randomBytes(1_048_576);
const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
const LARGE_DIGEST = sha256(LARGE);
const SLOW_MS = 100;

const upstream: RequestListener = (request, response) => {
  const { url = '' } = request;
  request.on('error', () => {});
  if (url === '/files/large') response.end(LARGE);
  else if (url === '/files/slow') {
    response.write('slow ');
    const timer = setTimeout(() => response.end('response'), SLOW_MS);
    response.on('close', () => clearTimeout(timer));
  } else if (url === '/reports/unread') {
    // Reads nothing of the body until the client gives up.
  } else if (url === '/reports/digest') {
    const digest = createHash('sha256');
    request.on('data', (part: Buffer) => digest.update(part));
    request.on('end', () => response.end(digest.digest('hex')));
  } else request.resume().on('end', () => response.end(url));
};

/** Connections that come and go, cancelled requests, uploads, downloads, the token API and bad clients, over HTTP/2 only. */
export const http2Load: SoakLoad = {
  change: (settings) => ({
    ...settings,
    log: { level: 'info', access: { enabled: false } },
    // Grants and revocations are kept until they expire.
    tokens: { accessLifetime: '30s', grantLifetime: '1m' },
    // Silent clients are closed within the run.
    limits: { ...settings.limits, headerTimeout: '2s' },
    // Otherwise, clients that do not read would lose their connections to others, and slow ones too.
    upstreams: { default: { ...settings.upstreams?.['default'], connections: 1_000 } },
  }),
  upstream,
  isPausedForHeapSamples: true,
  start: async (folder, server) => new Http2Load(folder, server).start(),
};

/** How many clients of each kind run at the same time. */
const CLIENTS = {
  steady: 3,
  churn: 3,
  cancellation: 2,
  upload: 2,
  download: 2,
  'token API': 1,
  'bad client': 4,
} as const;
type ClientKind = keyof typeof CLIENTS;

interface Response {
  readonly status: number;
  readonly body: Buffer;
}

interface RequestOptions {
  readonly headers?: OutgoingHttpHeaders;
  /** Sent in these parts. */
  readonly body?: readonly Buffer[];
  /** Pauses before each part of the response is read. */
  readonly readPauseMs?: number;
}

/** An overloaded process rejects requests with 503; that is counted separately. */
class Rejected extends Error {}

class Http2Load {
  readonly #server: ServeProcess;
  readonly #folder: ServeFolder;
  readonly #stopped = new AbortController();
  readonly #open = new Set<{ destroy(): void }>();
  readonly #failures: string[] = [];
  readonly #activities: Record<string, number> = {};
  #completed = 0;
  #rejected = 0;
  #token = '';
  #nextItem = 0;
  #nextBad = 0;

  constructor(folder: ServeFolder, server: ServeProcess) {
    this.#folder = folder;
    this.#server = server;
  }

  async start(): Promise<RunningLoad> {
    const session = this.#connect({ certificate: true });
    this.#token = (await this.#grant(session)).access_token;
    session.close();
    const kinds = Object.entries(CLIENTS) as [ClientKind, number][];
    const running = kinds.flatMap(([kind, count]) =>
      Array.from({ length: count }, () => this.#repeat(kind, this.#client(kind))),
    );
    return {
      completed: () => this.#completed,
      rejected: () => this.#rejected,
      failures: () => this.#failures,
      activities: () => this.#activities,
      stop: async () => {
        this.#stopped.abort();
        for (const entry of this.#open) entry.destroy();
        await Promise.all(running);
      },
    };
  }

  get #isStopped(): boolean {
    return this.#stopped.signal.aborted;
  }

  #count(activity: string): void {
    this.#activities[activity] = (this.#activities[activity] ?? 0) + 1;
  }

  async #repeat(kind: ClientKind, run: () => Promise<void>): Promise<void> {
    while (!this.#isStopped) {
      try {
        await run();
        this.#count(kind);
      } catch (error) {
        // Stopping destroys all connections.
        if (this.#isStopped) return;
        if (error instanceof Rejected) this.#rejected += 1;
        else this.#failures.push(`${kind}: ${(error as Error).message}`);
      }
      await this.#pause(5);
    }
  }

  #pause(ms: number): Promise<void> {
    return sleep(ms, undefined, { signal: this.#stopped.signal }).catch(() => {});
  }

  #client(kind: ClientKind): () => Promise<void> {
    switch (kind) {
      case 'steady':
        return () => this.#steady();
      case 'churn':
        return () => this.#churn();
      case 'cancellation':
        return () => this.#cancel();
      case 'upload':
        return () => this.#upload();
      case 'download':
        return () => this.#download();
      case 'token API':
        return () => this.#useTokenApi();
      case 'bad client':
        return () => this.#misbehave();
    }
  }

  #connect({ certificate = false, initialWindow = 65_535 } = {}): ClientHttp2Session {
    const { ca, alice } = this.#folder;
    const session = connect(`https://localhost:${this.#server.port}`, {
      ca: ca.pem,
      ...(certificate && { cert: alice.pem, key: alice.keyPem }),
      settings: { initialWindowSize: initialWindow },
    });
    this.#open.add(session);
    // Requests report the errors of their connection.
    session.on('error', () => {}).on('close', () => this.#open.delete(session));
    return session;
  }

  #request(session: ClientHttp2Session, path: string, options: RequestOptions = {}): Promise<Response> {
    const { headers = {}, body = [], readPauseMs } = options;
    const { promise, resolve, reject } = Promise.withResolvers<Response>();
    const stream = session.request(
      { ':path': path, authorization: `Bearer ${this.#token}`, ...headers },
      { endStream: body.length === 0 },
    );
    const parts: Buffer[] = [];
    let status = 0;
    stream.on('response', (fields) => void (status = Number(fields[':status'])));
    stream.on('data', (part: Buffer) => {
      parts.push(part);
      if (readPauseMs === undefined) return;
      stream.pause();
      setTimeout(() => stream.resume(), readPauseMs);
    });
    let hasEnded = false;
    stream.on('end', () => (hasEnded = true)).on('error', reject);
    stream.on('close', () => {
      if (hasEnded && status !== 0 && stream.rstCode === constants.NGHTTP2_NO_ERROR)
        resolve({ status, body: Buffer.concat(parts) });
      else reject(new Error(`${path}: stream closed, status ${status}, code ${stream.rstCode}`));
    });
    for (const part of body) stream.write(part);
    if (body.length > 0) stream.end();
    return promise;
  }

  /** Throws unless the response is as expected. */
  async #expect(
    session: ClientHttp2Session,
    path: string,
    wanted: { readonly status?: number; readonly body?: string },
    options?: RequestOptions,
  ): Promise<Response> {
    const response = await this.#request(session, path, options);
    const { status = 200, body } = wanted;
    if (response.status === 503) throw new Rejected();
    if (response.status !== status) throw new Error(`${path}: status ${response.status}`);
    if (body !== undefined && String(response.body) !== body)
      throw new Error(`${path}: ${response.body.length} bytes, not the expected ones`);
    this.#completed += 1;
    return response;
  }

  #expectItem(session: ClientHttp2Session): Promise<Response> {
    this.#nextItem += 1;
    const path = `/files/item/${this.#nextItem}`;
    return this.#expect(session, path, { body: path });
  }

  async #steady(): Promise<void> {
    const session = this.#connect();
    for (let round = 0; round < 200 && !this.#isStopped; round += 1) {
      await Promise.all(Array.from({ length: 5 }, () => this.#expectItem(session)));
      await this.#pause(5);
    }
    await close(session);
  }

  /** Every second connection is destroyed with requests in flight. */
  async #churn(): Promise<void> {
    const session = this.#connect();
    const count = 1 + Math.floor(Math.random() * 8);
    await Promise.all(Array.from({ length: count }, () => this.#expectItem(session)));
    if (Math.random() < 0.5) return close(session);
    const inFlight = Array.from({ length: count }, () => this.#request(session, '/files/slow').catch(() => {}));
    await this.#pause(Math.random() * SLOW_MS);
    session.destroy();
    await Promise.all(inFlight);
  }

  /** Below the rate at which gatehouse takes resets for an attack. */
  async #cancel(): Promise<void> {
    const session = this.#connect({ initialWindow: 1_048_576 });
    for (let round = 0; round < 30 && !this.#isStopped; round += 1) {
      const path = round % 2 === 0 ? '/files/slow' : '/files/large';
      const stream = session.request({ ':path': path, authorization: `Bearer ${this.#token}` });
      stream.on('error', () => {}).resume();
      const closed = new Promise((resolve) => stream.once('close', resolve));
      await this.#pause(Math.random() * 60);
      stream.close(constants.NGHTTP2_CANCEL);
      await closed;
      await this.#expectItem(session);
      await this.#pause(40);
    }
    await close(session);
  }

  /** Every third upload is aborted. */
  async #upload(): Promise<void> {
    const session = this.#connect();
    for (let round = 0; round < 6 && !this.#isStopped; round += 1) {
      const body = randomBytes(1 + Math.floor(Math.random() * 1_000_000));
      const headers = { ':method': 'POST' };
      if (round % 3 === 2) {
        const stream = session.request({
          ':path': '/reports/digest',
          ...headers,
          authorization: `Bearer ${this.#token}`,
        });
        stream.on('error', () => {}).resume();
        const closed = new Promise((resolve) => stream.once('close', resolve));
        stream.write(body);
        await this.#pause(Math.random() * 50);
        stream.close(constants.NGHTTP2_CANCEL);
        await closed;
      } else
        await this.#expect(session, '/reports/digest', { body: sha256(body) }, { headers, body: splitAtRandom(body) });
      await this.#expectItem(session);
      await this.#pause(30);
    }
    await close(session);
  }

  /** With windows from 1 KiB to 1 MiB, and slow reading. */
  async #download(): Promise<void> {
    const session = this.#connect({ initialWindow: 2 ** (10 + Math.floor(Math.random() * 11)) });
    for (let round = 0; round < 4 && !this.#isStopped; round += 1) {
      const options = round === 3 ? { readPauseMs: 5 } : {};
      const responses = await Promise.all(
        Array.from({ length: 3 }, () => this.#expect(session, '/files/large', {}, options)),
      );
      if (responses.some(({ body }) => sha256(body) !== LARGE_DIGEST))
        throw new Error('/files/large: not the expected bytes');
      await this.#pause(50);
    }
    await close(session);
  }

  #post(session: ClientHttp2Session, path: string, params: object): Promise<Response> {
    const headers = { ':method': 'POST', 'content-type': 'application/json', authorization: undefined };
    const body = [Buffer.from(JSON.stringify(params))];
    return this.#expect(session, path, {}, { headers, body });
  }

  async #grant(session: ClientHttp2Session): Promise<TokenGrant> {
    const { body } = await this.#post(session, '/authsvc/Authorize/Certificate', {
      client_id: 'report-runner',
      scope: 'files:read;reports:write',
    });
    return JSON.parse(String(body)) as TokenGrant;
  }

  /** Also renews the token of all clients. */
  async #useTokenApi(): Promise<void> {
    const session = this.#connect({ certificate: true });
    this.#token = (await this.#grant(session)).access_token;
    const grant = await this.#grant(session);
    const { body } = await this.#post(session, '/authsvc/Authorize/Token', {
      client_id: 'report-runner',
      refresh_token: grant.refresh_token,
    });
    const { access_token } = JSON.parse(String(body)) as TokenGrant;
    const headers = { authorization: `Bearer ${access_token}` };
    await this.#expect(session, '/whoami', { body: '/whoami' }, { headers });
    await this.#expect(session, '/authsvc/Revoke/Token', {}, { headers });
    await this.#expect(session, '/whoami', { status: 401 }, { headers });
    await close(session);
    await this.#pause(200);
  }

  /** All kinds in turn. */
  async #misbehave(): Promise<void> {
    const name = BAD_CLIENT_NAMES[this.#nextBad++ % BAD_CLIENT_NAMES.length] as BadClientName;
    const sockets: { destroy(): void }[] = [];
    try {
      await runBadClient(name, {
        port: this.#server.port,
        ca: this.#folder.ca.pem,
        token: this.#token,
        track: (socket) => {
          sockets.push(socket);
          this.#open.add(socket);
        },
      });
      this.#count(`bad client: ${name}`);
    } finally {
      for (const socket of sockets) this.#open.delete(socket);
    }
    await this.#pause(50);
  }
}

const close = (session: ClientHttp2Session): Promise<void> =>
  new Promise((resolve) => {
    if (session.destroyed) return resolve();
    session.close(() => resolve());
  });

function splitAtRandom(bytes: Buffer): Buffer[] {
  const parts: Buffer[] = [];
  for (let at = 0; at < bytes.length; ) {
    const end = at + 1 + Math.floor(Math.random() * 100_000);
    parts.push(bytes.subarray(at, end));
    at = end;
  }
  return parts;
}
