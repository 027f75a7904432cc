import type { Epoch } from '../domain/epoch.ts';

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
