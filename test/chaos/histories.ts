import { hash } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { confirm, type DeviceRequest } from '../../src/domain/device-request.ts';
import { connectRedis } from '../../src/stores/redis/client.ts';
import { createRedisRecords } from '../../src/stores/redis/records.ts';
import { openSealingKeys } from '../../src/tokens/keyring.ts';
import { readKeyringFile } from '../../src/tokens/keyring-file.ts';
import { DEVICE_GRANT } from '../support/device-client.ts';
import type { Reply } from '../support/https-client.ts';
import { testAuthenticator } from '../support/record-keys.ts';
import { until } from '../support/serve-process.ts';
import { ALICE } from '../support/test-gateway.ts';
import { type Fleet, isInvalidGrant, isTemporary, type Replica } from './fleet.ts';
import type { Operation } from './linearizability.ts';
import { pick } from './support.ts';

/** One grant of a history, and the tokens that clients have received for it. */
export interface Subject {
  readonly id: string;
  /** Set for device grants. */
  readonly deviceCode?: string;
  /** Refresh tokens by generation. */
  readonly tokens: Map<number, string>;
  readonly accessTokens: string[];
}

export interface History {
  readonly subjects: readonly Subject[];
  readonly operations: Operation[];
  /** Responses that are neither success, refusal nor a temporary error. */
  readonly unexpected: string[];
}

const CLIENT = 'report-runner';
const getGeneration = (token: string): number => Number(token.split('.')[2]);
const getGrantId = (token: string): string => token.split('.')[1] ?? '';

/** Creates the grants of one history: certificate grants, and confirmed device codes to be redeemed. */
export async function createSubjects(
  fleet: Fleet,
  redis: number,
  { certificates, devices }: { readonly certificates: number; readonly devices: number },
): Promise<readonly Subject[]> {
  const created: Subject[] = [];
  for (let index = 0; index < certificates; index += 1) {
    const { caller } = fleet.replicas[index % fleet.replicas.length] as Replica;
    // The deadline of the operations is too short for the set-up on a busy machine.
    const grant = await until('a grant', () => caller.grant().catch(() => undefined));
    created.push({
      id: getGrantId(grant.refresh_token),
      tokens: new Map([[1, grant.refresh_token]]),
      accessTokens: [grant.access_token],
    });
  }
  const client = await connectRedis({
    url: `redis://127.0.0.1:${redis}/0`,
    name: 'test',
    commandTimeout: 10_000,
  });
  try {
    const records = createRedisRecords<DeviceRequest>({
      client,
      prefix: 'gh',
      kind: 'devices',
      authenticator: testAuthenticator({}, openSealingKeys(readKeyringFile(fleet.folder.file('keys.json')))),
    });
    for (let index = 0; index < devices; index += 1) {
      const { caller } = fleet.replicas[index % fleet.replicas.length] as Replica;
      const codes = await until('device codes are issued', async () => {
        const response = await caller
          .post('/Authorize/Device', { client_id: CLIENT, scope: 'files:read' })
          .catch(() => undefined);
        return response?.status === 200 && response.json;
      });
      const deviceCode = String(codes['device_code']);
      const id = hash('sha256', deviceCode, 'base64url').slice(0, 22);
      // Confirm in the store; the pages have their own tests.
      await until('the request is confirmed', async () => {
        const found = await records.read(id);
        if (found === undefined) return false;
        const confirmed = confirm(found.record, ALICE, found.now);
        return (
          confirmed.ok &&
          (await records.replace(id, found.version, confirmed.value, found.record.expires + 600)) === 'replaced'
        );
      });
      created.push({ id, deviceCode, tokens: new Map(), accessTokens: [] });
    }
  } finally {
    client.close();
  }
  return created;
}

/** Runs one operation and records its outcome. */
async function perform(
  history: History,
  subject: Subject,
  replica: Replica,
  operation: Pick<Operation, 'kind' | 'presented'>,
  send: (caller: Replica['caller']) => Promise<Reply>,
): Promise<void> {
  const seen = { ...operation, grant: subject.id, at: `${replica.name}.${replica.startCount}` };
  const calledAt = performance.now();
  const response = await send(replica.caller).catch(() => undefined);
  const respondedAt = performance.now();
  const record = (more: Pick<Operation, 'outcome' | 'issued' | 'token'>): void => {
    history.operations.push({
      ...seen,
      calledAt,
      ...(more.outcome !== 'unknown' && { respondedAt }),
      ...more,
    });
  };
  if (operation.kind === 'validate') {
    // A 503 says nothing about the grant.
    if (response === undefined || response.status === 503) return;
    if (response.status === 200 || response.status === 401)
      return record({ outcome: response.status === 200 ? 'ok' : 'refused' });
  } else {
    if (response === undefined || isTemporary(response)) return record({ outcome: 'unknown' });
    if (operation.kind === 'revoke' && response.status === 200) return record({ outcome: 'ok' });
    if (response.status === 200) {
      const token = String(response.json['refresh_token']);
      subject.tokens.set(getGeneration(token), token);
      subject.accessTokens.push(String(response.json['access_token']));
      return record({ outcome: 'ok', issued: getGeneration(token), token });
    }
    if (isInvalidGrant(response)) return record({ outcome: 'refused' });
  }
  history.unexpected.push(`${operation.kind}: ${response.status} ${JSON.stringify(response.json)}`);
}

const redeem = (history: History, subject: Subject, replica: Replica): Promise<void> =>
  perform(history, subject, replica, { kind: 'redeem' }, (caller) =>
    caller.post('/Authorize/Token', {
      client_id: CLIENT,
      grant_type: DEVICE_GRANT,
      device_code: subject.deviceCode,
    }),
  );
const refresh = (history: History, subject: Subject, replica: Replica, presented: number): Promise<void> =>
  perform(history, subject, replica, { kind: 'refresh', presented }, (caller) =>
    caller.refresh(subject.tokens.get(presented) ?? ''),
  );
const validate = (history: History, subject: Subject, replica: Replica, token: string): Promise<void> =>
  perform(history, subject, replica, { kind: 'validate' }, (caller) => caller.getWithToken('/whoami', token));
const revoke = (history: History, subject: Subject, replica: Replica, token: string): Promise<void> =>
  perform(history, subject, replica, { kind: 'revoke' }, (caller) => caller.revoke(token));

/** A random client action: mostly honest, sometimes that of an attacker or a faulty client. */
async function runStep(history: History, fleet: Fleet, random: () => number): Promise<void> {
  const subject = pick(random, history.subjects);
  const up = fleet.replicas.filter((replica) => replica.isUp);
  const replica = pick(random, up);
  const accessToken = subject.accessTokens[Math.floor(random() * subject.accessTokens.length)];
  const newest = Math.max(...subject.tokens.keys());
  const dice = random();
  if (accessToken === undefined || (subject.deviceCode !== undefined && dice < 0.08))
    return redeem(history, subject, replica);
  if (dice < 0.5) return validate(history, subject, replica, accessToken);
  if (dice < 0.53) return revoke(history, subject, replica, accessToken);
  const generationsBack = dice < 0.54 ? 2 : dice < 0.62 ? 1 : 0;
  const presented = subject.tokens.has(newest - generationsBack) ? newest - generationsBack : newest;
  return refresh(history, subject, replica, presented);
}

export interface RunOptions {
  readonly fleet: Fleet;
  readonly subjects: readonly Subject[];
  /** A random number generator for each client. */
  readonly random: (client: number) => () => number;
  readonly operations: number;
  readonly clients: number;
  /** Injects faults; its argument returns the number of started operations. */
  readonly faults: (startedCount: () => number) => Promise<void>;
}

/** Runs concurrent clients on all replicas under faults, and rechecks every grant after recovery. */
export async function runHistory(options: RunOptions): Promise<History> {
  const { fleet, operations, clients, faults } = options;
  const history: History = { subjects: options.subjects, operations: [], unexpected: [] };
  let startedCount = 0;
  const injecting = faults(() => startedCount);
  await Promise.all(
    Array.from({ length: clients }, async (_, client) => {
      const random = options.random(client);
      while (startedCount < operations) {
        startedCount += 1;
        await runStep(history, fleet, random);
        await pause(random() * 12);
      }
    }),
  );
  await injecting;
  await fleet.allReady();
  await Promise.all(
    history.subjects.map(async (subject) => {
      for (const replica of fleet.replicas) await recheck(history, subject, replica);
    }),
  );
  return history;
}

async function recheck(history: History, subject: Subject, replica: Replica): Promise<void> {
  if (subject.deviceCode !== undefined) await redeem(history, subject, replica);
  const accessToken = subject.accessTokens.at(-1);
  if (accessToken === undefined) return;
  await validate(history, subject, replica, accessToken);
  await refresh(history, subject, replica, Math.max(...subject.tokens.keys()));
}
