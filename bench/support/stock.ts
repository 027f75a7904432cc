import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { keepGrantUntil } from '../../src/domain/grant.ts';
import { firstGeneration, randomGrantId } from '../../src/grants/issue.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { ALICE } from '../../test/support/house.ts';
import { openDesk } from './desk.ts';
import { fill } from './folder.ts';

/** What a gateway of the benchmark holds before it is started. */
export interface Stock {
  readonly grants: number;
  readonly revocations: number;
  /** Access tokens of grants in the store, which take turns. */
  readonly tokens: number;
  /** Files of access tokens that are used once. */
  readonly cold?: { readonly files: number; readonly each: number };
}

const AT_ONCE = 4_096;
const DAY = 86_400;

/** Fills the store of a folder through its own API, and leaves access tokens in `tokens` and `cold-<n>` there. */
export async function stock(folder: string, wanted: Stock): Promise<void> {
  if (wanted.grants > 0) await fill(folder, wanted.grants, 0);
  const quiet = createLogger({ level: 'error', format: 'json', write: () => {} });
  const { desk, store } = await openDesk(folder, quiet);
  const integration = desk.integrations.get('report-runner');
  if (integration === undefined) throw new Error('report-runner is in the settings');

  const token = async (keep: boolean): Promise<string> => {
    const now = desk.now();
    const scope = 'reports:read,write;files:read';
    const grant = firstGeneration(desk, {
      id: randomGrantId(),
      integration,
      identity: ALICE,
      grantType: 'certificate',
      scope,
      now,
    });
    if (keep) await store.grants.create(grant.id, grant, keepGrantUntil(grant));
    return (await desk.mint.pair(grant, now)).accessToken;
  };
  const write = async (name: string, count: number, keep: boolean): Promise<void> => {
    const tokens: string[] = [];
    for (let index = 0; index < count; index += 1) tokens.push(await token(keep));
    writeFileSync(join(folder, name), `${tokens.join('\n')}\n`, { mode: 0o600 });
  };
  await write('tokens', wanted.tokens, true);
  for (let file = 0; file < (wanted.cold?.files ?? 0); file += 1)
    await write(`cold-${file}`, wanted.cold?.each ?? 0, false);

  const keepUntil = desk.now() + 30 * DAY;
  for (let done = 0; done < wanted.revocations; done += AT_ONCE)
    await Promise.all(
      Array.from({ length: Math.min(AT_ONCE, wanted.revocations - done) }, () =>
        store.revocations.announce({
          of: 'grant',
          grantId: randomGrantId(),
          belowGeneration: Number.POSITIVE_INFINITY,
          keepUntil,
        }),
      ),
    );
  await store.close();
}
