import type { Epoch } from '../domain/epoch.ts';

/**
 * The one thing shared among replicas and workers: small records, each replaced whole.
 *
 * Rules live in `domain/`. A store promises only this: `create` succeeds once for an id; `replace` succeeds for
 * exactly one of several writers that read the same version; what it answered is on disk; a record is gone
 * after its time. Whoever loses reads again and decides again. A store that cannot answer throws a `Fault`,
 * and never says "not there". A record that fails
 * authentication is treated as absent by `read`. Its id stays taken, except that of a note, which `create` makes again.
 */
export interface RecordStore<T> {
  read(id: string): Promise<Found<T> | undefined>;
  create(id: string, record: T, keepUntil: Epoch): Promise<'created' | 'taken'>;
  replace(id: string, seen: Version, record: T, keepUntil: Epoch): Promise<'replaced' | 'stale'>;
}

export type Version = string & { readonly __version: unique symbol };

export interface Found<T> {
  readonly record: T;
  readonly version: Version;
  /** The store's clock when it was read. Windows and leases are judged by this time. */
  readonly now: Epoch;
}
