import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from 'node:tls';
import { cpuSeconds } from './linux.ts';
import { type LoadEnvironment, type LoadRun, type Measured, WARM_SECONDS } from './load-run.ts';
import { runToEnd } from './programs.ts';
import { median } from './report.ts';

/** h2load sends the same header fields in all requests, so each token needs a process of its own. */
const PROCESSES = 4;

interface Snapshot {
  /** Microseconds since the epoch, as in h2load's log. */
  readonly micros: number;
  readonly cpuSeconds: number;
}

const takeSnapshot = (pids: readonly number[]): Snapshot => ({
  micros: (performance.timeOrigin + performance.now()) * 1_000,
  cpuSeconds: cpuSeconds(pids),
});

/**
 * The window begins after all handshakes and ends before the first connection is closed: h2load logs when each request ended,
 * and the server's CPU time is read at both ends.
 */
export async function runH2load(
  { folder, h2load, loadCore }: LoadEnvironment,
  run: LoadRun,
  seconds: number,
  options: readonly string[] = [],
): Promise<Measured> {
  if (h2load === undefined) throw new Error('h2load is not installed');
  const { connections = 64, streams = 1, warmSeconds = WARM_SECONDS, bodyBytes } = run;
  const tokens = readFileSync(run.tokens, 'utf8').split('\n').slice(0, PROCESSES);
  const body = join(folder, 'h2load-body');
  if (bodyBytes !== undefined) writeFileSync(body, 'x'.repeat(bodyBytes));
  const logOf = (process: number): string => join(folder, `h2load-${process}.requests`);
  const running = tokens.map((token, process) => {
    rmSync(logOf(process), { force: true });
    const args = [
      h2load,
      '--threads=1',
      `--clients=${connections / PROCESSES}`,
      `--max-concurrent-streams=${streams}`,
      `--duration=${Math.ceil(warmSeconds + seconds + 0.5)}`,
      `--log-file=${logOf(process)}`,
      `--header=authorization: Bearer ${token}`,
      ...(bodyBytes === undefined ? [] : [`--data=${body}`, '--header=content-type: application/octet-stream']),
      ...options,
      `https://127.0.0.1:${run.port}${run.path}`,
    ];
    return runToEnd(loadCore, args, join(folder, `h2load-${process}.log`), seconds + warmSeconds + 60);
  });
  const ended = Promise.all(running);
  const snapshots = (async () => {
    await sleep(warmSeconds * 1_000);
    const first = takeSnapshot(run.pids);
    await sleep(seconds * 1_000);
    return [first, takeSnapshot(run.pids)] as const;
  })();
  const [texts, [first, last]] = await Promise.all([ended, snapshots]);
  for (const text of texts) checkSummary(text);
  const latencies = tokens
    .flatMap((_, process) => readFileSync(logOf(process), 'utf8').split('\n'))
    .flatMap((line) => {
      const [start = 0, , latency = 0] = line.split('\t').map(Number);
      return start + latency > first.micros && start + latency <= last.micros ? [latency] : [];
    })
    .toSorted((a, b) => a - b);
  if (latencies.length === 0) throw new Error('no requests within the window');
  const window = (last.micros - first.micros) / 1e6;
  const used = last.cpuSeconds - first.cpuSeconds;
  return {
    cpuMicros: (used * 1e6) / latencies.length,
    perSecond: latencies.length / window,
    p50: median(latencies) / 1_000,
    p99: (latencies[Math.floor(latencies.length * 0.99)] ?? Number.NaN) / 1_000,
    busy: used / window,
  };
}

function checkSummary(text: string): void {
  const count = (kind: string): number => Number(new RegExp(`(\\d+) ${kind}`).exec(text)?.[1] ?? 0);
  if (count('2xx') === 0 || ['3xx', '4xx', '5xx', 'failed', 'errored'].some((kind) => count(kind) > 0))
    throw new Error(`h2load: ${/requests:.*\nstatus codes:.*/.exec(text)?.[0] ?? text.slice(-300)}`);
}

/** Whether the server offers HTTP/2 (ALPN). */
export const supportsHttp2 = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect({
      host: '127.0.0.1',
      port,
      servername: 'localhost',
      ALPNProtocols: ['h2', 'http/1.1'],
      // Only the negotiated protocol is read; no request is sent.
      rejectUnauthorized: false,
    });
    socket.setTimeout(5_000, () => socket.destroy());
    socket.once('secureConnect', () => {
      resolve(socket.alpnProtocol === 'h2');
      socket.destroy();
    });
    socket.once('error', () => resolve(false)).once('close', () => resolve(false));
  });
