import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { freePort } from '../../test/support/front-proxy.ts';
import { machineTimes, ownCpuSeconds, preciseCpuSeconds } from './linux.ts';
import { type BenchServer, startServer } from './servers.ts';

export interface HandshakeRun {
  readonly server: BenchServer;
  /** Where `ca.pem`, `alice.pem` and her key are. */
  readonly folder: string;
  readonly version: 'TLSv1.2' | 'TLSv1.3';
  /** The key exchange the client offers first. */
  readonly group: 'X25519' | 'X25519MLKEM768';
  /** Does the client show a certificate? */
  readonly hasCertificate: boolean;
  /** `full`: it never says that it was there before. `resumed`: it always does. `returning`: it does when it can. */
  readonly kind: 'full' | 'resumed' | 'returning';
}

export interface Sample {
  /** Of the server, for each connection: accepted, shaken hands with, closed. */
  readonly cpuMicros: number;
  /** Part of the connections. */
  readonly resumed: number;
  /** Of a core, used by other programs meanwhile. */
  readonly others: number;
}

const CONCURRENCY = 8;

/** So many connections, each with a handshake and nothing else. */
export async function measureHandshakes(run: HandshakeRun, connections: number): Promise<Sample> {
  const { server, kind } = run;
  const client = createClient(run);
  // Whoever comes back, each with a session of its own. All of `resumed` were seen before this is measured.
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
    // An ECDSA certificate needs its own curve among them in TLS 1.2.
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
        // The server's last word is its tickets, or the answer to this; either way it has finished.
        socket.end();
      });
      socket.on('session', (one: Buffer) => {
        latest = one;
      });
      socket.on('error', reject);
      socket.on('close', () => resolve({ isResumed, session: latest }));
      socket.resume();
    });
}

/** HAProxy with the same certificates: it asks for a client certificate, verifies it, and resumes by tickets of its own. */
export async function startHandshakeHaproxy(
  program: string,
  folder: string,
  core: number,
): Promise<BenchServer> {
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
