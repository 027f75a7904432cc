import type { Person } from '../domain/person.ts';

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
  /**
   * The person, when user name and password are right. Takes as long for an unknown name as for a wrong password.
   * `guard` is called once, as soon as it is known which account the name belongs to.
   */
  signIn(userName: string, password: string, guard?: PasswordGuard): Promise<Person | undefined>;
  close(): Promise<void>;
}

/** The account that a password is compared with: one entry of a directory, under whatever name it was found. */
export interface SignInAccount {
  readonly directory: string;
  /** The part of the identity after the colon; undefined: no entry has this name. */
  readonly id: string | undefined;
}

/** Compares a password, or not if the account has had too many wrong ones: then as if it was wrong. */
export type PasswordGuard = (
  account: SignInAccount,
  compare: () => Promise<Person | undefined>,
) => Promise<Person | undefined>;

export const unguarded: PasswordGuard = (_account, compare) => compare();

/** All directories together. */
export interface People {
  /** Can anybody sign in by a password? */
  readonly takePasswords: boolean;
  byCertificateName(directory: string, source: NameSource, name: string): Promise<Person | undefined>;
  byClaim(directory: string, claim: Claim): Promise<Person | undefined>;
  /** By `<label>:<id>`. */
  byIdentity(identity: string): Promise<Person | undefined>;
  /**
   * Asks the directories in their order; the first that knows the name and password wins. One that is unreachable does not
   * keep users of another from signing in; if none of the others knows name and password, its `Fault` is thrown. `guard` is
   * called once for each directory that takes passwords and can be asked.
   */
  signIn(userName: string, password: string, guard?: PasswordGuard): Promise<Person | undefined>;
  close(): Promise<void>;
}
