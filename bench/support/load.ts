/**
 * HTTPS load from a separate process: keep-alive TLS connections, one request at a time on each, with as little work per
 * request as possible. Reads the server's CPU time from /proc at both ends of the window.
 *
 *   node load.ts <load as JSON> <result file>
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { connect, type TLSSocket } from 'node:tls';

export interface Load {
  readonly port: number;
  /** The process whose CPU time is measured. */
  readonly pid: number;
  readonly operation: 'refresh' | 'certificate';
  readonly connections: number;
  readonly warmUpSeconds: number;
  readonly seconds: number;
  readonly ca: string;
  /** The client certificate, for certificate grants. */
  readonly certificate: string;
  readonly key: string;
  /** File with the current refresh tokens; updated at the end. */
  readonly state: string;
}

export interface LoadResult {
  readonly perSecond: number;
  readonly cpuMicros: number;
  readonly count: number;
  readonly p50: number;
  readonly p99: number;
}

const [loadText = '', resultFile = ''] = process.argv.slice(2);
const load = JSON.parse(loadText) as Load;
const tokens = JSON.parse(readFileSync(load.state, 'utf8')) as string[];
const latencies: number[] = [];
let count = 0;
let isMeasuring = false;
let isStopped = false;

const PATHS = { refresh: '/authsvc/Authorize/Token', certificate: '/authsvc/Authorize/Certificate' };

function request(body: string): string {
  return (
    `POST ${PATHS[load.operation]} HTTP/1.1\r\nHost: localhost:${load.port}\r\nContent-Type: application/json\r\n` +
    `Content-Length: ${body.length}\r\nAccept: application/json\r\nUser-Agent: bench\r\n\r\n${body}`
  );
}

/** Each connection has its own share of the tokens, so that none is used twice. */
function runConnection(first: number): Promise<void> {
  let index = first;
  let sent = 0;
  let received = '';
  return new Promise((resolve, reject) => {
    const socket: TLSSocket = connect({
      host: '127.0.0.1',
      port: load.port,
      servername: 'localhost',
      ca: readFileSync(load.ca),
      ...(load.operation === 'certificate' && {
        cert: readFileSync(load.certificate),
        key: readFileSync(load.key),
      }),
    });
    socket.setNoDelay(true);
    const send = (): void => {
      if (isStopped) {
        socket.destroy();
        resolve();
        return;
      }
      const body =
        load.operation === 'refresh'
          ? `{"client_id":"report-runner","refresh_token":"${tokens[index]}"}`
          : '{"client_id":"report-runner","scope":"files:read"}';
      sent = performance.now();
      socket.write(request(body));
    };
    socket.on('secureConnect', send);
    socket.on('error', reject);
    socket.on('close', () => (isStopped ? resolve() : reject(new Error('the server closed the connection'))));
    socket.setEncoding('latin1');
    socket.on('data', (part: string) => {
      received += part;
      const head = received.indexOf('\r\n\r\n');
      if (head < 0) return;
      const [, length = ''] = /content-length: (\d+)/i.exec(received) ?? [];
      if (received.length < head + 4 + Number(length)) return;
      if (!received.startsWith('HTTP/1.1 200')) {
        reject(new Error(received.slice(0, 400)));
        socket.destroy();
        return;
      }
      if (load.operation === 'refresh') {
        const [, token] = /"refresh_token":"([^"]+)"/.exec(received) ?? [];
        if (token !== undefined) tokens[index] = token;
        index = index + load.connections < tokens.length ? index + load.connections : first;
      }
      received = '';
      if (isMeasuring) {
        count += 1;
        latencies.push(performance.now() - sent);
      }
      send();
    });
  });
}

/** User and system time of a process, in seconds: fields 14 and 15 of /proc/<pid>/stat, counted after its name. */
function cpuSeconds(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

const wait = (seconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, seconds * 1_000));

const running = Promise.all(Array.from({ length: load.connections }, (_, index) => runConnection(index)));
await Promise.race([running, wait(load.warmUpSeconds)]);
const [cpu, at] = [cpuSeconds(load.pid), performance.now()];
isMeasuring = true;
await Promise.race([running, wait(load.seconds)]);
isMeasuring = false;
const seconds = (performance.now() - at) / 1_000;
const used = cpuSeconds(load.pid) - cpu;
isStopped = true;
await running;
latencies.sort((a, b) => a - b);
writeFileSync(load.state, JSON.stringify(tokens));
const result: LoadResult = {
  perSecond: count / seconds,
  cpuMicros: (used * 1e6) / count,
  count,
  p50: latencies[Math.floor(latencies.length * 0.5)] ?? 0,
  p99: latencies[Math.floor(latencies.length * 0.99)] ?? 0,
};
writeFileSync(resultFile, JSON.stringify(result));
