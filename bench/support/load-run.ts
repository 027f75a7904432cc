/** The load of one run. */
export interface LoadRun {
  readonly port: number;
  /** The processes whose CPU time is measured. */
  readonly pids: readonly number[];
  /** File with one token per line, used in rotation. */
  readonly tokens: string;
  /** File with tokens that are each used once; the window ends when all are used. */
  readonly cold?: string;
  readonly method?: 'GET' | 'POST';
  readonly path: string;
  /** Each connection requests this path as well, before the measured window (wrk only). */
  readonly firstPath?: string;
  readonly bodyBytes?: number;
  /** Default: wrk, which speaks HTTP/1.1 only. */
  readonly generator?: GeneratorName;
  readonly connections?: number;
  /** Concurrent requests on each HTTP/2 connection; default: 1. */
  readonly streams?: number;
  /** Average wait of each connection between two requests. */
  readonly thinkMilliseconds?: number;
  /** Load before the measured window. */
  readonly warmSeconds?: number;
}

/** The result of one run. */
export interface Sample {
  readonly cpuMicros: number;
  readonly perSecond: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
  readonly residentMegabytes: number;
  /** The server's utilization of its core. Below 1, it did not limit the requests per second. */
  readonly busy: number;
  /** CPU used by other processes and by other virtual machines, as a share of one core. */
  readonly others: number;
}

export interface LoadEnvironment {
  readonly folder: string;
  readonly wrk: string;
  readonly h2load?: string;
  /** The path of the built Go program. */
  readonly goLoad?: string;
  readonly loadCore: number | string;
  readonly upstreamPid: number;
}

/** What a load generator measures. */
export type Measured = Omit<Sample, 'others' | 'residentMegabytes'>;

export type Generator = (environment: LoadEnvironment, run: LoadRun, seconds: number) => Promise<Measured>;
export type GeneratorName = 'wrk' | 'h2load, HTTP/2' | 'h2load, HTTP/1.1' | 'Go';

export const WARM_SECONDS = 1;
