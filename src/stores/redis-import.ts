import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordStore } from '../ports/record-store.ts';
import type { Revocation } from '../ports/revocation-log.ts';
import type { UserCodeEntry } from '../ports/store.ts';
import type { ExportedRecord } from './embedded-backup.ts';
import type { RedisStore } from './redis.ts';

export interface Imported {
  readonly grants: number;
  readonly devices: number;
  readonly userCodes: number;
  readonly revocations: number;
  /** How many of these records were there already, as new or newer. */
  readonly present: number;
}

/** Records that are on their way at the same time, and revocations in one command. */
const LANES = 256;
const REVOCATIONS_AT_ONCE = 100;
const TELL_EVERY = 100_000;
const MOST_RACES = 64;

/** Revocations first: whatever follows is refused if it was revoked, also when this is interrupted. */
export async function importRevocations(
  store: Pick<RedisStore, 'revocations'>,
  records: AsyncIterable<ExportedRecord>,
): Promise<number> {
  let batch: Revocation[] = [];
  let count = 0;
  const send = async (): Promise<void> => {
    if (batch.length > 0) await store.revocations.bring(batch);
    count += batch.length;
    batch = [];
  };
  for await (const { record } of records) {
    batch.push(record as Revocation);
    if (batch.length === REVOCATIONS_AT_ONCE) await send();
  }
  await send();
  return count;
}

/** Puts each record where there is none, or an older state of it. Done again it changes nothing. */
export async function importRecords(
  store: Pick<RedisStore, 'grants' | 'devices' | 'userCodes'>,
  records: AsyncIterable<ExportedRecord>,
  onProgress: (records: number) => void,
): Promise<Omit<Imported, 'revocations'>> {
  const counts = { grants: 0, devices: 0, userCodes: 0, present: 0 };
  let done = 0;
  const put = async (one: ExportedRecord): Promise<void> => {
    const { kind, id, record, keepUntil } = one;
    let isNew = false;
    if (kind === 'grants') isNew = await putOne(store.grants, id, record as Grant, keepUntil, isNewerGrant);
    else if (kind === 'devices')
      isNew = await putOne(store.devices, id, record as DeviceRequest, keepUntil, isNewerRequest);
    else if (kind === 'userCodes')
      isNew = await putOne(store.userCodes, id, record as UserCodeEntry, keepUntil, () => false);
    else return;
    counts[kind] += 1;
    if (!isNew) counts.present += 1;
    done += 1;
    if (done % TELL_EVERY === 0) onProgress(done);
  };
  const source = records[Symbol.asyncIterator]();
  const lane = async (): Promise<void> => {
    for (let next = await source.next(); next.done !== true; next = await source.next())
      await put(next.value);
  };
  await Promise.all(Array.from({ length: LANES }, lane));
  return counts;
}

async function putOne<T>(
  records: RecordStore<T>,
  id: string,
  record: T,
  keepUntil: Epoch,
  isNewer: (record: T, than: T) => boolean,
): Promise<boolean> {
  let absent = 0;
  for (let races = 0; races < MOST_RACES; races += 1) {
    if ((await records.create(id, record, keepUntil)) === 'created') return true;
    const found = await records.read(id);
    if (found === undefined) {
      absent += 1;
      continue;
    }
    if (!isNewer(record, found.record)) return false;
    if ((await records.replace(id, found.version, record, keepUntil)) === 'replaced') return true;
  }
  if (absent === MOST_RACES)
    throw new Fault(
      'store_record_unreadable',
      `the record ${id} in Redis fails authentication; find out who wrote it, remove it and run this again`,
    );
  throw new Fault(
    'overloaded',
    'a record is being changed too often at once; is somebody else using this Redis?',
  );
}

/** A grant moves on by generations and ends once; neither goes back. */
const isNewerGrant = (grant: Grant, than: Grant): boolean =>
  than.revokedAt === undefined && (grant.revokedAt !== undefined || grant.generation > than.generation);

const isNewerRequest = (request: DeviceRequest, than: DeviceRequest): boolean =>
  than.state === 'pending' && (request.state !== 'pending' || request.failedSignIns > than.failedSignIns);
