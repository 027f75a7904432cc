import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import type { GrantIndex } from './grant-index.ts';
import type { RecordStore } from './record-store.ts';
import type { RevocationLog } from './revocation-log.ts';
import type { SharedLimits } from './shared-limits.ts';

/** Everything that outlives the process and is shared by workers and replicas. */
export interface Store {
  readonly grants: RecordStore<Grant>;
  /** Which grants there are; kept in step with `grants` by the store itself. */
  readonly grantIndex: GrantIndex;
  readonly devices: RecordStore<DeviceRequest>;
  /** Which device request a typed code stands for, under a keyed digest of the code. */
  readonly userCodes: RecordStore<UserCodeEntry>;
  /** Facts about the store itself, such as the fingerprints of the keys it was written under. */
  readonly notes: RecordStore<Readonly<Record<string, string>>>;
  readonly revocations: RevocationLog;
  /** Counts shared with whoever else uses this store, where it keeps any. */
  readonly limits?: SharedLimits;
  /** No grant and no device request has ever been kept here. */
  isEmpty(): Promise<boolean>;
  /** The store's clock, where it has one of its own. */
  time?(): Epoch;
  /** Seconds since all that was revoked anywhere was surely known here; left out, it is known at once. */
  revocationLag?(): number;
  /** Resolves when all that was read before is kept as surely as what is written here. */
  settled(): Promise<void>;
  /** Resolves when the store can be read and written; throws a `Fault` that says what is wrong. */
  probe(): Promise<void>;
  close(): Promise<void>;
}

export interface UserCodeEntry {
  readonly requestId: string;
}

export const KEEP_FOREVER: Epoch = Number.MAX_SAFE_INTEGER;

/** Notes whose ids begin so end by themselves: a store that has lost them is not told again. */
export const PASSING_NOTE = 'passing-';

/** Notes about keys and migrations. They are read before the keys are, so they have no MAC, and they authorise nothing. */
export const KEYS_NOTE = 'keys';
export const MOVE_NOTE = 'move';
export const PLAIN_NOTES: ReadonlySet<string> = new Set([KEYS_NOTE, MOVE_NOTE]);
