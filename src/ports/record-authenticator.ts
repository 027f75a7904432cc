/** The kinds of records in a store. The MAC of a record covers its kind. */
export const RECORD_KINDS = ['grants', 'devices', 'userCodes', 'notes'] as const;
export type RecordKind = (typeof RECORD_KINDS)[number];

/** The location of a record. A record copied to another location fails authentication there. */
export interface RecordLocation {
  readonly kind: RecordKind;
  readonly id: string;
  /** The values that the store keeps beside the JSON text, such as version and expiry. */
  readonly context: string;
}

/**
 * An `authentic` record was written by a process that has the keys. A `refused` one is treated as absent, and has been
 * reported.
 */
export type Authenticity = 'authentic' | 'refused';

/** Authenticates records with keys that are not in the store. */
export interface RecordAuthenticator {
  /** Returns the text of a JSON object, with a MAC as its last member. */
  seal(location: RecordLocation, json: string): string;
  /**
   * Throws a `Fault` when the record names a key that this process does not have: during a rotation this is a local
   * fault, not a missing record. Expired records and notes are refused instead: the key may have been removed since,
   * and notes can be recreated.
   */
  check(location: RecordLocation, json: string, hasMac: boolean, isExpired: boolean): Authenticity;
  /** Returns the MAC of a whole backup, with the named key or the current one, or undefined if there is no such key. */
  createBackupMac(keyId?: string): BackupMac | undefined;
}

export interface BackupMac {
  readonly keyId: string;
  update(bytes: Uint8Array): void;
  digest(): string;
}
