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

/** What people and upstreams are shown of a caller. It decides nothing: access is decided by the identity and the scope. */
export interface Profile {
  readonly name?: string;
  readonly email?: string;
  readonly groups?: readonly string[];
}

/** The parts of a profile that an access token can carry. */
export const PROFILE_CLAIMS = ['name', 'email', 'groups'] as const;
export type ProfileClaim = (typeof PROFILE_CLAIMS)[number];

const MAX_TEXT_LENGTH = 256;
/** The size of the list as JSON. A token that contains it still fits into the header limits of common servers. */
const MAX_GROUPS_BYTES = 2_048;

/**
 * Without what is empty, too long or contains control characters; undefined if nothing is left. A list of groups that is too long is omitted as a whole: part of
 * a list could be taken for all of it.
 */
export function createProfile({ name, email, groups }: Profile): Profile | undefined {
  const profile: Profile = {
    ...(isUsableText(name) && { name }),
    ...(isUsableText(email) && { email }),
    ...(groups !== undefined && isUsableList(groups) && { groups }),
  };
  return Object.keys(profile).length === 0 ? undefined : profile;
}

const isUsableText = (text: string | undefined): text is string =>
  text !== undefined && text !== '' && text.length <= MAX_TEXT_LENGTH && text.isWellFormed() && !/\p{Cc}/u.test(text);

const isUsableList = (groups: readonly string[]): boolean =>
  groups.length > 0 && groups.every(isUsableText) && Buffer.byteLength(JSON.stringify(groups)) <= MAX_GROUPS_BYTES;

export const createUserProfile = ({ userName, email, groups }: User): Profile | undefined =>
  createProfile({
    ...(userName !== undefined && { name: userName }),
    ...(email !== undefined && { email }),
    groups: [...groups].toSorted(),
  });

/**
 * A directory that derives users from certificates knows the name only when it sees the certificate; users of trusted issuers are in
 * no directory.
 */
export function updateProfile(known: Profile | undefined, user: User | undefined): Profile | undefined {
  if (user === undefined) return known;
  if (user.userName !== undefined) return createUserProfile(user);
  return createProfile({ ...known, groups: [...user.groups].toSorted() });
}

export function selectClaims(profile: Profile | undefined, claims: ReadonlySet<ProfileClaim>): Profile | undefined {
  const { name, email, groups } = profile ?? {};
  return createProfile({
    ...(name !== undefined && claims.has('name') && { name }),
    ...(email !== undefined && claims.has('email') && { email }),
    ...(groups !== undefined && claims.has('groups') && { groups }),
  });
}
