import { truncateSync } from 'node:fs';
import type { SettingsInput } from '../../src/config/schema.ts';
import { type BenchFolder, makeBenchFolder } from './folder.ts';
import type { Front } from './fronts.ts';
import { treeOf } from './linux.ts';
import { serveProgram } from './programs.ts';
import { type Stock, stock } from './stock.ts';

/** A gatehouse of the benchmark: everything on, as in production, with what it holds. */
export interface HouseOptions extends Partial<Stock> {
  readonly upstream: number;
  readonly core: number | string;
  readonly entry: string;
  readonly workers?: number;
  readonly routes?: number;
  /** False: ordinary requests take the full lane too. */
  readonly fastLane?: boolean;
  /** It is asked by nginx about the requests of others. */
  readonly asked?: boolean;
  readonly nodeOptions?: readonly string[];
  /** Left out: the embedded one. */
  readonly store?: SettingsInput['store'];
}

export interface House extends Front {
  readonly folder: BenchFolder;
  /** Empties its log, so that no disk fills up. */
  tidy(): void;
}

const TOKENS = 100;
const ROUTES = 10;
const LIVE_GRANTS = 1_000;

export async function openHouse(options: HouseOptions): Promise<House> {
  const { upstream, workers = 1, routes = ROUTES, fastLane = true, asked = false } = options;
  const folder = await makeBenchFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers, fastLane },
    // The benchmark may take longer than an hour.
    tokens: { accessLifetime: '1d' },
    // Thousands of connections that all begin at once are not what a queue is for.
    upstreams: { default: { url: `http://127.0.0.1:${upstream}`, maxPending: 10_000 } },
    // Those that are asked for come last.
    routes: [
      ...Array.from({ length: routes - 2 }, (_, index) => ({
        path: `/area-${index}/items/**`,
        requires: 'files:read',
      })),
      { path: '/files/**', methods: ['GET', 'HEAD'], requires: 'files:read' },
      { path: '/reports/**', requires: 'reports:write' },
    ],
    limits: {},
    ...(options.store && { store: options.store }),
    ...(asked && { trustedProxies: ['127.0.0.1'] }),
  }));
  const { grants = LIVE_GRANTS, revocations = 0, tokens = TOKENS, cold } = options;
  await stock(folder.path, { grants, revocations, tokens, ...(cold && { cold }) });
  const { entry, core, nodeOptions = [] } = options;
  const program = await serveProgram({ folder: folder.path, entry, core, nodeOptions });
  return {
    folder,
    port: program.port,
    pids: treeOf(program.pid),
    tidy: () => truncateSync(folder.file('serve.log')),
    stop: () => program.stop(),
  };
}
