import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch, Grant, VerifiedToken } from '../domain/grant.ts';
import type { GrantIndex } from './grant-index.ts';
import type { SharedLimits } from './shared-limits.ts';

/** The state that outlives the process and is shared by workers and replicas. */
export interface Store {
  readonly grants: RecordStore<Grant>;
  /** The store itself updates it when `grants` change. */
  readonly grantIndex: GrantIndex;
  readonly devices: RecordStore<DeviceRequest>;
  /** The device request of a user code, by a keyed digest of the code. */
  readonly userCodes: RecordStore<UserCodeEntry>;
  readonly notes: RecordStore<Note>;
  readonly revocations: RevocationLog;
  /** Counters shared with the other processes that use this store, if it has any. */
  readonly limits?: SharedLimits;
  /** Resolves with true if no grant and no device request was ever stored. */
  isEmpty(): Promise<boolean>;
  /** Reads the clock of the store, if it has its own. */
  time?(): Epoch;
  /** Returns why no tokens are issued, while the clocks of the store and of this host differ too much. */
  findClockProblem?(): string | undefined;
  /** Returns the seconds since this process last knew all revocations. It is omitted if the process always does. */
  revocationLag?(): number;
  /** Lists the processes that follow the revocations of this store. It is omitted if only this one uses it. */
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
  /** Whether it is this process. */
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

/**
 * Seconds by which the clock of a process may differ from that of the store. If it differs by more, no tokens are
 * issued.
 */
export const MAX_SKEW_SECONDS = 30;

/** Notes whose ids begin with this expire, and are not restored to a store that lost them. */
export const TRANSIENT_NOTE_PREFIX = 'transient-';

/** Notes about keys and migrations have no MAC: they are read before the keys are, and authorize nothing. */
export const KEYS_NOTE = 'keys';
export const MIGRATION_NOTE = 'migration';
export const UNAUTHENTICATED_NOTES: ReadonlySet<string> = new Set([KEYS_NOTE, MIGRATION_NOTE]);

/**
 * Small records shared by replicas and workers, each replaced as a whole. The rules are in `domain/`.
 *
 * `create` succeeds once per id. `replace` succeeds for exactly one of several writers that read the same version; the
 * others re-read and decide again. An acknowledged write is durable. A record is absent after `keepUntil`. A store that
 * is unavailable throws a `Fault` and never reports a record as absent. `read` treats a record that fails authentication
 * as absent; its id stays taken, except that `create` replaces such a note.
 */
export interface RecordStore<T> {
  read(id: string): Promise<StoredRecord<T> | undefined>;
  create(id: string, record: T, keepUntil: Epoch): Promise<'created' | 'taken'>;
  replace(id: string, expected: Version, record: T, keepUntil: Epoch): Promise<'replaced' | 'stale'>;
}

export type Version = string & { readonly __version: unique symbol };

export interface StoredRecord<T> {
  readonly record: T;
  readonly version: Version;
  /** The store's clock at the time of reading. Windows and leases are judged by this time. */
  readonly now: Epoch;
}

/**
 * Revokes the tokens of a grant below a generation (`Infinity`: all of them), or the tokens issued so far of a client, an identity or a
 * trusted issuer. Revocations only become stricter, so replicas can merge them in any order.
 */
export type Revocation = { readonly keepUntil: Epoch } & (
  | { readonly of: 'grant'; readonly grantId: string; readonly belowGeneration: number }
  | (BulkRevocation & { readonly of: 'client'; readonly clientId: string })
  | (BulkRevocation & { readonly of: 'identity'; readonly identity: string })
  | (BulkRevocation & { readonly of: 'issuer'; readonly issuer: string })
);

interface BulkRevocation {
  /** Revokes gatehouse's tokens with a lower `issuedAfter`. Assigned by the store if omitted; later revocations have higher numbers. */
  readonly number?: number;
  /** Revokes tokens of trusted issuers with an earlier `issuedAt`. */
  readonly notBefore: Epoch;
}

export type RevocationSubject = Pick<
  VerifiedToken,
  | 'grantId'
  | 'generation'
  | 'clientId'
  | 'identity'
  | 'issuedAt'
  | 'issuedAfter'
  | 'issuer'
  | 'sessionId'
  | 'exchangedFrom'
>;

export interface RevocationLog {
  /**
   * When this resolves, no worker or replica that can reach the store accepts the tokens any more, and what they issue for requests that
   * arrive from now on is valid.
   */
  announce(revocation: Revocation): Promise<void>;
  /** Synchronous and local: called for every request. */
  isRevoked(subject: RevocationSubject): boolean;
  /**
   * The highest number such that this process has applied all revocations up to it; 0: none. Read before the first check of a request, it is
   * the `issuedAfter` of what the request obtains: a revocation that the checks did not see has a higher number.
   */
  getLastNumber(): number;
}
