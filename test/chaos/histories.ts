import { hash } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { confirm, type DeviceRequest } from '../../src/domain/device-request.ts';
import { connectRedis } from '../../src/stores/redis-client.ts';
import { redisRecords } from '../../src/stores/redis-records.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { readKeyringFile } from '../../src/tokens/keyring-file.ts';
import { DEVICE_GRANT } from '../support/device-steps.ts';
import { ALICE } from '../support/house.ts';
import type { Reply } from '../support/https-client.ts';
import { anAuthenticator } from '../support/record-keys.ts';
import { until } from '../support/serve-process.ts';
import { type Fleet, isInvalidGrant, isTemporary, type Replica } from './fleet.ts';
import { pick } from './form.ts';
import type { Operation } from './linearizability.ts';

/** One grant of a history: what clients were told about it so far. */
export interface Subject {
  readonly id: string;
  /** Of a device grant, until and after it is redeemed. */
  readonly deviceCode?: string;
  /** Refresh tokens by generation. */
  readonly tokens: Map<number, string>;
  readonly accessTokens: string[];
}

export interface History {
  readonly subjects: readonly Subject[];
  readonly operations: Operation[];
  /** Answers that are neither yes, no nor "try again". */
  readonly strange: string[];
}

const CLIENT = 'report-runner';
const generationOf = (token: string): number => Number(token.split('.')[2]);
const idOf = (token: string): string => token.split('.')[1] ?? '';

/** Grants for one history: some by certificate, some waiting to be redeemed. */
export async function subjects(
  fleet: Fleet,
  redis: number,
  { certificates, devices }: { readonly certificates: number; readonly devices: number },
): Promise<readonly Subject[]> {
  const made: Subject[] = [];
  for (let index = 0; index < certificates; index += 1) {
    const grant = await (fleet.replicas[index % fleet.replicas.length] as Replica).caller.grant();
    made.push({
      id: idOf(grant.refresh_token),
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
    const records = redisRecords<DeviceRequest>({
      client,
      prefix: 'gh',
      kind: 'd',
      authenticator: anAuthenticator({}, openKeyring(readKeyringFile(fleet.folder.file('keys.json')))),
    });
    for (let index = 0; index < devices; index += 1) {
      const { caller } = fleet.replicas[index % fleet.replicas.length] as Replica;
      const codes = await until('device codes', async () => {
        const answer = await caller
          .post('/Authorize/Device', { client_id: CLIENT, scope: 'files:read' })
          .catch(() => undefined);
        return answer?.status === 200 && answer.json;
      });
      const deviceCode = String(codes['device_code']);
      const id = hash('sha256', deviceCode, 'base64url').slice(0, 22);
      // A person says yes; the pages have their own tests.
      await until('the request is confirmed', async () => {
        const found = await records.read(id);
        if (found === undefined) return false;
        const yes = confirm(found.record, ALICE, found.now);
        return (
          yes.ok &&
          (await records.replace(id, found.version, yes.value, found.record.expires + 600)) === 'replaced'
        );
      });
      made.push({ id, deviceCode, tokens: new Map(), accessTokens: [] });
    }
  } finally {
    client.close();
  }
  return made;
}

/** Runs one operation and writes down what was seen. */
async function perform(
  history: History,
  subject: Subject,
  replica: Replica,
  operation: Pick<Operation, 'kind' | 'shown'>,
  send: (caller: Replica['caller']) => Promise<Reply>,
): Promise<void> {
  const seen = { ...operation, grant: subject.id, at: `${replica.name}.${replica.life}` };
  const called = performance.now();
  const answer = await send(replica.caller).catch(() => undefined);
  const answered = performance.now();
  const note = (more: Pick<Operation, 'outcome' | 'gave' | 'token'>): void => {
    history.operations.push({ ...seen, called, ...(more.outcome !== 'unknown' && { answered }), ...more });
  };
  if (operation.kind === 'validate') {
    // "We cannot tell now" says nothing about the grant.
    if (answer === undefined || answer.status === 503) return;
    if (answer.status === 200 || answer.status === 401)
      return note({ outcome: answer.status === 200 ? 'ok' : 'refused' });
  } else {
    if (answer === undefined || isTemporary(answer)) return note({ outcome: 'unknown' });
    if (operation.kind === 'revoke' && answer.status === 200) return note({ outcome: 'ok' });
    if (answer.status === 200) {
      const token = String(answer.json['refresh_token']);
      subject.tokens.set(generationOf(token), token);
      subject.accessTokens.push(String(answer.json['access_token']));
      return note({ outcome: 'ok', gave: generationOf(token), token });
    }
    if (isInvalidGrant(answer)) return note({ outcome: 'refused' });
  }
  history.strange.push(`${operation.kind}: ${answer.status} ${JSON.stringify(answer.json)}`);
}

const redeem = (history: History, subject: Subject, replica: Replica): Promise<void> =>
  perform(history, subject, replica, { kind: 'redeem' }, (caller) =>
    caller.post('/Authorize/Token', {
      client_id: CLIENT,
      grant_type: DEVICE_GRANT,
      device_code: subject.deviceCode,
    }),
  );
const refresh = (history: History, subject: Subject, replica: Replica, shown: number): Promise<void> =>
  perform(history, subject, replica, { kind: 'refresh', shown }, (caller) =>
    caller.refresh(subject.tokens.get(shown) ?? ''),
  );
const validate = (history: History, subject: Subject, replica: Replica, token: string): Promise<void> =>
  perform(history, subject, replica, { kind: 'validate' }, (caller) => caller.bearer('/whoami', token));
const revoke = (history: History, subject: Subject, replica: Replica, token: string): Promise<void> =>
  perform(history, subject, replica, { kind: 'revoke' }, (caller) => caller.revoke(token));

/** What clients do: mostly what honest ones do, now and then what a thief or a confused one does. */
async function oneStep(history: History, fleet: Fleet, random: () => number): Promise<void> {
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
  const back = dice < 0.54 ? 2 : dice < 0.62 ? 1 : 0;
  const shown = subject.tokens.has(newest - back) ? newest - back : newest;
  return refresh(history, subject, replica, shown);
}

export interface RunOptions {
  readonly fleet: Fleet;
  readonly subjects: readonly Subject[];
  /** A course of chance for each client. */
  readonly random: (client: number) => () => number;
  readonly operations: number;
  readonly clients: number;
  /** Called when so many operations were begun: what goes wrong meanwhile. */
  readonly trouble: (begun: () => number) => Promise<void>;
}

/** Several clients at once on all replicas while things go wrong; at the end, when all is well, everybody looks again. */
export async function runHistory(options: RunOptions): Promise<History> {
  const { fleet, operations, clients, trouble } = options;
  const history: History = { subjects: options.subjects, operations: [], strange: [] };
  let begun = 0;
  const troubling = trouble(() => begun);
  await Promise.all(
    Array.from({ length: clients }, async (_, client) => {
      const random = options.random(client);
      while (begun < operations) {
        begun += 1;
        await oneStep(history, fleet, random);
        await pause(random() * 12);
      }
    }),
  );
  await troubling;
  await fleet.allReady();
  await Promise.all(
    history.subjects.map(async (subject) => {
      for (const replica of fleet.replicas) await lookAgain(history, subject, replica);
    }),
  );
  return history;
}

async function lookAgain(history: History, subject: Subject, replica: Replica): Promise<void> {
  if (subject.deviceCode !== undefined) await redeem(history, subject, replica);
  const accessToken = subject.accessTokens.at(-1);
  if (accessToken === undefined) return;
  await validate(history, subject, replica, accessToken);
  await refresh(history, subject, replica, Math.max(...subject.tokens.keys()));
}
