import { randomBytes } from 'node:crypto';
import type { Entry } from 'ldapts';
import { LRUCache } from 'lru-cache';
import type { Person } from '../domain/person.ts';
import { type Directory, NAME_SOURCES, type NameSource, unguarded } from '../ports/directory.ts';
import { type LdapServer, ldapConnections } from './ldap-connections.ts';
import { braced, bracedFromBytes, bytesFromGuid } from './ldap-ids.ts';
import { foldCertificateName, foldUserName, looseUserName } from './name-forms.ts';
import { turnstile } from './turnstile.ts';

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
  readonly remember: number;
}

/** Bit 2 of userAccountControl ([MS-ADTS] §2.2.16), by the rule "all these bits are set". */
const SWITCHED_OFF = '(userAccountControl:1.2.840.113556.1.4.803:=2)';
/** The rule by which Active Directory looks through groups in groups. */
const IN_CHAIN = '1.2.840.113556.1.4.1941';
const MOST_REMEMBERED = 10_000;
const MOST_GROUPS = 1_000;
const MOST_SIGN_INS = 64;

/**
 * People of an LDAP server. Found by search as the service account; a password is right when the server lets its
 * owner bind with it. What a name stands for is compared once more by our own rules, since a server's are its own;
 * two entries under one name stand for nobody.
 */
export function ldapDirectory(
  name: string,
  label: string,
  settings: LdapSettings,
  /** Somebody who signs in is in more groups than are read: so many count. */
  onCut: (directory: string, groups: number) => void = () => {},
): Directory {
  const { base, filter, attributes, groups } = settings;
  const disabled = settings.disabled ?? (settings.id === 'objectGUID' ? SWITCHED_OFF : undefined);
  const server = ldapConnections(settings);
  // Anyone can try passwords, and servers delay the response to wrong ones: half of the connections stay free of it.
  const signInTurn = turnstile({
    atOnce: Math.max(1, Math.floor(settings.connections / 2)),
    waiting: MOST_SIGN_INS,
    full: 'LDAP: too many are waiting',
    limit: { ms: settings.timeout * 1_000, late: 'LDAP: no connection was free in time' },
  });
  const known =
    settings.remember > 0
      ? new LRUCache<string, Person>({ max: MOST_REMEMBERED, ttl: settings.remember * 1_000 })
      : undefined;
  const asked = [...new Set([settings.id, ...Object.values(attributes)])];

  const find = async (attribute: string, value: string | Buffer): Promise<Entry | undefined> => {
    const entries = await server.search({
      base,
      scope: 'sub',
      filter,
      equals: { attribute, value },
      attributes: asked,
      bytes: settings.id === 'objectGUID' ? ['objectGUID'] : [],
      most: 2,
    });
    return entries.length === 1 ? entries[0] : undefined;
  };

  /** `whenCut` is called when there are more groups than are read. */
  const personOf = async (entry: Entry, whenCut = () => {}): Promise<Person | undefined> => {
    const id = idOf(entry, settings.id);
    if (id === undefined) return undefined;
    const isOff =
      disabled !== undefined &&
      (await server.search({ base: entry.dn, scope: 'base', filter: disabled, attributes: ['1.1'] })).length >
        0;
    return {
      identity: `${label}:${id}`,
      displayName:
        valuesOf(entry, attributes.displayName)[0] ?? valuesOf(entry, attributes.commonName)[0] ?? id,
      directory: name,
      groups: await groupsOf(entry.dn, whenCut),
      disabled: isOff,
    };
  };

  const cut = (): void => onCut(name, MOST_GROUPS);
  const groupsOf = async (dn: string, whenCut: () => void): Promise<ReadonlySet<string>> => {
    if (groups === undefined) return new Set();
    const { base: place, filter: like, name: called, member, nested } = groups;
    const found = await server.search({
      base: place,
      scope: 'sub',
      ...(nested
        ? { filter: `(&${like}(${member}:${IN_CHAIN}:=${escaped(dn)}))` }
        : { filter: like, equals: { attribute: member, value: dn } }),
      attributes: [called],
      // One more than counts, to see that there are more.
      most: MOST_GROUPS + 1,
    });
    if (found.length > MOST_GROUPS) whenCut();
    return new Set(found.slice(0, MOST_GROUPS).flatMap((entry) => valuesOf(entry, called)));
  };

  const remembered = async (
    key: string,
    look: () => Promise<Person | undefined>,
  ): Promise<Person | undefined> => {
    const before = known?.get(key);
    if (before !== undefined) return before;
    const person = await look();
    // Whoever is not found may be there a moment later: only what was found is kept.
    if (person !== undefined) known?.set(key, person);
    return person;
  };

  const byName = (source: NameSource, text: string): Promise<Person | undefined> =>
    remembered(`${source} ${foldCertificateName(source, text)}`, async () => {
      const wanted = foldCertificateName(source, text);
      const entry = await find(attributes[source], text);
      const same =
        entry && valuesOf(entry, attributes[source]).some((v) => foldCertificateName(source, v) === wanted);
      return same === true ? personOf(entry, cut) : undefined;
    });

  const byUserName = async (text: string, fold = foldUserName): Promise<Entry | undefined> => {
    const entry = await find(attributes.userName, text);
    const wanted = fold(text);
    const same = entry && valuesOf(entry, attributes.userName).some((value) => fold(value) === wanted);
    return same === true ? entry : undefined;
  };

  const byId = async (text: string): Promise<Person | undefined> => {
    const id = braced(text);
    if (id === undefined) return undefined;
    return remembered(id, async () => {
      const bytes = bytesFromGuid(id);
      const value = settings.id === 'objectGUID' ? bytes : id.slice(1, -1);
      const entry = value === undefined ? undefined : await find(settings.id, value);
      return entry !== undefined && idOf(entry, settings.id) === id ? personOf(entry) : undefined;
    });
  };

  return {
    name,
    label,
    takesPasswords: true,
    byCertificateName: byName,
    async byClaim({ means, value }) {
      if (isNameSource(means)) return byName(means, value);
      if (means === 'id') return byId(value);
      if (means === 'subject') return undefined;
      const entry = await byUserName(value);
      return entry && personOf(entry, cut);
    },
    byId,
    async signIn(userName, password, guard = unguarded) {
      if (userName === '' || password === '') return undefined;
      return signInTurn(async () => {
        const entry = await byUserName(userName);
        // Wrong passwords count for the entry, whichever of its user names was typed. A spelling that cannot sign in
        // counts for it too: otherwise its budget would show whether there is such an entry.
        const loose = looseUserName(userName);
        const counted =
          entry ?? (loose === foldUserName(userName) ? undefined : await byUserName(loose, looseUserName));
        const id = counted && idOf(counted, settings.id);
        return guard({ directory: name, id }, async () => {
          // No entry has this name: a password is tried all the same, so that it takes as long.
          const dn = entry?.dn ?? `cn=${randomBytes(8).toString('hex')},${base}`;
          const right = await server.accepts(dn, password);
          return right && entry !== undefined ? personOf(entry, cut) : undefined;
        });
      });
    },
    close: () => server.close(),
  };
}

/** RFC 4515 §3: nothing in a value can end it, or stand for more than itself. */
const escaped = (value: string): string =>
  value.replace(/[\0()*\\]/g, (char) => `\\${char.charCodeAt(0).toString(16).padStart(2, '0')}`);

const isNameSource = (means: string): means is NameSource =>
  (NAME_SOURCES as readonly string[]).includes(means);

function idOf(entry: Entry, attribute: LdapSettings['id']): string | undefined {
  const value = entry[attribute];
  const one = Array.isArray(value) ? (value.length === 1 ? value[0] : undefined) : value;
  if (one === undefined) return undefined;
  return attribute === 'objectGUID' ? bracedFromBytes(Buffer.from(one as Buffer)) : braced(one.toString());
}

/** Attribute names come back in the server's own case. */
function valuesOf(entry: Entry, attribute: string): readonly string[] {
  const key = Object.keys(entry).find((one) => one.toLowerCase() === attribute.toLowerCase());
  const value = key === undefined ? undefined : entry[key];
  if (value === undefined) return [];
  return (Array.isArray(value) ? value : [value]).map((one) => one.toString()).filter((text) => text !== '');
}
