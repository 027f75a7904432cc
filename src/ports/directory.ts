import type { User } from '../domain/user.ts';

/** Names of people in certificates, which claims of OpenID providers are matched with too. */
export const PERSON_NAME_SOURCES = ['commonName', 'email', 'userPrincipalName'] as const;
export const NAME_SOURCES = [...PERSON_NAME_SOURCES, 'dnsName', 'uri'] as const;
export type NameSource = (typeof NAME_SOURCES)[number];

/** A claim of an OpenID provider, and the attribute it is matched with in the directory. */
export interface Claim {
  readonly issuer: string;
  readonly attribute: (typeof PERSON_NAME_SOURCES)[number] | 'userName' | 'id' | 'subject';
  readonly value: string;
}

/** A source of identities. An unreachable directory throws a `Fault`; it never reports a user as not found. */
export interface Directory {
  readonly name: string;
  /** The part of an identity before the colon. */
  readonly label: string;
  /** Whether any of its users can sign in with a password. */
  readonly supportsPasswords: boolean;
  findByCertificateName(source: NameSource, name: string): Promise<User | undefined>;
  findByClaim(claim: Claim): Promise<User | undefined>;
  /** By the part of an identity after the colon. */
  findById(id: string): Promise<User | undefined>;
  /**
   * The user, if name and password are correct. Takes as long for an unknown name as for a wrong password. `guard` is
   * called once, as soon as the account is known.
   */
  signIn(userName: string, password: string, guard?: PasswordGuard): Promise<User | undefined>;
  close(): Promise<void>;
}

/** The account that a password is verified against, regardless of the name it was found by. */
interface SignInAccount {
  readonly directory: string;
  /** The part of the identity after the colon; undefined if no entry has this name. */
  readonly id: string | undefined;
}

/** Verifies a password, or treats it as wrong when the account has had too many failed attempts. */
export type PasswordGuard = (
  account: SignInAccount,
  verifyPassword: () => Promise<User | undefined>,
) => Promise<User | undefined>;

export const unguarded: PasswordGuard = (_account, verifyPassword) => verifyPassword();
