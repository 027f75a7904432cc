import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import type { TokenGrant } from '../support/https-client.ts';
import { startRedis } from '../support/redis-server.ts';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
} from '../support/serve-process.ts';

interface Replica {
  readonly server: ServeProcess;
  /** With the certificate of alice. */
  readonly client: Client;
}

const SELECTIONS = [{ name: 'alice' }, { client: 'report-runner' }] as const;

/** Starts processes that share a store, which all share one folder. */
export async function startReplicas(
  count: number,
  change: (settings: SettingsInput) => SettingsInput,
  set: readonly string[] = [],
): Promise<{ readonly folder: ServeFolder; readonly replicas: readonly Replica[] }> {
  const folder = await createServeFolder((settings) =>
    change({ ...settings, keys: { file: 'keys.json' }, log: { level: 'info', access: { enabled: false } } }),
  );
  onTestFinished(() => folder.remove());
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const replicas = [];
  for (let started = 0; started < count; started += 1) {
    const server = await startServe(folder, { set });
    const client = connect(folder, server.port, folder.alice);
    onTestFinished(() => client.close());
    replicas.push({ server, client });
  }
  return { folder, replicas };
}

export async function startReplicasOnRedis(count: number, change = (settings: SettingsInput) => settings) {
  const redis = await startRedis();
  onTestFinished(() => redis.stop());
  return startReplicas(count, (settings) => change({ ...settings, store: { type: 'redis', url: redis.url } }));
}

export const withOpaqueTokens = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  tokens: { ...settings.tokens, format: 'opaque' },
});

const revoke = async (folder: ServeFolder, { adminPort }: ServeProcess, selection: object): Promise<void> => {
  const token = readFileSync(join(folder.path, 'data/admin-token'), 'utf8').trim();
  const response = await fetch(`http://127.0.0.1:${adminPort}/admin/v1/revoke`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(selection),
  });
  expect(response.status).toBe(200);
};

/**
 * Revokes everything of a user or a client and issues a new grant at once, `rounds` times, each step on the next replica. No earlier grant may
 * be accepted after a revocation, and no later one may be refused.
 */
export async function revokeAndIssue(
  { folder, replicas }: Awaited<ReturnType<typeof startReplicas>>,
  rounds: number,
): Promise<void> {
  let steps = 0;
  const next = (): Replica => {
    steps += 1;
    return replicas[steps % replicas.length] as Replica;
  };
  const isAcceptedBy = async (token: string): Promise<readonly boolean[]> =>
    Promise.all(replicas.map(({ client }) => client.isAccepted(token)));
  const counts = { killed: 0, survived: 0, sameSecond: 0 };
  let earlier = await next().client.grant();
  for (let round = 0; round < rounds; round += 1) {
    // The token of a refresh is newer than its grant.
    const refreshed = (await next().client.refresh(earlier.refresh_token)).json as unknown as TokenGrant;
    await revoke(folder, next().server, SELECTIONS[round % 2] ?? {});
    const revokedAt = Math.floor(Date.now() / 1_000);
    const later = await next().client.grant();
    if (Math.floor(Date.now() / 1_000) === revokedAt) counts.sameSecond += 1;
    for (const { access_token: token } of [earlier, refreshed])
      if ((await isAcceptedBy(token)).includes(true)) counts.survived += 1;
    if ((await next().client.refresh(refreshed.refresh_token)).status !== 400) counts.survived += 1;
    if ((await isAcceptedBy(later.access_token)).includes(false)) counts.killed += 1;
    const renewed = await next().client.refresh(later.refresh_token);
    if (renewed.status !== 200) counts.killed += 1;
    earlier = (renewed.status === 200 ? renewed.json : later) as unknown as TokenGrant;
  }
  expect(counts).toMatchObject({ killed: 0, survived: 0 });
  // Otherwise this has tested nothing.
  expect(counts.sameSecond).toBeGreaterThan(0);
}
