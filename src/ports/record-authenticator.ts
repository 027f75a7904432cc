/** The kinds of records a store keeps; part of what a MAC covers. */
export type RecordKind = 'grants' | 'devices' | 'userCodes' | 'notes';

/** Where a record is kept. A record copied to another place fails authentication there. */
export interface RecordPlace {
  readonly kind: RecordKind;
  readonly id: string;
  /** What the store keeps beside the JSON text, such as version and expiry. */
  readonly context: string;
}

/**
 * `authentic`: written by a process that has the keys. `unauthenticated`: it has no MAC, as records of earlier releases,
 * and is accepted; the store rewrites it. `refused`: to be treated as absent; this has been reported already.
 */
export type Authenticity = 'authentic' | 'unauthenticated' | 'refused';

/** Authenticates records with keys that the store does not have. */
export interface RecordAuthenticator {
  /** The text of a JSON object, with a MAC as its last member. Earlier releases ignore that member. */
  seal(place: RecordPlace, json: string): string;
  /**
   * Throws a `Fault` when the record names a key that this process does not have: during a rotation that is a fault of
   * ours, and not a missing record. A record that authorises nothing any more (`isOver`) and a note are refused then: their key
   * may have been removed in the meantime, and notes can be made again.
   */
  check(place: RecordPlace, json: string, hasMac: boolean, isOver: boolean): Authenticity;
  /** The MAC of a whole backup, with the current key or with the named one; undefined when there is no such key. */
  backupMac(keyId?: string): BackupMac | undefined;
}

export interface BackupMac {
  readonly keyId: string;
  update(bytes: Uint8Array): void;
  digest(): string;
}
