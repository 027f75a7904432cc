import { truncateSync } from 'node:fs';
import type { SettingsInput } from '../../src/config/schema.ts';
import type { SigningAlgorithm } from '../../src/tokens/keyring-file.ts';
import { type StoreContents, seedStore } from './fill-store.ts';
import { type BenchFolder, createBenchFolder } from './folder.ts';
import { listProcessTree } from './linux.ts';
import { startGatehouse } from './programs.ts';
import type { BenchServer } from './servers.ts';
import type { ThirdPartyTokens } from './third-party-tokens.ts';

/** A gatehouse with production settings and the given contents of its store. */
export interface BenchGatewayOptions extends Partial<StoreContents> {
  readonly upstream: number;
  /** Default: any. */
  readonly core?: number | string;
  readonly entry: string;
  readonly workers?: number;
  readonly routes?: number;
  /** The upstream over TLS; `ca` is a file. */
  readonly tlsUpstream?: { readonly port: number; readonly ca: string };
  /** nginx authorizes its requests with `auth_request` to this gateway. */
  readonly isForwardAuth?: boolean;
  /** The routes accept tokens of this issuer, and have a quota that is never used up. */
  readonly trustedIssuer?: Pick<ThirdPartyTokens, 'issuer' | 'audience' | 'jwksFile'>;
  /** Of the signing key; default: EdDSA. */
  readonly keyAlgorithm?: SigningAlgorithm;
  readonly nodeOptions?: readonly string[];
  /** Added to the environment of the process. */
  readonly createEnvironment?: (folder: BenchFolder) => Readonly<Record<string, string>>;
  /** Default: the embedded store. */
  readonly store?: SettingsInput['store'];
}

export interface BenchGateway extends BenchServer {
  readonly folder: BenchFolder;
  /** From start to its `ready` line. */
  readonly readySeconds: number;
  /** Truncates its log, so that it does not fill the disk. */
  truncateLog(): void;
}

const TOKENS = 100;
const ROUTES = 10;
const LIVE_GRANTS = 1_000;

export async function startBenchGateway(options: BenchGatewayOptions): Promise<BenchGateway> {
  const { upstream, workers = 1, routes = ROUTES, isForwardAuth = false } = options;
  const { tlsUpstream, trustedIssuer } = options;
  const issuers = trustedIssuer && { issuers: ['own', 'bench'] };
  const createSettings = (settings: SettingsInput): SettingsInput => ({
    ...settings,
    listen: { ...settings.listen, workers },
    // The benchmark may take longer than an hour.
    tokens: { accessLifetime: '1d' },
    // Thousands of connections that start at once would exceed the default queue.
    upstreams: {
      default: {
        ...(tlsUpstream === undefined
          ? { url: `http://127.0.0.1:${upstream}` }
          : { url: `https://127.0.0.1:${tlsUpstream.port}`, ca: tlsUpstream.ca, serverName: 'localhost' }),
        maxPending: 10_000,
      },
    },
    // The requested routes come last.
    routes: [
      ...Array.from({ length: routes - 2 }, (_, index) => ({
        path: `/area-${index}/items/**`,
        requires: 'files:read',
        ...issuers,
      })),
      { path: '/files/**', methods: ['GET', 'HEAD'], requires: 'files:read', ...issuers },
      { path: '/reports/**', requires: 'reports:write', ...issuers },
    ],
    limits: trustedIssuer ? { routes: '1000000/s' } : {},
    ...(trustedIssuer && {
      trustedIssuers: {
        bench: {
          ...trustedIssuer,
          claims: { name: 'email' },
          scopes: { 'files:read': 'files:read' },
        },
      },
    }),
    ...(options.store && { store: options.store }),
    ...(isForwardAuth && { trustedProxies: ['127.0.0.1'] }),
  });
  const folder = await createBenchFolder(createSettings, options.keyAlgorithm);
  const { grants = LIVE_GRANTS, revocations = 0, tokens = TOKENS, cold } = options;
  await seedStore(folder.path, { grants, revocations, tokens, ...(cold && { cold }) });
  const { entry, core, nodeOptions = [], createEnvironment = () => ({}) } = options;
  const env = createEnvironment(folder);
  const program = await startGatehouse({
    folder: folder.path,
    entry,
    nodeOptions,
    env,
    ...(core !== undefined && { core }),
  });
  return {
    folder,
    port: program.port,
    readySeconds: program.readySeconds,
    pids: listProcessTree(program.pid),
    truncateLog: () => truncateSync(folder.file('serve.log')),
    stop: () => program.stop(),
  };
}
