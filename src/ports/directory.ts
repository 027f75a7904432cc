import type { Person } from '../domain/person.ts';

export const NAME_SOURCES = ['commonName', 'email', 'userPrincipalName'] as const;
export type NameSource = (typeof NAME_SOURCES)[number];

/** Where identities come from. A directory that cannot be asked throws a `Fault`; it never says "unknown" instead. */
export interface Directory {
  readonly name: string;
  /** The part of an identity before the colon. */
  readonly label: string;
  byCertificateName(source: NameSource, name: string): Promise<Person | undefined>;
  /** By the part of an identity after the colon. */
  byId(id: string): Promise<Person | undefined>;
  /** The person, when user name and password are right. Takes as long for an unknown name as for a wrong password. */
  signIn(userName: string, password: string): Promise<Person | undefined>;
}

/** All directories together. */
export interface People {
  byCertificateName(directory: string, source: NameSource, name: string): Promise<Person | undefined>;
  /** By `<label>:<id>`. */
  byIdentity(identity: string): Promise<Person | undefined>;
  /** Asks the directories in their order; the first that knows the name and password wins. */
  signIn(userName: string, password: string): Promise<Person | undefined>;
}
