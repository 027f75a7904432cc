/**
 * Measures the latency of ordinary requests while slow clients are connected: `npm run bench:slow`. 500 clients of each kind
 * (bodies sent byte by byte, uploads larger than the body buffer, responses that are not read) stay connected over HTTP/1.1 and
 * HTTP/2, to a plain and a TLS upstream. The ordinary requests come from the same address, without a token.
 */
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { Agent, createServer, type RequestListener, request } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { createServer as createSecureServer } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { parseArgs } from 'node:util';
import { recordFigures } from '../test/support/figures.ts';
import { createCa, issueServer } from '../test/support/pki.ts';
import { createBenchFolder } from './support/folder.ts';
import { loadAverage } from './support/linux.ts';
import { startGatehouse } from './support/programs.ts';

const { values: given } = parseArgs({
  options: { clients: { type: 'string', default: '500' }, requests: { type: 'string', default: '400' } },
});
const CLIENTS = Number(given.clients);
const REQUESTS = Number(given.requests);
const SETTLE_MS = 8_000;
const root = join(import.meta.dirname, '..');
const log = (text: string): void => void process.stderr.write(`${text}\n`);
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** The first `bytes` of a body are sent at once, then a few per second. Without a body, the response is not read. */
const KINDS = {
  'GET bodies': { head: 'GET /public/small', length: 1_000_000, bytes: 1 },
  'POST bodies': { head: 'POST /public/small', length: 1_000_000, bytes: 1 },
  uploads: { head: 'POST /public/small', length: 10_000_000, bytes: 100_000 },
  readers: { head: 'GET /public/endless', length: 0, bytes: 0 },
} as const;
type Kind = keyof typeof KINDS;

const ENDLESS = Buffer.alloc(65_536);
const listener: RequestListener = (incoming, response) => {
  incoming.on('error', () => {}).resume();
  response.on('error', () => {});
  if (incoming.url?.startsWith('/public/endless') === true) {
    const write = (): void => {
      while (!response.destroyed && response.write(ENDLESS));
    };
    response.on('drain', write);
    write();
  } else incoming.on('end', () => response.end('ok'));
};

const ca = await createCa();
const certificate = await issueServer(ca);
const plain = createServer(listener).listen(0, '127.0.0.1');
const secure = createSecureServer({ cert: certificate.pem, key: certificate.keyPem }, listener).listen(0, '127.0.0.1');
await Promise.all([once(plain, 'listening'), once(secure, 'listening')]);
const portOf = (server: { address(): unknown }): number => (server.address() as AddressInfo).port;

const CONNECTION_KINDS = ['HTTP/1.1', 'TLS upstream', 'HTTP/2'] as const;
type ConnectionKind = (typeof CONNECTION_KINDS)[number];

interface RunningGateway {
  readonly port: number;
  readonly ca: string;
  stop(): Promise<void>;
}

async function startGateway(connectionKind: ConnectionKind): Promise<RunningGateway> {
  const isSecure = connectionKind === 'HTTP/2';
  const folder = await createBenchFolder((settings) => ({
    ...settings,
    listen: {
      port: 0,
      ...(isSecure ? { tls: { certificate: 'server.pem', key: 'server-key.pem' } } : { behindTls: true }),
    },
    ...(isSecure ? {} : { publicUrl: 'https://localhost' }),
    upstreams: {
      default:
        connectionKind === 'TLS upstream'
          ? { url: `https://127.0.0.1:${portOf(secure)}`, ca: 'upstream-ca.pem', serverName: 'localhost' }
          : { url: `http://127.0.0.1:${portOf(plain)}` },
    },
    routes: [{ path: '/public/**', public: true }],
  }));
  writeFileSync(folder.file('upstream-ca.pem'), ca.pem);
  const program = await startGatehouse({ folder: folder.path, entry: join(root, 'src/main.ts'), core: 0 });
  const { readFileSync } = await import('node:fs');
  return {
    port: program.port,
    ca: readFileSync(folder.file('ca.pem'), 'utf8'),
    async stop() {
      await program.stop();
      folder.remove();
    },
  };
}

interface SlowClient {
  send(): void;
  close(): void;
}

function createSlowClient(
  connectionKind: ConnectionKind,
  { port, ca: trusted }: RunningGateway,
  kind: Kind,
): SlowClient {
  const { head, length, bytes } = KINDS[kind];
  const [method = '', path = ''] = head.split(' ');
  if (connectionKind === 'HTTP/2') {
    const session = connectHttp2(`https://localhost:${port}`, {
      createConnection: () =>
        connectTls({ host: '127.0.0.1', port, servername: 'localhost', ca: trusted, ALPNProtocols: ['h2'] }),
    }).on('error', () => {});
    const fields = { ':method': method, ':path': path, ':authority': `localhost:${port}` };
    const stream = session.request(length > 0 ? { ...fields, 'content-length': length } : fields, {
      endStream: length === 0,
    });
    stream.on('error', () => {});
    if (length > 0) stream.write(Buffer.alloc(bytes));
    return {
      send: () => void (length > 0 && !stream.destroyed && stream.write(Buffer.alloc(300))),
      close: () => session.destroy(),
    };
  }
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  const framing = length > 0 ? `Content-Length: ${length}\r\n` : '';
  socket.write(`${method} ${path} HTTP/1.1\r\nHost: localhost\r\n${framing}\r\n`);
  if (length > 0) socket.write(Buffer.alloc(bytes));
  return {
    send: () => void (length > 0 && !socket.destroyed && socket.write(Buffer.alloc(300))),
    close: () => socket.destroy(),
  };
}

interface Latency {
  readonly median: number;
  readonly p95: number;
  readonly worst: number;
  readonly failed: number;
}

/** Sequential requests on a keep-alive connection. */
async function measureOrdinary(
  connectionKind: ConnectionKind,
  { port, ca: trusted }: RunningGateway,
): Promise<Latency> {
  const times: number[] = [];
  let failed = 0;
  const session =
    connectionKind === 'HTTP/2'
      ? connectHttp2(`https://localhost:${port}`, {
          createConnection: () =>
            connectTls({
              host: '127.0.0.1',
              port,
              servername: 'localhost',
              ca: trusted,
              ALPNProtocols: ['h2'],
            }),
        })
      : undefined;
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  for (let at = 0; at < REQUESTS; at += 1) {
    const begun = performance.now();
    const status = await new Promise<number>((resolve) => {
      if (session !== undefined) {
        const stream = session.request({ ':path': '/public/small' });
        let code = 0;
        stream.on('response', (head) => (code = head[':status'] ?? 0)).on('error', () => resolve(0));
        stream.on('end', () => resolve(code)).resume();
      } else
        request({ host: '127.0.0.1', port, path: '/public/small', agent, headers: { host: 'localhost' } })
          .on('response', (response) => response.resume().on('end', () => resolve(response.statusCode ?? 0)))
          .on('error', () => resolve(0))
          .end();
    });
    times.push(performance.now() - begun);
    if (status !== 200) failed += 1;
  }
  agent.destroy();
  session?.destroy();
  times.sort((a, b) => a - b);
  const at = (part: number): number => times[Math.min(times.length - 1, Math.floor(part * times.length))] ?? 0;
  return { median: at(0.5), p95: at(0.95), worst: at(1), failed };
}

const rows: {
  readonly front: ConnectionKind;
  readonly kind: Kind;
  readonly clients: number;
  readonly before: Latency;
  readonly beside: Latency;
  readonly ratio: number;
}[] = [];
console.log(`| connection | slow clients | median before | median with slow clients | ratio | p95 before | p95 with slow clients | worst | failed |
|---|---|---|---|---|---|---|---|---|`);
for (const connectionKind of CONNECTION_KINDS) {
  const gateway = await startGateway(connectionKind);
  await measureOrdinary(connectionKind, gateway);
  for (const kind of Object.keys(KINDS) as Kind[]) {
    const before = await measureOrdinary(connectionKind, gateway);
    const clients: SlowClient[] = [];
    for (let at = 0; at < CLIENTS; at += 1) {
      clients.push(createSlowClient(connectionKind, gateway, kind));
      if (at % 50 === 49) await sleep(50);
    }
    const timer = setInterval(() => clients.forEach((client) => client.send()), 1_000);
    await sleep(SETTLE_MS);
    const beside = await measureOrdinary(connectionKind, gateway);
    clearInterval(timer);
    for (const client of clients) client.close();
    await sleep(1_000);
    const row = {
      front: connectionKind,
      kind,
      clients: CLIENTS,
      before,
      beside,
      ratio: beside.median / before.median,
    };
    rows.push(row);
    const ms = (value: number): string => `${value.toFixed(2)} ms`;
    console.log(
      `| ${connectionKind} | ${CLIENTS} ${kind} | ${ms(before.median)} | ${ms(beside.median)} | ${row.ratio.toFixed(2)} | ${ms(before.p95)} | ${ms(beside.p95)} | ${ms(beside.worst)} | ${beside.failed} |`,
    );
  }
  await gateway.stop();
}
recordFigures('slow-clients', {
  'slow clients of each kind': CLIENTS,
  'kinds and connections': rows.length,
  'ordinary requests': rows.length * REQUESTS,
  'failed ordinary requests': rows.reduce((sum, { beside }) => sum + beside.failed, 0),
  'median latency beside slow clients / without them, worst': Math.max(...rows.map(({ ratio }) => ratio)).toFixed(2),
});
mkdirSync(join(root, 'bench/results'), { recursive: true });
writeFileSync(
  join(root, 'bench/results/slow-clients.json'),
  JSON.stringify({ at: new Date().toISOString(), load: loadAverage(), rows }, undefined, 2),
);
log('written to bench/results/slow-clients.json');
plain.closeAllConnections();
secure.closeAllConnections();
plain.close();
secure.close();
