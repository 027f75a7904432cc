import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import type { GrantIndex } from './grant-index.ts';
import type { RecordStore } from './record-store.ts';
import type { RevocationLog } from './revocation-log.ts';
import type { SharedLimits } from './shared-limits.ts';

/** The state that outlives the process and is shared by workers and replicas. */
export interface Store {
  readonly grants: RecordStore<Grant>;
  /** Updated by the store itself when `grants` change. */
  readonly grantIndex: GrantIndex;
  readonly devices: RecordStore<DeviceRequest>;
  /** The device request of a user code, by a keyed digest of the code. */
  readonly userCodes: RecordStore<UserCodeEntry>;
  readonly notes: RecordStore<Note>;
  readonly revocations: RevocationLog;
  /** Counters shared with the other processes that use this store, if it has any. */
  readonly limits?: SharedLimits;
  /** No grant and no device request was ever stored. */
  isEmpty(): Promise<boolean>;
  /** The store's clock, if it has its own. */
  time?(): Epoch;
  /** Why no tokens are issued, while the clocks of the store and of this host differ too much. */
  findClockProblem?(): string | undefined;
  /** Seconds since this process last knew all revocations; omitted when it always does. */
  revocationLag?(): number;
  /** The processes that follow the revocations of this store; omitted when only this one uses it. */
  listReplicas?(): Promise<readonly ReplicaStatus[]>;
  /** Resolves when everything read so far is as durable as an acknowledged write. */
  waitUntilDurable(): Promise<void>;
  /** Resolves when the store can be read and written; throws a `Fault` otherwise. */
  probe(): Promise<void>;
  close(): Promise<void>;
}

export interface ReplicaStatus {
  /** Host name, process id and a random suffix. */
  readonly name: string;
  /** Is it this process? */
  readonly isSelf: boolean;
  /** Seconds since its last heartbeat. */
  readonly heartbeatAge: number;
  /** Seconds since it is known to have had all revocations. */
  readonly lag: number;
}

export interface UserCodeEntry {
  readonly requestId: string;
}

/** Metadata of the store itself, such as the fingerprints of the keys it was written with. */
export type Note = Readonly<Record<string, string>>;

export const KEEP_FOREVER: Epoch = Number.MAX_SAFE_INTEGER;

/** Seconds by which the clock of a process may differ from that of the store. If it differs by more, no tokens are issued. */
export const MAX_SKEW_SECONDS = 30;

/** Notes whose ids begin with this expire, and are not restored to a store that lost them. */
export const TRANSIENT_NOTE_PREFIX = 'transient-';

/** Notes about keys and migrations have no MAC: they are read before the keys are, and authorize nothing. */
export const KEYS_NOTE = 'keys';
export const MIGRATION_NOTE = 'migration';
export const UNAUTHENTICATED_NOTES: ReadonlySet<string> = new Set([KEYS_NOTE, MIGRATION_NOTE]);
