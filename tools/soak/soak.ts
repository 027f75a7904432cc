import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { MEMORY_ENVIRONMENT } from '../../src/server/workers/worker-memory.ts';
import type { TokenGrant } from '../../test/support/https-client.ts';
import { scrape } from '../../test/support/scrape.ts';
import { connect, createServeFolder, startServe, until } from '../../test/support/serve-process.ts';
import { startSteadyLoad } from '../../test/support/steady-load.ts';
import { type Held, PROBE_FILE } from './memory-probe.ts';

/**
 * O12: the real program under a steady, mixed load (requests over HTTP/1.1 and HTTP/2, grants, refreshes, rejections,
 * aborted connections), while its memory, descriptors and event loop are measured. Linux only.
 */
export interface SoakResult {
  readonly seconds: number;
  readonly completed: number;
  /** Responses with 503: other load on the machine may stall the process for a second. */
  readonly rejected: number;
  readonly failures: readonly string[];
  /** Periodic samples after the warm-up. */
  readonly samples: readonly Sample[];
  /** After the warm-up, in the middle, and at the end. */
  readonly heapSamples: readonly [HeapSample, HeapSample, HeapSample];
  /** Anonymous memory, MiB per hour (least squares). */
  readonly anonymousSlope: number;
  /**
   * Anonymous memory, MiB: the peak of the second half minus that of the first. V8's young generation varies by some 50 MiB
   * with the request rate, so only the peaks are comparable.
   */
  readonly anonymousGrowth: number;
  /** Heap and buffers after a full garbage collection, MiB: at the end minus in the middle. */
  readonly heldGrowth: number;
  /** Maximum minus minimum. */
  readonly descriptorSpread: number;
  /** Percentiles of the event-loop lag that the program reports, in seconds. */
  readonly lagP50: number;
  readonly lagP99: number;
  readonly exitCode: number | null;
}

export interface Sample {
  readonly second: number;
  /** Resident memory, including pages of Node's binary that all processes share. */
  readonly rssMiB: number;
  /** Anonymous resident memory. */
  readonly anonymousMiB: number;
  readonly descriptors: number;
  /** The longest event-loop delay in the 15 to 30 seconds before the sample. */
  readonly lagSeconds: number;
}

/** Memory after a full garbage collection. */
export interface HeapSample {
  readonly second: number;
  readonly heapMiB: number;
  readonly arrayBuffersMiB: number;
  readonly externalMiB: number;
  readonly anonymousMiB: number;
}

export interface SoakOptions {
  readonly seconds: number;
  readonly warmUpSeconds: number;
  readonly everySeconds: number;
  readonly onSample?: (sample: Sample) => void;
  readonly onHeapSample?: (sample: HeapSample) => void;
  /** The built program instead of the sources. */
  readonly entry?: string;
}

/** Size of the token cache: small enough to fill up within the warm-up. */
const CACHE_SIZE = 200;
const PROBE = join(import.meta.dirname, 'memory-probe.ts');

export async function soak(options: SoakOptions): Promise<SoakResult> {
  const { seconds, warmUpSeconds, everySeconds, onSample, onHeapSample, entry } = options;
  const folder = await createServeFolder((settings) => ({
    ...settings,
    log: { level: 'info', access: { enabled: false } },
    tokens: { accessLifetime: '30s', grantLifetime: '1m', cacheSize: CACHE_SIZE },
  }));
  let stopLoad = async (): Promise<void> => {};
  try {
    const probeFile = folder.file('held.json');
    const server = await startServe(folder, {
      ...(entry !== undefined && { entry }),
      nodeOptions: ['--expose-gc', '--import', PROBE],
      // As in the image and the systemd unit.
      env: { ...MEMORY_ENVIRONMENT, [PROBE_FILE]: probeFile },
    });
    const alice = connect(folder, server.port, folder.alice);
    const failures: string[] = [];
    let rejected = 0;
    /** 503 from an overloaded process is counted separately, not as a failure. */
    const checkStatus = (status: number, wanted: number, what: string): string | undefined => {
      if (status === 503) rejected += 1;
      return status === wanted || status === 503 ? undefined : `${what}: ${status}`;
    };
    const stopped = new AbortController();
    const load = startSteadyLoad({
      port: server.port,
      ca: folder.ca.pem,
      path: '/health',
      http1: 4,
      http2: 2,
      check: ({ status }) => checkStatus(status, 200, 'steady'),
    });
    const fresh = startSteadyLoad({
      port: server.port,
      ca: folder.ca.pem,
      path: '/files/1',
      http1: 1,
      http2: 0,
      newConnections: true,
      check: ({ status }) => checkStatus(status, 401, 'without a token'),
    });
    const record = (failure: string | undefined): boolean => {
      if (failure !== undefined) failures.push(failure);
      return failure === undefined;
    };
    const grantLifeCycle = async (): Promise<void> => {
      const granted = await alice.post('/Authorize/Certificate', {
        client_id: 'report-runner',
        scope: 'files:read',
      });
      if (!record(checkStatus(granted.status, 200, 'grant')) || granted.status === 503) return;
      const grant = granted.json as unknown as TokenGrant;
      const refreshed = await alice.refresh(grant.refresh_token);
      if (!record(checkStatus(refreshed.status, 200, 'refresh')) || refreshed.status === 503) return;
      const headers = { authorization: `Bearer ${String(refreshed.json['access_token'])}` };
      record(checkStatus((await alice.request({ path: '/whoami', headers })).status, 200, 'proxy'));
      record(
        checkStatus(
          (await alice.request({ path: '/authsvc/Authorize/Verify', headers })).status,
          200,
          'verify',
        ),
      );
      record(checkStatus((await alice.revoke(grant.access_token)).status, 200, 'revoke'));
    };
    const grantCycles = (async () => {
      while (!stopped.signal.aborted) {
        await grantLifeCycle().catch((error: Error) => record(error.message));
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    })();

    stopLoad = async () => {
      stopped.abort();
      await Promise.all([grantCycles, load.stop(), fresh.stop()]);
      alice.close();
    };

    const samples: Sample[] = [];
    const begin = performance.now();
    const second = (): number => (performance.now() - begin) / 1_000;
    const sampleHeap = async (): Promise<HeapSample> => {
      rmSync(probeFile, { force: true });
      server.signal('SIGWINCH');
      const held = await until('the memory probe has written its file', () => readHeld(probeFile), 60);
      const heapSample = {
        second: Math.round(second()),
        heapMiB: mebibytes(held.heapBytes),
        arrayBuffersMiB: mebibytes(held.arrayBufferBytes),
        externalMiB: mebibytes(held.externalBytes),
        anonymousMiB: readProcessStats(server.pid).anonymousMiB,
      };
      onHeapSample?.(heapSample);
      return heapSample;
    };
    let first: HeapSample | undefined;
    let middle: HeapSample | undefined;
    for (let at = warmUpSeconds; at <= seconds; at += everySeconds) {
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, (at - second()) * 1_000)));
      const lagSeconds = (await scrape(server.adminPort)).value('gatehouse_event_loop_lag_seconds');
      const sample = { second: Math.round(second()), ...readProcessStats(server.pid), lagSeconds };
      samples.push(sample);
      onSample?.(sample);
      // After the sample, because a full garbage collection would count as lag.
      first ??= await sampleHeap();
      if (middle === undefined && second() >= (warmUpSeconds + seconds) / 2) middle = await sampleHeap();
    }
    const last = await sampleHeap();
    if (first === undefined || middle === undefined)
      throw new Error('the run is too short for three heap samples');
    await stopLoad();
    await until('the connections are closed', () => readProcessStats(server.pid).descriptors < 60, 60);
    const exitCode = await server.stop();
    const lags = samples.map(({ lagSeconds }) => lagSeconds);
    return {
      seconds,
      completed: load.completed() + fresh.completed(),
      rejected,
      failures: [...failures, ...load.failures, ...fresh.failures],
      samples,
      heapSamples: [first, middle, last],
      anonymousSlope: slope(samples) * 3_600,
      anonymousGrowth: peakGrowth(samples),
      heldGrowth: last.heapMiB + last.externalMiB - middle.heapMiB - middle.externalMiB,
      descriptorSpread: spread(samples.map(({ descriptors }) => descriptors)),
      lagP50: percentile(lags, 0.5),
      lagP99: percentile(lags, 0.99),
      exitCode,
    };
  } finally {
    await stopLoad();
    await folder.remove();
  }
}

function readProcessStats(pid: number): Pick<Sample, 'rssMiB' | 'anonymousMiB' | 'descriptors'> {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const readMiB = (name: string): number =>
    mebibytes(Number(new RegExp(`${name}:\\s+(\\d+)`).exec(status)?.[1]) * 1_024);
  return {
    rssMiB: readMiB('VmRSS'),
    anonymousMiB: readMiB('RssAnon'),
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
  };
}

function readHeld(file: string): Held | undefined {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Held;
  } catch {
    // Not written yet.
    return undefined;
  }
}

const mebibytes = (bytes: number): number => Math.round(bytes / 104_857.6) / 10;

function peakGrowth(samples: readonly Sample[]): number {
  const half = Math.floor(samples.length / 2);
  const most = (part: readonly Sample[]): number => Math.max(...part.map(({ anonymousMiB }) => anonymousMiB));
  return most(samples.slice(half)) - most(samples.slice(0, half));
}

const spread = (values: readonly number[]): number => Math.max(...values) - Math.min(...values);

/** Nearest rank: with fewer than 100 samples, p99 is the maximum. */
const percentile = (values: readonly number[], part: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(values.length * part) - 1] ?? Number.NaN;

function slope(samples: readonly Sample[]): number {
  const mean = (values: readonly number[]): number =>
    values.reduce((sum, value) => sum + value, 0) / values.length;
  const x = mean(samples.map(({ second }) => second));
  const y = mean(samples.map(({ anonymousMiB }) => anonymousMiB));
  const variance = samples.reduce((sum, { second }) => sum + (second - x) ** 2, 0);
  return (
    samples.reduce((sum, { second, anonymousMiB }) => sum + (second - x) * (anonymousMiB - y), 0) / variance
  );
}
