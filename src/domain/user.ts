/** A user or workload of a directory. */
export interface User {
  /** `<label>:<id>`, with a braced GUID or a hex string as id. */
  readonly identity: string;
  readonly displayName: string;
  /** What the user signs in with, or the name in the certificate; undefined if it is not known. */
  readonly userName?: string;
  readonly email?: string;
  readonly directory: string;
  readonly groups: ReadonlySet<string>;
  readonly disabled: boolean;
}

/** Groups that an OpenID provider asserted when the user signed in. */
export interface AssertedGroups {
  /** The provider, by its name in the configuration. */
  readonly provider: string;
  readonly groups: readonly string[];
}

export const addGroups = (user: User, asserted: AssertedGroups | undefined): User =>
  asserted === undefined ? user : { ...user, groups: new Set([...user.groups, ...asserted.groups]) };

const BRACED_GUID = /^\{[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\}$/i;
const HEX = /^[0-9a-f]{8,128}$/i;

export const isIdentityId = (id: string): boolean => BRACED_GUID.test(id) || HEX.test(id);

/** The label of clients that act for themselves. */
export const CLIENT_LABEL = 'client';

export const isIdentityLabel = (label: string): boolean => /^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/.test(label);
