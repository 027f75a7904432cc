import type { BenchGateway, BenchGatewayOptions } from './gateway.ts';
import type { LoadRun } from './load-run.ts';
import { startNginxAuthRequest, startNginxPlain, startNginxTlsUpstream, startNginxWithGatehouse } from './nginx.ts';
import type { Case } from './rounds.ts';
import type { BenchEnvironment, BenchServer } from './servers.ts';
import { startHaproxy, startHttpProxy3, startOathkeeper, startOauth2Proxy } from './third-party-servers.ts';
import { ALGORITHMS, type Algorithm, type ThirdPartyTokens } from './third-party-tokens.ts';
import { buildGo } from './tools.ts';

/** Its signing key is one for ES256 (`keys.algorithm`). */
export const ES256_KEYS = 'gatehouse, ES256 keys';

/** With tokens of a trusted issuer, a name header and a quota. */
export const TRUSTED_ISSUER = 'gatehouse, trusted issuer and quota';

/** A server and the tokens for its requests. */
export interface Candidate {
  readonly name: string;
  readonly front: BenchServer;
  readonly tokens: string;
  /** Tokens that are used once each are in the files `<uncached>-<n>`. */
  readonly uncached?: string;
  readonly truncateLog?: () => void;
}

export const toCandidate = (name: string, gateway: BenchGateway): Candidate => ({
  name,
  front: gateway,
  tokens: gateway.folder.file('tokens'),
  uncached: gateway.folder.file('cold'),
  truncateLog: () => gateway.truncateLog(),
});

export const createLoadRun = ({ front, tokens }: Candidate, overrides: Partial<LoadRun> = {}): LoadRun => ({
  port: front.port,
  pids: front.pids,
  tokens,
  path: '/files/1k',
  ...overrides,
});

export const createCase = (candidate: Candidate, overrides?: Partial<LoadRun>, name = candidate.name): Case => ({
  name,
  createRun: () => createLoadRun(candidate, overrides),
  ...(candidate.truncateLog && { truncateLog: candidate.truncateLog }),
});

export interface CandidateOptions {
  readonly environment: BenchEnvironment;
  readonly upstream: number;
  /** The same upstream over TLS. */
  readonly tlsUpstream: number;
  readonly thirdPartyTokens: ThirdPartyTokens;
  readonly startGateway: (options?: Partial<BenchGatewayOptions>) => Promise<BenchGateway>;
  /** How many tokens are used once each. */
  readonly cold: NonNullable<BenchGatewayOptions['cold']>;
  /** The cores for two workers. */
  readonly pairCores: number | string;
  readonly isWanted: (name: string) => boolean;
  readonly log: (text: string) => void;
}

/** Starts gatehouse's variants and the servers it is compared with. Skips those that are not wanted or not available. */
export async function startCandidates(main: BenchGateway, options: CandidateOptions): Promise<Candidate[]> {
  const { environment, upstream, thirdPartyTokens, startGateway, log } = options;
  const withTokens =
    (algorithm: Algorithm, start: () => Promise<BenchServer>) =>
    async (name: string): Promise<Candidate> => ({
      name,
      front: await start(),
      tokens: thirdPartyTokens.tokens(algorithm),
    });
  // Servers that check no token get one of the same size.
  const withAnyToken = (start: () => Promise<BenchServer>) => withTokens('ES256', start);
  const startBuilt = (program: Parameters<typeof buildGo>[0], start: typeof startOathkeeper) =>
    withTokens('RS256', async () => {
      const file = buildGo(program);
      return start(environment, file, upstream, thirdPartyTokens);
    });

  const starts: Record<string, (name: string) => Promise<Candidate>> = {
    gatehouse: async (name) => toCandidate(name, main),
    'gatehouse, TLS upstream': async (name) => {
      const tlsUpstream = { port: options.tlsUpstream, ca: `${environment.folder}/ca.pem` };
      return toCandidate(name, await startGateway({ tlsUpstream }));
    },
    [ES256_KEYS]: async (name) => toCandidate(name, await startGateway({ keyAlgorithm: 'ES256', cold: options.cold })),
    [TRUSTED_ISSUER]: async (name) => {
      const { issuer, audience, jwksFile } = thirdPartyTokens;
      const gateway = await startGateway({ trustedIssuer: { issuer, audience, jwksFile } });
      const uncached = `${environment.folder}/cold`;
      for (let index = 0; index < options.cold.files; index += 1)
        thirdPartyTokens.writeTokens('ES256', `${uncached}-${index}`, options.cold.each);
      return { ...toCandidate(name, gateway), tokens: thirdPartyTokens.tokens('ES256'), uncached };
    },
    'gatehouse, 2 workers': async (name) =>
      toCandidate(name, await startGateway({ workers: 2, core: options.pairCores })),
    nginx: withAnyToken(() => startNginxPlain(environment, upstream)),
    'nginx, TLS upstream': withAnyToken(() => startNginxTlsUpstream(environment, options.tlsUpstream)),
    'nginx + auth_request to return 204': withAnyToken(() => startNginxAuthRequest(environment, upstream, true)),
    'nginx + auth_request to return 204, a connection each': withAnyToken(() =>
      startNginxAuthRequest(environment, upstream, false),
    ),
    'nginx + auth_request to gatehouse': async (name) => {
      const gateway = await startGateway({ isForwardAuth: true });
      const front = await startNginxWithGatehouse(environment, upstream, gateway, gateway.folder.file('ca.pem'));
      return { ...toCandidate(name, gateway), front };
    },
    HAProxy: withAnyToken(() => startHaproxy(environment, upstream)),
    ...Object.fromEntries(
      ALGORITHMS.map((algorithm) => [
        `HAProxy, JWT ${algorithm}`,
        withTokens(algorithm, () => startHaproxy(environment, upstream, { algorithm, tokens: thirdPartyTokens })),
      ]),
    ),
    'http-proxy-3': withAnyToken(() => startHttpProxy3(environment, upstream)),
    'oauth2-proxy, JWT RS256': startBuilt('oauth2-proxy', startOauth2Proxy),
    'Oathkeeper, JWT RS256': startBuilt('oathkeeper', startOathkeeper),
  };

  const started: Candidate[] = [];
  for (const [name, start] of Object.entries(starts)) {
    if (!options.isWanted(name)) continue;
    log(`starting ${name}`);
    try {
      started.push(await start(name));
    } catch (error) {
      log(`skipped: ${name}: ${(error as Error).message}`);
    }
  }
  return started;
}
