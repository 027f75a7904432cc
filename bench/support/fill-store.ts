import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { getGrantRecordExpiry } from '../../src/domain/grant.ts';
import { createGrant, randomGrantId } from '../../src/grants/issue.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { ALICE } from '../../test/support/test-gateway.ts';
import { fillStore } from './folder.ts';
import { openGrantDeps } from './grant-deps.ts';

/** The contents of a gateway's store before it starts. */
export interface StoreContents {
  readonly grants: number;
  readonly revocations: number;
  /** Access tokens of grants in the store, used in rotation. */
  readonly tokens: number;
  /** Files with access tokens that are used once. */
  readonly cold?: { readonly files: number; readonly each: number };
}

const BATCH_SIZE = 4_096;
const DAY = 86_400;

/** Fills the store through its own API, and writes access tokens to `tokens` and `cold-<n>` in the folder. */
export async function seedStore(folder: string, contents: StoreContents): Promise<void> {
  if (contents.grants > 0) await fillStore(folder, contents.grants, 0);
  const logger = createLogger({ level: 'error', format: 'json', write: () => {} });
  const { deps, store } = await openGrantDeps(folder, logger);
  const integration = deps.integrations.get('report-runner');
  if (integration === undefined) throw new Error('report-runner is missing in the settings');

  const token = async (keep: boolean): Promise<string> => {
    const now = deps.now();
    const scope = 'reports:read,write;files:read';
    const grant = createGrant(deps, {
      id: randomGrantId(),
      integration,
      identity: ALICE,
      grantType: 'certificate',
      scope,
      now,
    });
    if (keep) await store.grants.create(grant.id, grant, getGrantRecordExpiry(grant));
    return deps.tokenIssuer.issueTokens(grant, now).accessToken;
  };
  const write = async (name: string, count: number, keep: boolean): Promise<void> => {
    const tokens: string[] = [];
    for (let index = 0; index < count; index += 1) tokens.push(await token(keep));
    writeFileSync(join(folder, name), `${tokens.join('\n')}\n`, { mode: 0o600 });
  };
  await write('tokens', contents.tokens, true);
  for (let file = 0; file < (contents.cold?.files ?? 0); file += 1)
    await write(`cold-${file}`, contents.cold?.each ?? 0, false);

  const keepUntil = deps.now() + 30 * DAY;
  for (let done = 0; done < contents.revocations; done += BATCH_SIZE)
    await Promise.all(
      Array.from({ length: Math.min(BATCH_SIZE, contents.revocations - done) }, () =>
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
