import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { freePort } from '../../test/support/front-proxy.ts';
import { machineTimes, ownCpuSeconds, preciseCpuSeconds } from './linux.ts';
import { type BenchServer, startServer } from './servers.ts';

export interface HandshakeRun {
  readonly server: BenchServer;
  /** Contains `ca.pem`, `alice.pem` and `alice-key.pem`. */
  readonly folder: string;
  readonly version: 'TLSv1.2' | 'TLSv1.3';
  /** The key exchange the client offers first. */
  readonly group: 'X25519' | 'X25519MLKEM768';
  /** Whether the client presents a certificate. */
  readonly hasCertificate: boolean;
  /** `full`: never resumes. `resumed`: always resumes. `returning`: offers its latest session each time. */
  readonly kind: 'full' | 'resumed' | 'returning';
}

export interface Sample {
  /** CPU time of the server per connection: accept, handshake, close. */
  readonly cpuMicros: number;
  /** Share of connections that were resumed. */
  readonly resumed: number;
  /** CPU that other processes used, as a share of one core. */
  readonly others: number;
}

const CONCURRENCY = 8;

/** Opens connections that do nothing but a handshake. */
export async function measureHandshakes(run: HandshakeRun, connections: number): Promise<Sample> {
  const { server, kind } = run;
  const client = createClient(run);
  // Each returning client has its own session, created before the measurement.
  const sessions: (Buffer | undefined)[] = await Promise.all(
    Array.from({ length: CONCURRENCY }, async () => (kind === 'full' ? undefined : (await client()).session)),
  );
  const before = { server: preciseCpuSeconds(server.pids), own: ownCpuSeconds(), machine: machineTimes() };
  const startedAt = performance.now();
  let resumed = 0;
  let remaining = connections;
  await Promise.all(
    sessions.map(async (first) => {
      let session = first;
      while (remaining > 0) {
        remaining -= 1;
        const handshake = await client(session);
        if (handshake.isResumed) resumed += 1;
        else if (kind === 'returning') session = handshake.session;
      }
    }),
  );
  const seconds = (performance.now() - startedAt) / 1_000;
  const serverSeconds = preciseCpuSeconds(server.pids) - before.server;
  const machine = machineTimes();
  const others =
    machine.busy -
    before.machine.busy +
    machine.stolen -
    before.machine.stolen -
    serverSeconds -
    (ownCpuSeconds() - before.own);
  const share = resumed / connections;
  if ((kind === 'full' && share > 0) || (kind === 'resumed' && share < 1))
    throw new Error(`${kind}: ${resumed} of ${connections} were resumed`);
  return { cpuMicros: (serverSeconds * 1e6) / connections, resumed: share, others: others / seconds };
}

interface HandshakeResult {
  readonly isResumed: boolean;
  readonly session: Buffer | undefined;
}

function createClient({
  server,
  folder,
  version,
  group,
  hasCertificate,
}: HandshakeRun): (session?: Buffer) => Promise<HandshakeResult> {
  const read = (name: string): string => readFileSync(join(folder, name), 'utf8');
  const options = {
    host: '127.0.0.1',
    port: server.port,
    servername: 'localhost',
    ca: read('ca.pem'),
    minVersion: version,
    maxVersion: version,
    // In TLS 1.2, the list must include the curve of the ECDSA certificate (RFC 8422 §5.1.1).
    ecdhCurve: `${group}:P-256`,
    ALPNProtocols: ['http/1.1'],
    ...(hasCertificate && { cert: read('alice.pem'), key: read('alice-key.pem') }),
  };
  return (session) =>
    new Promise((resolve, reject) => {
      let latest: Buffer | undefined;
      let isResumed = false;
      const socket = connect({ ...options, ...(session !== undefined && { session }) }, () => {
        isResumed = socket.isSessionReused();
        // The server sends its tickets before it responds to the close_notify.
        socket.end();
      });
      socket.on('session', (received: Buffer) => {
        latest = received;
      });
      socket.on('error', reject);
      socket.on('close', () => resolve({ isResumed, session: latest }));
      socket.resume();
    });
}

/** HAProxy with the same certificates; it requests and verifies client certificates and resumes with its own tickets. */
export async function startHandshakeHaproxy(program: string, folder: string, core: number): Promise<BenchServer> {
  const port = await freePort();
  const haproxyFolder = join(folder, 'haproxy');
  mkdirSync(haproxyFolder, { recursive: true });
  const certificateFile = join(haproxyFolder, 'server.pem');
  const read = (name: string): string => readFileSync(join(folder, name), 'utf8');
  writeFileSync(certificateFile, `${read('server.pem')}\n${read('server-key.pem')}`, { mode: 0o600 });
  const file = join(haproxyFolder, 'haproxy.cfg');
  writeFileSync(
    file,
    `global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 5s
frontend front
  bind 127.0.0.1:${port} backlog 1024 ssl crt ${certificateFile} ca-file ${join(folder, 'ca.pem')} verify optional alpn h2,http/1.1
  http-request return status 200
`,
    { mode: 0o600 },
  );
  return startServer(core, [program, '-db', '-f', file], port, join(haproxyFolder, 'output.log'));
}
