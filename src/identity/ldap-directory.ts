import { randomBytes } from 'node:crypto';
import type { Entry } from 'ldapts';
import { LRUCache } from 'lru-cache';
import type { User } from '../domain/user.ts';
import { type Directory, type NameSource, PERSON_NAME_SOURCES, unguarded } from '../ports/directory.ts';
import {
  createLdapConnectionPool,
  createLdapLimiter,
  LDAP_CONNECTIONS,
  type LdapConnectionPool,
  type LdapServer,
} from './ldap-connection-pool.ts';
import { normalizeCertificateName, normalizeUserName, normalizeUserNameLoosely } from './name-normalization.ts';
import { formatGuid, guidToBytes, normalizeGuid } from './user-id.ts';

export interface LdapSettings extends LdapServer {
  readonly base: string;
  readonly filter: string;
  readonly id: 'entryUUID' | 'objectGUID';
  readonly attributes: Readonly<Record<NameSource | 'userName' | 'displayName', string>>;
  readonly groups?: {
    readonly base: string;
    readonly filter: string;
    readonly name: string;
    readonly member: string;
    readonly nested: boolean;
  };
  readonly disabled?: string;
  /** Seconds. */
  readonly cacheLifetime: number;
}

/** ACCOUNTDISABLE in userAccountControl ([MS-ADTS] §2.2.16), with LDAP_MATCHING_RULE_BIT_AND. */
const ACCOUNT_DISABLED_FILTER = '(userAccountControl:1.2.840.113556.1.4.803:=2)';
/** Active Directory's matching rule for nested groups. */
const MATCHING_RULE_IN_CHAIN = '1.2.840.113556.1.4.1941';
const MAX_CACHED_USERS = 10_000;
const MAX_GROUPS = 1_000;

/**
 * Users of an LDAP server. Entries are searched as the service account; a password is correct if a bind with it succeeds.
 * Names are compared again with gatehouse's own rules, since the matching rules of servers differ. If two entries share a
 * name, neither is found by it.
 */
export function createLdapDirectory(
  name: string,
  label: string,
  settings: LdapSettings,
  /** A user is in more groups than are read; `groups` is the number that was read. */
  onGroupsTruncated: (directory: string, groups: number) => void = () => {},
): Directory {
  const pool = createLdapConnectionPool(settings);
  const entries = createEntrySearch(pool, settings);
  const { toUser, findByName, findById } = createUserLookup(name, label, settings, entries, (groups) =>
    onGroupsTruncated(name, groups),
  );
  const findByUserName = (text: string, normalize = normalizeUserName): Promise<Entry | undefined> =>
    entries.findByName(settings.attributes.userName, text, normalize);
  // Servers delay responses to wrong passwords: half of the connections are reserved for searches.
  const runSignIn = createLdapLimiter(
    settings,
    Math.max(1, Math.floor((settings.connections ?? LDAP_CONNECTIONS) / 2)),
  );

  return {
    name,
    label,
    supportsPasswords: true,
    findByCertificateName: findByName,
    async findByClaim({ attribute, value }) {
      if (isNameSource(attribute)) return findByName(attribute, value);
      if (attribute === 'id') return findById(value);
      return attribute === 'subject' ? undefined : toUser(await findByUserName(value), true);
    },
    findById,
    async signIn(userName, password, guard = unguarded) {
      if (userName === '' || password === '') return undefined;
      return runSignIn(async () => {
        const entry = await findByUserName(userName);
        // Wrong passwords count against the entry, whichever of its user names was typed. Other spellings of a name count
        // against it too; a separate budget would reveal whether the entry exists.
        const looseName = normalizeUserNameLoosely(userName);
        const isOtherSpelling = entry === undefined && looseName !== normalizeUserName(userName);
        const countedEntry = isOtherSpelling ? await findByUserName(looseName, normalizeUserNameLoosely) : entry;
        const id = countedEntry && readId(countedEntry, settings.id);
        return guard({ directory: name, id }, async () => {
          // Bind even for an unknown name, so that it takes the same time.
          const dn = entry?.dn ?? `cn=${randomBytes(8).toString('hex')},${settings.base}`;
          return (await pool.verifyPassword(dn, password)) ? toUser(entry, true) : undefined;
        });
      });
    },
    close: () => pool.close(),
  };
}

function createUserLookup(
  name: string,
  label: string,
  settings: LdapSettings,
  entries: ReturnType<typeof createEntrySearch>,
  reportTruncated: (groups: number) => void,
) {
  const cache =
    settings.cacheLifetime > 0
      ? new LRUCache<string, User>({ max: MAX_CACHED_USERS, ttl: settings.cacheLifetime * 1_000 })
      : undefined;

  const toUser = async (entry: Entry | undefined, isReported: boolean): Promise<User | undefined> => {
    const id = entry && readId(entry, settings.id);
    if (entry === undefined || id === undefined) return undefined;
    const { displayName, commonName, userName, email } = settings.attributes;
    // An entry may lack the attribute, as in Active Directory with the default.
    const loginName =
      readValues(entry, userName)[0] ??
      readValues(entry, settings.attributes.userPrincipalName)[0] ??
      readValues(entry, commonName)[0] ??
      id;
    const [address] = readValues(entry, email);
    const disabled = await entries.isDisabled(entry);
    const groups = await entries.readGroups(entry);
    if (isReported && groups.length > MAX_GROUPS) reportTruncated(MAX_GROUPS);
    return {
      identity: `${label}:${id}`,
      displayName: readValues(entry, displayName)[0] ?? readValues(entry, commonName)[0] ?? id,
      userName: loginName,
      ...(address !== undefined && { email: address }),
      directory: name,
      groups: new Set(groups.slice(0, MAX_GROUPS).flat()),
      disabled,
    };
  };
  const findCached = async (key: string, load: () => Promise<User | undefined>): Promise<User | undefined> => {
    const cached = cache?.get(key);
    if (cached !== undefined) return cached;
    const user = await load();
    // Only found users are cached: an entry may be added at any time.
    if (user !== undefined) cache?.set(key, user);
    return user;
  };

  return {
    toUser,
    findByName: (source: NameSource, text: string): Promise<User | undefined> => {
      const normalize = (value: string): string => normalizeCertificateName(source, value);
      return findCached(`${source} ${normalize(text)}`, async () =>
        toUser(await entries.findByName(settings.attributes[source], text, normalize), true),
      );
    },
    findById: async (text: string): Promise<User | undefined> => {
      const id = normalizeGuid(text);
      if (id === undefined) return undefined;
      return findCached(id, async () => toUser(await entries.findById(id), false));
    },
  };
}

/** Searches below the base of the settings. */
function createEntrySearch(pool: LdapConnectionPool, settings: LdapSettings) {
  const { base, filter, groups, id: idAttribute } = settings;
  const disabledFilter = settings.disabled ?? (idAttribute === 'objectGUID' ? ACCOUNT_DISABLED_FILTER : undefined);
  const attributes = [...new Set([idAttribute, ...Object.values(settings.attributes)])];

  const findEntry = async (attribute: string, value: string | Buffer): Promise<Entry | undefined> => {
    const entries = await pool.search({
      base,
      scope: 'sub',
      filter,
      equals: { attribute, value },
      attributes,
      binaryAttributes: idAttribute === 'objectGUID' ? ['objectGUID'] : [],
      sizeLimit: 2,
    });
    return entries.length === 1 ? entries[0] : undefined;
  };

  return {
    async findByName(attribute: string, text: string, normalize: (value: string) => string) {
      const entry = await findEntry(attribute, text);
      const isMatch = entry && readValues(entry, attribute).some((v) => normalize(v) === normalize(text));
      return isMatch === true ? entry : undefined;
    },
    async findById(id: string) {
      const value = idAttribute === 'objectGUID' ? guidToBytes(id) : id.slice(1, -1);
      const entry = value && (await findEntry(idAttribute, value));
      return entry && readId(entry, idAttribute) === id ? entry : undefined;
    },
    async isDisabled({ dn }: Entry): Promise<boolean> {
      if (disabledFilter === undefined) return false;
      const search = { base: dn, scope: 'base', filter: disabledFilter, attributes: ['1.1'] } as const;
      return (await pool.search(search)).length > 0;
    },
    /** The names of each group, of at most `MAX_GROUPS` + 1 groups. */
    async readGroups({ dn }: Entry): Promise<readonly (readonly string[])[]> {
      if (groups === undefined) return [];
      const { member, name } = groups;
      const found = await pool.search({
        base: groups.base,
        scope: 'sub',
        ...(groups.nested
          ? { filter: `(&${groups.filter}(${member}:${MATCHING_RULE_IN_CHAIN}:=${escapeFilterValue(dn)}))` }
          : { filter: groups.filter, equals: { attribute: member, value: dn } }),
        attributes: [name],
        // One more, to detect that there are more.
        sizeLimit: MAX_GROUPS + 1,
      });
      return found.map((entry) => readValues(entry, name));
    },
  };
}

/** RFC 4515 §3. */
const escapeFilterValue = (value: string): string =>
  value.replace(/[\0()*\\]/g, (char) => `\\${char.charCodeAt(0).toString(16).padStart(2, '0')}`);

const isNameSource = (source: string): source is (typeof PERSON_NAME_SOURCES)[number] =>
  (PERSON_NAME_SOURCES as readonly string[]).includes(source);

function readId(entry: Entry, attribute: LdapSettings['id']): string | undefined {
  const value = entry[attribute];
  const one = Array.isArray(value) ? (value.length === 1 ? value[0] : undefined) : value;
  if (one === undefined) return undefined;
  return attribute === 'objectGUID' ? formatGuid(Buffer.from(one as Buffer)) : normalizeGuid(one.toString());
}

/** Servers return attribute names in their own letter case. */
function readValues(entry: Entry, attribute: string): readonly string[] {
  const key = Object.keys(entry).find((one) => one.toLowerCase() === attribute.toLowerCase());
  const value = key === undefined ? undefined : entry[key];
  if (value === undefined) return [];
  return (Array.isArray(value) ? value : [value]).map((one) => one.toString()).filter((text) => text !== '');
}
