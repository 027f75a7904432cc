import type { DeviceRequest } from '../../domain/device-request.ts';
import type { Epoch, Grant } from '../../domain/grant.ts';
import { Fault } from '../../ports/fault.ts';
import type { RecordStore, Revocation } from '../../ports/store.ts';
import type { ExportedRecord } from '../embedded/backup.ts';
import { batches } from './batch.ts';
import type { RedisStore } from './store.ts';

export interface ImportResult {
  readonly grants: number;
  readonly devices: number;
  readonly userCodes: number;
  readonly revocations: number;
  /** How many of these records existed already, in the same or a later state. */
  readonly present: number;
}

const CONCURRENCY = 256;
const REVOCATION_BATCH = 100;
const RECORDS_PER_REPORT = 256;
const MAX_ATTEMPTS = 64;

/** Called before `importRecords`, so that an interrupted import never accepts revoked tokens. */
export async function importRevocations(
  store: Pick<RedisStore, 'revocations'>,
  records: AsyncIterable<ExportedRecord>,
  onImported: (records: number) => void = () => {},
): Promise<number> {
  let count = 0;
  for await (const batch of batches(records, REVOCATION_BATCH)) {
    await store.revocations.announceImported(batch.map(({ record }) => record as Revocation));
    count += batch.length;
    onImported(count);
  }
  return count;
}

/** Creates records that do not exist, and replaces earlier states. Idempotent. */
export async function importRecords(
  store: Pick<RedisStore, 'grants' | 'devices' | 'userCodes'>,
  records: AsyncIterable<ExportedRecord>,
  onImported: (records: number) => void = () => {},
): Promise<Omit<ImportResult, 'revocations'>> {
  const counts = { grants: 0, devices: 0, userCodes: 0, present: 0 };
  let done = 0;
  const put = async ({ kind, id, record, keepUntil }: ExportedRecord): Promise<void> => {
    if (kind !== 'grants' && kind !== 'devices' && kind !== 'userCodes') return;
    const isNew = await putOne(store[kind], id, record, keepUntil, IS_LATER[kind]);
    counts[kind] += 1;
    if (!isNew) counts.present += 1;
    done += 1;
    if (done % RECORDS_PER_REPORT === 0) onImported(done);
  };
  const source = records[Symbol.asyncIterator]();
  const importLoop = async (): Promise<void> => {
    for (let next = await source.next(); next.done !== true; next = await source.next()) await put(next.value);
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, importLoop));
  return counts;
}

/** True when the record was stored; false when the same or a later state exists. */
async function putOne(
  records: RecordStore<unknown>,
  id: string,
  record: unknown,
  keepUntil: Epoch,
  isLater: (record: never, than: never) => boolean,
): Promise<boolean> {
  let refused = 0;
  for (let attempts = 0; attempts < MAX_ATTEMPTS; attempts += 1) {
    if ((await records.create(id, record, keepUntil)) === 'created') return true;
    const found = await records.read(id);
    if (found === undefined) {
      refused += 1;
      continue;
    }
    if (!isLater(record as never, found.record as never)) return false;
    if ((await records.replace(id, found.version, record, keepUntil)) === 'replaced') return true;
  }
  if (refused === MAX_ATTEMPTS)
    throw new Fault(
      'store_record_unreadable',
      `the record ${id} in Redis fails authentication; find out who wrote it, delete it and retry`,
    );
  throw new Fault('overloaded', 'a record keeps changing; is another process using this Redis?');
}

const IS_LATER: Readonly<Record<'grants' | 'devices' | 'userCodes', (record: never, than: never) => boolean>> = {
  /** Generations only increase, and an ended grant stays ended. */
  grants: (grant: Grant, than: Grant) =>
    than.revokedAt === undefined && (grant.revokedAt !== undefined || grant.generation > than.generation),
  devices: (request: DeviceRequest, than: DeviceRequest) =>
    than.state === 'pending' && (request.state !== 'pending' || request.failedSignIns > than.failedSignIns),
  userCodes: () => false,
};
