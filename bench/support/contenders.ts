import { haproxy, httpProxy3, oathkeeper, oauth2Proxy } from './foreign-fronts.ts';
import { ALGORITHMS, type Algorithm, type ForeignTokens } from './foreign-tokens.ts';
import type { Front, Stage } from './fronts.ts';
import type { House, HouseOptions } from './house.ts';
import { nginxAuthRequest, nginxPlain, nginxWithGatehouse } from './nginx.ts';
import type { Case } from './rounds.ts';
import { buildGo } from './tools.ts';
import type { Errand } from './wrk.ts';

/** A server with the tokens it is asked with. */
export interface Contender {
  readonly name: string;
  readonly front: Front;
  readonly tokens: string;
  readonly tidy?: () => void;
}

export const asContender = (name: string, opened: House): Contender => ({
  name,
  front: opened,
  tokens: opened.folder.file('tokens'),
  tidy: () => opened.tidy(),
});

export const errandOf = ({ front, tokens }: Contender, asked: Partial<Errand> = {}): Errand => ({
  port: front.port,
  pids: front.pids,
  tokens,
  path: '/files/1k',
  ...asked,
});

export const caseOf = (contender: Contender, asked?: Partial<Errand>, name = contender.name): Case => ({
  name,
  errand: () => errandOf(contender, asked),
  ...(contender.tidy && { tidy: contender.tidy }),
});

export interface ContenderOptions {
  readonly stage: Stage;
  readonly upstream: number;
  readonly foreign: ForeignTokens;
  readonly house: (options?: Partial<HouseOptions>) => Promise<House>;
  /** Where two workers run. */
  readonly pairCores: number | string;
  readonly isWanted: (name: string) => boolean;
  readonly say: (text: string) => void;
}

/** Starts, beside one gatehouse, all it is compared with. What was not asked for or cannot be had is left out. */
export async function startContenders(main: House, options: ContenderOptions): Promise<Contender[]> {
  const { stage, upstream, foreign, house, say } = options;
  const withTokens =
    (algorithm: Algorithm, start: () => Promise<Front>) =>
    async (name: string): Promise<Contender> => ({
      name,
      front: await start(),
      tokens: foreign.tokens(algorithm),
    });
  // Those that ask for no token get one of the same size.
  const openly = (start: () => Promise<Front>) => withTokens('ES256', start);
  const built = (program: Parameters<typeof buildGo>[0], start: typeof oathkeeper) =>
    withTokens('RS256', async () => {
      const file = buildGo(program);
      return start(stage, file, upstream, foreign);
    });

  const starts: Record<string, (name: string) => Promise<Contender>> = {
    gatehouse: async (name) => asContender(name, main),
    'gatehouse, full lane': async (name) => asContender(name, await house({ fastLane: false })),
    'gatehouse, 2 workers': async (name) =>
      asContender(name, await house({ workers: 2, core: options.pairCores })),
    nginx: openly(() => nginxPlain(stage, upstream)),
    'nginx + auth_request to return 204': openly(() => nginxAuthRequest(stage, upstream, true)),
    'nginx + auth_request to return 204, a connection each': openly(() =>
      nginxAuthRequest(stage, upstream, false),
    ),
    'nginx + auth_request to gatehouse': async (name) => {
      const asked = await house({ asked: true });
      const front = await nginxWithGatehouse(stage, upstream, asked, asked.folder.file('ca.pem'));
      return { ...asContender(name, asked), front };
    },
    HAProxy: openly(() => haproxy(stage, upstream)),
    ...Object.fromEntries(
      ALGORITHMS.map((algorithm) => [
        `HAProxy, JWT ${algorithm}`,
        withTokens(algorithm, () => haproxy(stage, upstream, { algorithm, tokens: foreign })),
      ]),
    ),
    'http-proxy-3': openly(() => httpProxy3(stage, upstream)),
    'oauth2-proxy, JWT RS256': built('oauth2-proxy', oauth2Proxy),
    'Oathkeeper, JWT RS256': built('oathkeeper', oathkeeper),
  };

  const started: Contender[] = [];
  for (const [name, start] of Object.entries(starts)) {
    if (!options.isWanted(name)) continue;
    say(`starting ${name}`);
    try {
      started.push(await start(name));
    } catch (error) {
      say(`skipped: ${name}: ${(error as Error).message}`);
    }
  }
  return started;
}
