import { readdirSync, readFileSync } from 'node:fs';
import { scrape } from './scrape.ts';
import { connect, makeServeFolder, startServe, until } from './serve-process.ts';
import { steadyLoad } from './steady-load.ts';

/**
 * Row O12: the real program under a steady load of everything it does (requests over HTTP/1.1 and HTTP/2, grants,
 * refreshes, refusals, clients that leave), while its memory, its descriptors and its event loop are watched. Linux.
 */
export interface Soaked {
  readonly seconds: number;
  readonly answered: number;
  readonly failures: readonly string[];
  /** One line for each look, after the warm-up. */
  readonly samples: readonly Sample[];
  /** MiB an hour, by least squares. */
  readonly rssSlope: number;
  /** Most minus least. */
  readonly descriptorSpread: number;
  /** Seconds the event loop was held up at the longest, as the program itself tells: half of the looks saw no more. */
  readonly lagP50: number;
  readonly lagP99: number;
  readonly exitCode: number | null;
}

export interface Sample {
  readonly second: number;
  readonly rssMiB: number;
  readonly descriptors: number;
  /** The longest the event loop was held up in the 15 to 30 seconds before the look. */
  readonly lagSeconds: number;
}

export interface SoakOptions {
  readonly seconds: number;
  readonly warmUpSeconds: number;
  readonly everySeconds: number;
  readonly onSample?: (sample: Sample) => void;
}

export async function soak({ seconds, warmUpSeconds, everySeconds, onSample }: SoakOptions): Promise<Soaked> {
  const folder = await makeServeFolder((settings) => ({
    ...settings,
    log: { level: 'info', access: { enabled: false } },
    tokens: { accessLifetime: '10s', grantLifetime: '1m' },
  }));
  try {
    const server = await startServe(folder);
    const alice = connect(folder, server.port, folder.alice);
    const failures: string[] = [];
    const halt = new AbortController();
    const load = steadyLoad({ port: server.port, ca: folder.ca.pem, path: '/health', http1: 4, http2: 2 });
    const fresh = steadyLoad({
      port: server.port,
      ca: folder.ca.pem,
      path: '/files/1',
      http1: 1,
      http2: 0,
      fresh: true,
      judge: ({ status }) => (status === 401 ? undefined : `without a token: ${status}`),
    });
    const people = (async () => {
      while (!halt.signal.aborted) {
        const grant = await alice.grant();
        const refreshed = await alice.refresh(grant.refresh_token);
        if (refreshed.status !== 200) failures.push(`refresh: ${refreshed.status} ${refreshed.text}`);
        if (!(await alice.accepted(String(refreshed.json['access_token'])))) failures.push('not accepted');
        const ended = await alice.revoke(grant.access_token);
        if (ended.status !== 200) failures.push(`revoke: ${ended.status}`);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    })();

    const samples: Sample[] = [];
    const begin = performance.now();
    const second = (): number => (performance.now() - begin) / 1_000;
    for (let at = warmUpSeconds; at <= seconds; at += everySeconds) {
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, (at - second()) * 1_000)));
      const lagSeconds = (await scrape(server.adminPort)).value('gatehouse_event_loop_lag_seconds');
      const sample = { second: Math.round(second()), ...look(server.pid), lagSeconds };
      samples.push(sample);
      onSample?.(sample);
    }
    halt.abort();
    await Promise.all([people, load.stop(), fresh.stop()]);
    alice.close();
    await until('it is at rest', () => look(server.pid).descriptors < 60);
    const exitCode = await server.stop();
    const lags = samples.map(({ lagSeconds }) => lagSeconds);
    return {
      seconds,
      answered: load.answered() + fresh.answered(),
      failures: [...failures, ...load.failures, ...fresh.failures],
      samples,
      rssSlope: slope(samples) * 3_600,
      descriptorSpread: spread(samples.map(({ descriptors }) => descriptors)),
      lagP50: percentile(lags, 0.5),
      lagP99: percentile(lags, 0.99),
      exitCode,
    };
  } finally {
    await folder.remove();
  }
}

function look(pid: number): Pick<Sample, 'rssMiB' | 'descriptors'> {
  const kilobytes = Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]);
  return { rssMiB: Math.round(kilobytes / 102.4) / 10, descriptors: readdirSync(`/proc/${pid}/fd`).length };
}

const spread = (values: readonly number[]): number => Math.max(...values) - Math.min(...values);

/** By nearest rank: with fewer than a hundred looks the 99th is the worst of them. */
const percentile = (values: readonly number[], part: number): number =>
  values.toSorted((one, other) => one - other)[Math.ceil(values.length * part) - 1] ?? Number.NaN;

function slope(samples: readonly Sample[]): number {
  const mean = (values: readonly number[]): number =>
    values.reduce((sum, one) => sum + one, 0) / values.length;
  const x = mean(samples.map(({ second }) => second));
  const y = mean(samples.map(({ rssMiB }) => rssMiB));
  const along = samples.reduce((sum, { second }) => sum + (second - x) ** 2, 0);
  return samples.reduce((sum, { second, rssMiB }) => sum + (second - x) * (rssMiB - y), 0) / along;
}
