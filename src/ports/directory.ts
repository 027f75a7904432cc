import type { Person } from '../domain/person.ts';
import { Fault } from './fault.ts';

export const NAME_SOURCES = ['commonName', 'email', 'userPrincipalName'] as const;
export type NameSource = (typeof NAME_SOURCES)[number];

/** What an OpenID provider tells about a person: who says it, and what the value is in the directory. */
export interface Claim {
  readonly issuer: string;
  readonly means: NameSource | 'userName' | 'id' | 'subject';
  readonly value: string;
}

/** Where identities come from. A directory that cannot be asked throws a `Fault`; it never says "unknown" instead. */
export interface Directory {
  readonly name: string;
  /** The part of an identity before the colon. */
  readonly label: string;
  /** Can anybody in it sign in by a password? */
  readonly takesPasswords: boolean;
  byCertificateName(source: NameSource, name: string): Promise<Person | undefined>;
  byClaim(claim: Claim): Promise<Person | undefined>;
  /** By the part of an identity after the colon. */
  byId(id: string): Promise<Person | undefined>;
  /** The person, when user name and password are right. Takes as long for an unknown name as for a wrong password. */
  signIn(userName: string, password: string): Promise<Person | undefined>;
  close(): Promise<void>;
}

/**
 * A directory was away, and another has looked at the password and said no: whoever typed it hears that we failed, and
 * has guessed all the same.
 */
export class PartlyAway extends Fault {
  constructor({ code, message, retryAfter }: Fault) {
    super(code, message, { retryAfter });
  }
}

/** All directories together. */
export interface People {
  /** Can anybody sign in by a password? */
  readonly takePasswords: boolean;
  byCertificateName(directory: string, source: NameSource, name: string): Promise<Person | undefined>;
  byClaim(directory: string, claim: Claim): Promise<Person | undefined>;
  /** By `<label>:<id>`. */
  byIdentity(identity: string): Promise<Person | undefined>;
  /**
   * Asks the directories in their order; the first that knows the name and password wins. One that is away keeps
   * nobody of another from signing in; whoever is in none of the others hears that it is away (`PartlyAway`, when
   * there were others that take passwords).
   */
  signIn(userName: string, password: string): Promise<Person | undefined>;
  close(): Promise<void>;
}
