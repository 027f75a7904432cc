import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { MEMORY_ENVIRONMENT } from '../../test/support/memory-environment.ts';
import { scrape } from '../../test/support/scrape.ts';
import { createServeFolder, startServe, until } from '../../test/support/serve-process.ts';
import type { RunningLoad, SoakLoad } from './load.ts';
import { type Held, PROBE_FILE } from './memory-probe.ts';
import { mixedLoad } from './mixed-load.ts';

/** O12: the real program under a steady load, while its memory, descriptors and event loop are measured. Linux only. */
export interface SoakResult {
  readonly seconds: number;
  readonly completed: number;
  /** Responses with 503: other load on the machine may stall the process for a second. */
  readonly rejected: number;
  readonly failures: readonly string[];
  /** Periodic samples after the warm-up. */
  readonly samples: readonly Sample[];
  /** Times at which the metrics could not be read within 30 s, because of other load on the machine. */
  readonly missedSamples: number;
  /** How often each kind of client has run, if the load has several. */
  readonly activities: Readonly<Record<string, number>>;
  /** From the end of the warm-up to the end. */
  readonly heapSamples: readonly HeapSample[];
  /** Anonymous memory in the second half, MiB per hour (least squares). */
  readonly anonymousSlope: number;
  /**
   * Anonymous memory, MiB: the peak of the second half minus that of the first. V8's young generation varies by some 50 MiB
   * with the request rate, so only the peaks are comparable.
   */
  readonly anonymousGrowth: number;
  /** Heap and buffers after a full garbage collection, MiB: at the end minus in the middle. */
  readonly heldGrowth: number;
  /** The same in the second half, MiB per hour (least squares). */
  readonly heldSlope: number;
  /** Maximum minus minimum. */
  readonly descriptorSpread: number;
  /** The peak of the second half minus that of the first. */
  readonly descriptorGrowth: number;
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
  /** Open connections of clients. */
  readonly connections: number;
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
  /** Active handles and requests of the event loop, by type. */
  readonly handles: Readonly<Record<string, number>>;
}

export interface SoakOptions {
  readonly seconds: number;
  readonly warmUpSeconds: number;
  readonly everySeconds: number;
  /** Default: mixed. */
  readonly load?: SoakLoad;
  readonly onSample?: (sample: Sample) => void;
  readonly onHeapSample?: (sample: HeapSample) => void;
  /** The built program instead of the sources. */
  readonly entry?: string;
}

const PROBE = join(import.meta.dirname, 'memory-probe.ts');
/** The first after the warm-up, one in the middle, the last at the end. */
const HEAP_SAMPLES = { running: 25, paused: 7 } as const;
/** A full garbage collection while clients wait delays their responses, so there are fewer in a short run. */
const MIN_SECONDS_BETWEEN_HEAP_SAMPLES = 60;

export async function soak(options: SoakOptions): Promise<SoakResult> {
  const { seconds, warmUpSeconds, everySeconds, onSample, onHeapSample, entry, load = mixedLoad } = options;
  const folder = await createServeFolder(load.change, load.upstream);
  const runs: RunningLoad[] = [];
  try {
    const probeFile = folder.file('held.json');
    const server = await startServe(folder, {
      ...(entry !== undefined && { entry }),
      nodeOptions: ['--expose-gc', '--import', PROBE],
      // As bin/gatehouse does.
      env: { ...MEMORY_ENVIRONMENT, [PROBE_FILE]: probeFile },
    });
    const startLoad = async (): Promise<void> => void runs.push(await load.start(folder, server));
    const stopLoad = async (): Promise<void> => {
      await runs.at(-1)?.stop();
      const hasConnections = async (): Promise<boolean> =>
        (await scrape(server.adminPort)).value('gatehouse_connections') > 0;
      await until('the connections are closed', async () => !(await hasConnections()), 60);
    };
    const begin = performance.now();
    const second = (): number => (performance.now() - begin) / 1_000;
    const readHeap = async (): Promise<HeapSample> => {
      rmSync(probeFile, { force: true });
      server.signal('SIGWINCH');
      const held = await until('the memory probe has written its file', () => readHeld(probeFile), 60);
      return {
        second: Math.round(second()),
        heapMiB: mebibytes(held.heapBytes),
        arrayBuffersMiB: mebibytes(held.arrayBufferBytes),
        externalMiB: mebibytes(held.externalBytes),
        anonymousMiB: readProcessStats(server.pid).anonymousMiB,
        handles: held.handles,
      };
    };
    const sampleHeap = async (isLast: boolean): Promise<void> => {
      if (load.isPausedForHeapSamples) await stopLoad();
      const heapSample = await readHeap();
      heapSamples.push(heapSample);
      onHeapSample?.(heapSample);
      if (load.isPausedForHeapSamples && !isLast) await startLoad();
    };
    const samples: Sample[] = [];
    let missedSamples = 0;
    const heapSamples: HeapSample[] = [];
    const heapCount = countHeapSamples(seconds - warmUpSeconds, load);
    const heapEvery = (seconds - warmUpSeconds) / (heapCount - 1);
    await startLoad();
    for (let at = warmUpSeconds; at <= seconds; at += everySeconds) {
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, (at - second()) * 1_000)));
      const figures = await readMetrics(server.adminPort);
      if (figures === undefined) missedSamples += 1;
      else {
        const sample = { second: Math.round(second()), ...readProcessStats(server.pid), ...figures };
        samples.push(sample);
        onSample?.(sample);
      }
      // After the sample, because a full garbage collection would count as lag. The last one comes at the end.
      const isDue = second() >= warmUpSeconds + heapSamples.length * heapEvery;
      if (isDue && heapSamples.length < heapCount - 1) await sampleHeap(false);
    }
    await sampleHeap(true);
    const [middle, last] = [heapSamples[Math.floor(heapSamples.length / 2)], heapSamples.at(-1)];
    if (middle === undefined || last === undefined || heapSamples.length < heapCount)
      throw new Error(`the run is too short for ${heapCount} heap samples`);
    if (!load.isPausedForHeapSamples) await stopLoad();
    await until('all sockets are closed', () => readProcessStats(server.pid).descriptors < 60, 60);
    const exitCode = await server.stop();
    const lags = samples.map(({ lagSeconds }) => lagSeconds);
    const internalErrors = server.log.filter(({ event }) => event === 'internal_error');
    return {
      seconds,
      completed: sum(runs.map((run) => run.completed())),
      rejected: sum(runs.map((run) => run.rejected())),
      failures: [
        ...runs.flatMap((run) => run.failures()),
        ...internalErrors.map((line) => `internal error: ${JSON.stringify(line)}`),
      ],
      activities: sumByName(runs.map((run) => run.activities?.() ?? {})),
      samples,
      missedSamples,
      heapSamples,
      anonymousSlope: slopePerHour(secondHalf(samples), ({ anonymousMiB }) => anonymousMiB),
      anonymousGrowth: peakGrowth(samples, ({ anonymousMiB }) => anonymousMiB),
      heldGrowth: heldMiB(last) - heldMiB(middle),
      heldSlope: slopePerHour(secondHalf(heapSamples), heldMiB),
      descriptorSpread: spread(samples.map(({ descriptors }) => descriptors)),
      descriptorGrowth: peakGrowth(samples, ({ descriptors }) => descriptors),
      lagP50: percentile(lags, 0.5),
      lagP99: percentile(lags, 0.99),
      exitCode,
    };
  } finally {
    await runs.at(-1)?.stop();
    await folder.remove();
  }
}

/** Undefined: no complete response in time. */
async function readMetrics(adminPort: number): Promise<Pick<Sample, 'connections' | 'lagSeconds'> | undefined> {
  try {
    const metrics = await scrape(adminPort);
    const connections = metrics.value('gatehouse_connections');
    const lagSeconds = metrics.value('gatehouse_event_loop_lag_seconds');
    return Number.isNaN(connections) || Number.isNaN(lagSeconds) ? undefined : { connections, lagSeconds };
  } catch {
    return undefined;
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

const heldMiB = ({ heapMiB, externalMiB }: HeapSample): number => heapMiB + externalMiB;

function countHeapSamples(seconds: number, { isPausedForHeapSamples }: SoakLoad): number {
  if (isPausedForHeapSamples) return HEAP_SAMPLES.paused;
  const most = Math.floor(seconds / MIN_SECONDS_BETWEEN_HEAP_SAMPLES) + 1;
  return Math.min(HEAP_SAMPLES.running, Math.max(3, most));
}

const secondHalf = <T>(samples: readonly T[]): readonly T[] => samples.slice(Math.floor(samples.length / 2));

function peakGrowth(samples: readonly Sample[], read: (sample: Sample) => number): number {
  const most = (part: readonly Sample[]): number => Math.max(...part.map(read));
  return most(secondHalf(samples)) - most(samples.slice(0, Math.floor(samples.length / 2)));
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

function sumByName(records: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const total: Record<string, number> = {};
  for (const record of records)
    for (const [name, count] of Object.entries(record)) total[name] = (total[name] ?? 0) + count;
  return total;
}

const spread = (values: readonly number[]): number => Math.max(...values) - Math.min(...values);

/** Nearest rank: with fewer than 100 samples, p99 is the maximum. */
const percentile = (values: readonly number[], part: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(values.length * part) - 1] ?? Number.NaN;

function slopePerHour<T extends { readonly second: number }>(
  samples: readonly T[],
  read: (sample: T) => number,
): number {
  const mean = (values: readonly number[]): number => sum(values) / values.length;
  const x = mean(samples.map(({ second }) => second));
  const y = mean(samples.map(read));
  const variance = sum(samples.map(({ second }) => (second - x) ** 2));
  return (sum(samples.map((sample) => (sample.second - x) * (read(sample) - y))) / variance) * 3_600;
}
