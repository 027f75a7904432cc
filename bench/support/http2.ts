import { type Candidate, createCase } from './candidates.ts';
import { goLoadProgram } from './go-load.ts';
import { supportsHttp2 } from './h2load.ts';
import type { LoadRun, Sample } from './load-run.ts';
import type { Figure } from './report.ts';
import type { Case } from './rounds.ts';

/** A load that gatehouse and its peers get over HTTP/2, and the most CPU relative to nginx. */
interface Load {
  readonly label: string;
  readonly overrides: Partial<LoadRun>;
  readonly cpu: number;
  /** The most p99 relative to nginx. */
  readonly p99?: number;
}

const FEW_CONNECTIONS = { generator: 'h2load, HTTP/2', connections: 16, streams: 10 } as const;
const ONE_STREAM = { generator: 'h2load, HTTP/2', connections: 64, streams: 1 } as const;

const GET: Load = { label: '64 × 1', overrides: ONE_STREAM, cpu: 1.45 };
const GO: Load = {
  label: 'Go client, 1,000 paths',
  overrides: { ...FEW_CONNECTIONS, generator: 'Go', path: '/files/changing/%d' },
  cpu: 1.5,
};
const LOADS: readonly Load[] = [
  { label: '16 × 10', overrides: FEW_CONNECTIONS, cpu: 1.25, p99: 2 },
  GET,
  GO,
  { label: 'GET 100 KiB, 16 × 10', overrides: { ...FEW_CONNECTIONS, path: '/files/100k' }, cpu: 1.2 },
  { label: 'GET 100 KiB, 64 × 1', overrides: { ...ONE_STREAM, path: '/files/100k' }, cpu: 1.2 },
];

/** Loads for gatehouse only, and the most CPU of the first relative to the second. */
const POST = 'gatehouse, HTTP/2, POST 1 KiB, 64 × 1';
const HTTP1 = 'gatehouse, HTTP/1.1 (h2load), 64 connections';
const POST_TO_GET = 1.3;
const HTTP2_TO_HTTP1 = 1.1;

export type Compare = (
  samples: ReadonlyMap<string, readonly Sample[]>,
  names: readonly [string, string],
  aim?: Figure['aim'],
  measure?: readonly [string, (sample: Sample) => number],
) => void;

export interface Http2Options {
  readonly candidates: readonly Candidate[];
  readonly hasGoLoad: boolean;
  readonly measure: (cases: readonly Case[]) => Promise<Map<string, Sample[]>>;
  readonly warmUp: (candidates: readonly Candidate[], overrides: Partial<LoadRun>) => Promise<void>;
  readonly compare: Compare;
  readonly log: (text: string) => void;
}

const nameOf = (candidate: string, { label }: Load): string => `${candidate}, HTTP/2, ${label}`;
const atMost = (value: number): NonNullable<Figure['aim']> => ({ is: 'at most', value });

/** The group `h2`: all loads of all candidates in the same rounds. */
export async function measureHttp2(options: Http2Options): Promise<void> {
  const { hasGoLoad, measure, compare, log } = options;
  const candidates: Candidate[] = [];
  for (const candidate of options.candidates)
    if (await supportsHttp2(candidate.front.port)) candidates.push(candidate);
    else log(`skipped: HTTP/2 of ${candidate.name}: its listener does not offer it`);
  if (!hasGoLoad) log(`skipped: the Go client: ${goLoadProgram.missing}`);
  await options.warmUp(candidates, FEW_CONNECTIONS);

  const loads = LOADS.filter((load) => hasGoLoad || load !== GO);
  const cases = loads.flatMap((load) =>
    candidates.map((candidate) => createCase(candidate, load.overrides, nameOf(candidate.name, load))),
  );
  const post: Partial<LoadRun> = { ...ONE_STREAM, method: 'POST', path: '/reports/1k', bodyBytes: 1_024 };
  for (const gatehouse of candidates.filter(({ name }) => name === 'gatehouse'))
    cases.push(createCase(gatehouse, post, POST), createCase(gatehouse, { generator: 'h2load, HTTP/1.1' }, HTTP1));
  const samples = await measure(cases);
  for (const load of loads) {
    const gatehouse = nameOf('gatehouse', load);
    compare(samples, [gatehouse, nameOf('nginx', load)], atMost(load.cpu));
    compare(samples, [gatehouse, nameOf('HAProxy', load)]);
    if (load.p99 !== undefined)
      compare(samples, [gatehouse, nameOf('nginx', load)], atMost(load.p99), ['p99', ({ p99 }) => p99]);
  }
  compare(samples, [nameOf('gatehouse', GET), HTTP1], atMost(HTTP2_TO_HTTP1));
  compare(samples, [POST, nameOf('gatehouse', GET)], atMost(POST_TO_GET));
}
