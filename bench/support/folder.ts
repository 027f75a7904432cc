import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { getGrantRecordExpiry } from '../../src/domain/grant.ts';
import { createGrant, randomGrantId } from '../../src/grants/issue.ts';
import { createLogger } from '../../src/observability/logger.ts';
import type { SigningAlgorithm } from '../../src/tokens/keyring-file.ts';
import { createCa, issue, issueServer } from '../../test/support/pki.ts';
import { ALICE, baseSettings } from '../../test/support/test-gateway.ts';
import { openGrantDeps } from './grant-deps.ts';

/** A folder like that of an installation: certificates, keys, and a configuration with the defaults. */
export interface BenchFolder {
  readonly path: string;
  file(name: string): string;
  remove(): void;
}

const DAY = 86_400;

export async function createBenchFolder(
  change: (settings: SettingsInput) => SettingsInput = (settings) => settings,
  keyAlgorithm: SigningAlgorithm = 'EdDSA',
): Promise<BenchFolder> {
  const path = mkdtempSync(join(tmpdir(), 'gatehouse-bench-'));
  const ca = await createCa();
  const [server, alice] = await Promise.all([issueServer(ca), issue(ca, { commonName: 'alice' })]);
  const file = (name: string): string => join(path, name);
  const write = (name: string, text: string): void => writeFileSync(file(name), text, { mode: 0o600 });
  write('ca.pem', ca.pem);
  write('server.pem', server.pem);
  write('server-key.pem', server.keyPem);
  write('alice.pem', alice.pem);
  write('alice-key.pem', alice.keyPem);
  write('gatehouse.yaml', stringify(change({ ...baseSettings(9), log: { level: 'info' } })));
  mkdirSync(file('data'), { mode: 0o700 });
  const main = join(import.meta.dirname, '../../src/main.ts');
  const keys = ['keys', 'new', file('data/keys.json'), '--algorithm', keyAlgorithm];
  execFileSync(process.execPath, [main, ...keys], { stdio: 'ignore' });
  return { path, file, remove: () => rmSync(path, { recursive: true, force: true }) };
}

const BATCH_SIZE = 4_096;

/**
 * Writes live grants through the store's own API, as if they had been created over the last 80 days; returns the refresh
 * tokens of an evenly spaced subset.
 */
export async function fillStore(folder: string, grants: number, tokensWanted: number): Promise<string[]> {
  const logger = createLogger({ level: 'error', format: 'json', write: () => {} });
  const { deps, store } = await openGrantDeps(folder, logger);
  const integration = deps.integrations.get('report-runner');
  if (integration === undefined) throw new Error('report-runner is missing in the settings');
  const tokens: string[] = [];
  const every = Math.max(1, Math.floor(grants / tokensWanted));
  const create = async (index: number): Promise<void> => {
    const now = Date.now() / 1_000;
    const created = createGrant(deps, {
      id: randomGrantId(),
      integration,
      identity: ALICE,
      grantType: 'certificate',
      scope: 'files:read',
      now,
    });
    const age = Math.floor(Math.random() * 80 * DAY);
    const grant = {
      ...created,
      issuedAt: created.issuedAt - age,
      refreshUntil: created.refreshUntil - age,
    };
    await store.grants.create(grant.id, grant, getGrantRecordExpiry(grant));
    if (index % every === 0 && tokens.length < tokensWanted)
      tokens.push(deps.tokenIssuer.issueTokens(grant, now).refreshToken);
  };
  for (let done = 0; done < grants; done += BATCH_SIZE)
    await Promise.all(Array.from({ length: Math.min(BATCH_SIZE, grants - done) }, (_, index) => create(done + index)));
  await store.close();
  return tokens;
}
