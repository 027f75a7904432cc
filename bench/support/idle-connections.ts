import { once } from 'node:events';
import { readFileSync, rmSync } from 'node:fs';
import { connect as connectHttp2 } from 'node:http2';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from 'node:tls';
import { PROBE_FILE } from '../../tools/soak/memory-probe.ts';
import type { BenchGateway, BenchGatewayOptions } from './gateway.ts';
import { residentMegabytes } from './linux.ts';
import { type Figure, figure } from './report.ts';

const PROTOCOLS = ['HTTP/1.1', 'HTTP/2'] as const;
type Protocol = (typeof PROTOCOLS)[number];

/** An open connection; `isOpen` turns false when the server closes it. */
export interface Connection {
  isOpen(): boolean;
  close(): void;
}

interface Target {
  readonly port: number;
  readonly token: string;
}

const PATH = '/files/1k';
const RESPONSE_BYTES = 1_024;

export interface IdleOptions {
  readonly startGateway: (options: Partial<BenchGatewayOptions>) => Promise<BenchGateway>;
  readonly connections: number;
  readonly rounds: number;
  readonly log: (text: string) => void;
  readonly aim: Figure['aim'];
}

/**
 * Resident memory for an idle connection: a new process for each protocol and round opens the connections, each of which has
 * been used for one request. Memory is read after a full garbage collection, before and after.
 */
export async function measureIdleConnections(options: IdleOptions): Promise<Figure[]> {
  const { connections, rounds, log, aim } = options;
  const kibibytes: Record<Protocol, number[]> = { 'HTTP/1.1': [], 'HTTP/2': [] };
  for (let round = 0; round < rounds; round += 1)
    for (const protocol of PROTOCOLS) {
      const each = await measureProtocol(protocol, options);
      kibibytes[protocol].push(each);
      log(`  round ${round + 1}/${rounds} idle ${protocol} connections: ${each.toFixed(1)} KiB each`);
    }
  const nameOf = (protocol: string): string =>
    `memory for each of ${connections.toLocaleString('en')} idle connections: ${protocol}`;
  return [
    ...PROTOCOLS.map((protocol) => figure(nameOf(protocol), kibibytes[protocol], 'KiB')),
    figure(
      nameOf('HTTP/2 − HTTP/1.1'),
      kibibytes['HTTP/2'].map((each, round) => each - (kibibytes['HTTP/1.1'][round] ?? Number.NaN)),
      'KiB',
      aim,
    ),
  ];
}

async function measureProtocol(protocol: Protocol, { startGateway, connections }: IdleOptions): Promise<number> {
  const probe = new URL('../../tools/soak/memory-probe.ts', import.meta.url);
  const gateway = await startGateway({
    nodeOptions: ['--expose-gc', '--import', probe.href],
    createEnvironment: (folder) => ({ [PROBE_FILE]: folder.file('held.json') }),
  });
  const [token = ''] = readFileSync(gateway.folder.file('tokens'), 'utf8').split('\n', 1);
  const target = { port: gateway.port, token };
  try {
    // Code is compiled and caches are filled before the first reading.
    for (const connection of await openAll(protocol, target, Math.ceil(connections / 10))) connection.close();
    const before = await readResident(gateway);
    const open = await openAll(protocol, target, connections);
    const after = await readResident(gateway);
    const closed = open.filter((connection) => !connection.isOpen()).length;
    for (const connection of open) connection.close();
    if (closed > 0) throw new Error(`${closed} idle connections were closed`);
    return ((after - before) * 1e6) / 1_024 / connections;
  } finally {
    await gateway.stop();
  }
}

/** Resident megabytes after a full garbage collection. */
async function readResident({ pids, folder }: BenchGateway): Promise<number> {
  const [pid = 0] = pids;
  const file = folder.file('held.json');
  rmSync(file, { force: true });
  process.kill(pid, 'SIGWINCH');
  for (let waited = 0; waited < 60_000; waited += 20) {
    await sleep(20);
    try {
      readFileSync(file);
      return residentMegabytes([pid]);
    } catch {
      // Not written yet.
    }
  }
  throw new Error('the memory probe did not respond in 60 s');
}

/** Opens connections over HTTP/1.1; each is used for one request. */
export function openConnections(
  { front, tokens }: { readonly front: { readonly port: number }; readonly tokens: string },
  count: number,
): Promise<Connection[]> {
  const [token = ''] = readFileSync(tokens, 'utf8').split('\n', 1);
  return openAll('HTTP/1.1', { port: front.port, token }, count);
}

const CONCURRENT = 20;

async function openAll(protocol: Protocol, target: Target, count: number): Promise<Connection[]> {
  const open = protocol === 'HTTP/2' ? openHttp2 : openHttp1;
  const connections: Connection[] = [];
  let begun = 0;
  const openSome = async (): Promise<void> => {
    while (begun < count) {
      begun += 1;
      connections.push(await open(target));
    }
  };
  await Promise.all(Array.from({ length: CONCURRENT }, openSome));
  return connections;
}

/** The certificate is not verified, as by the load generators. */
const openTls = async (port: number, protocol: string) => {
  const socket = connect({
    host: '127.0.0.1',
    port,
    servername: 'localhost',
    ALPNProtocols: [protocol],
    rejectUnauthorized: false,
  });
  await once(socket, 'secureConnect');
  if (socket.alpnProtocol !== protocol) throw new Error(`the server does not offer ${protocol}`);
  return socket;
};

async function openHttp1({ port, token }: Target): Promise<Connection> {
  const socket = await openTls(port, 'http/1.1');
  socket.write(`GET ${PATH} HTTP/1.1\r\nHost: localhost:${port}\r\nAuthorization: Bearer ${token}\r\n\r\n`);
  let received = '';
  await new Promise<void>((resolve, reject) => {
    socket.once('error', reject).once('close', () => reject(new Error('the server closed the connection')));
    socket.setEncoding('latin1').on('data', (text: string) => {
      received += text;
      const body = received.indexOf('\r\n\r\n') + 4;
      if (body >= 4 && received.length >= body + RESPONSE_BYTES) resolve();
    });
  });
  if (!received.startsWith('HTTP/1.1 200')) throw new Error(received.slice(0, 200));
  return { isOpen: () => !socket.destroyed, close: () => socket.destroy() };
}

async function openHttp2({ port, token }: Target): Promise<Connection> {
  const socket = await openTls(port, 'h2');
  const session = connectHttp2(`https://localhost:${port}`, { createConnection: () => socket });
  session.on('error', () => {});
  const stream = session.request({ ':path': PATH, authorization: `Bearer ${token}` });
  const [fields] = (await once(stream, 'response')) as [Record<string, unknown>];
  let received = 0;
  stream.on('data', (part: Buffer) => void (received += part.length));
  await once(stream, 'end');
  if (fields[':status'] !== 200 || received !== RESPONSE_BYTES)
    throw new Error(`status ${String(fields[':status'])}, ${received} bytes`);
  return { isOpen: () => !session.closed && !session.destroyed, close: () => session.destroy() };
}
