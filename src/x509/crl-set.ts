import type { Epoch } from '../domain/grant.ts';
import { smallest } from '../lib/extremes.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { KEY_USAGE, readExtensions } from './certificate-facts.ts';
import {
  checkInteger,
  contextTag,
  DerError,
  type Element,
  expectTag,
  readHeader,
  readSmallInteger,
  readTime,
  readTimeAt,
  type Span,
  TAG,
} from './der.ts';
import { PemError, parsePem } from './pem.ts';
import { getSignatureScheme, readSignedStructure, type SignedStructure, verifySignature } from './signature.ts';

/** Serial numbers in two typed arrays, transferable between threads: 25 bytes for one of 16 bytes, compared to 69 in a `Set`. */
interface SerialSet {
  readonly count: number;
  /** Serial numbers, each after its length in one byte. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** An open-addressing hash table: 0, or one more than an offset in `bytes`. Its length is a power of two. */
  readonly slots: Uint32Array<ArrayBuffer>;
}

/** RFC 5280 §4.1.2.2 allows 20. */
const MAX_SERIAL_BYTES = 255;

/** `packed`: as `SerialSet.bytes`; `total`: the number of serial numbers in it. */
function createSerialSet(packed: Uint8Array, total: number): SerialSet {
  const bytes = packed.slice();
  let size = 8;
  while (size < total * 2) size *= 2;
  const slots = new Uint32Array(size);
  let count = 0;
  for (let at = 0; at < bytes.length; at += 1 + (bytes[at] as number)) {
    const slot = findSlot(bytes, slots, bytes, at + 1, bytes[at] as number);
    if (slots[slot] !== 0) continue;
    slots[slot] = at + 1;
    count += 1;
  }
  return { count, bytes, slots };
}

/** `serial`: hex. */
function hasSerial({ bytes, slots }: SerialSet, serial: string): boolean {
  const wanted = Buffer.from(serial, 'hex');
  return slots[findSlot(bytes, slots, wanted, 0, wanted.length)] !== 0;
}

/** The slot of these bytes, or the free one for them. */
function findSlot(bytes: Uint8Array, slots: Uint32Array, serial: Uint8Array, from: number, length: number): number {
  const mask = slots.length - 1;
  let slot = hashBytes(serial, from, length) & mask;
  for (let at = slots[slot] as number; at !== 0; at = slots[slot] as number) {
    if (equalsAt(bytes, at - 1, serial, from, length)) return slot;
    slot = (slot + 1) & mask;
  }
  return slot;
}

function equalsAt(bytes: Uint8Array, at: number, serial: Uint8Array, from: number, length: number): boolean {
  if (bytes[at] !== length) return false;
  for (let index = 0; index < length; index += 1) if (bytes[at + 1 + index] !== serial[from + index]) return false;
  return true;
}

/** FNV-1a with a final mix, since serial numbers may be consecutive. */
function hashBytes(bytes: Uint8Array, from: number, length: number): number {
  let hash = 0x811c9dc5;
  for (let at = from; at < from + length; at += 1) hash = Math.imul(hash ^ (bytes[at] as number), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return hash ^ (hash >>> 13);
}

/** A revocation list (RFC 5280 §5) with a verified signature of an approved issuer. Plain data: it is sent between threads. */
export interface Crl {
  /** Or its URL. */
  readonly file: string;
  readonly isFetched?: true;
  readonly issuer: string;
  readonly issuerKey: string;
  readonly thisUpdate: Epoch;
  readonly nextUpdate: Epoch;
  readonly serials: SerialSet;
}

/** Lists that are fetched, and so change within a configuration. */
export interface CrlSource {
  readonly url: string;
  readonly lists: readonly Crl[];
  /** Increases with each change of `lists`. */
  readonly revision: number;
  /** Should it have a list of this key of an issuer? */
  covers(issuerKey: string): boolean;
}

/**
 * `none`: no list of this issuer is configured. `unknown`: none of its lists is valid now. `unavailable`: the same, because a
 * list has not been fetched.
 */
type RevocationStatus = 'good' | 'revoked' | 'unknown' | 'unavailable' | 'none';

/** Seconds by which the clock of a CA may be ahead. */
export const CLOCK_SKEW = 300;
const WARN_AFTER_FRACTION = 0.8;

export type CrlSet = ReturnType<typeof createCrlSet>;

/** `loaded`: from files. */
export function createCrlSet(loaded: readonly Crl[], sources: readonly CrlSource[] = []) {
  const getRevision = (): number => sources.reduce((sum, { revision }) => sum + revision, 0);
  let revision = getRevision();
  const listAll = (): readonly Crl[] => [...loaded, ...sources.flatMap(({ lists }) => lists)];
  let index = groupByIssuer(listAll());
  const getIndex = (): ReadonlyMap<string, readonly Crl[]> => {
    const latest = getRevision();
    if (latest !== revision) {
      index = groupByIssuer(listAll());
      revision = latest;
    }
    return index;
  };
  // The newest list applies, except one from the future.
  const findCurrent = (issuerKey: string, now: Epoch): Crl | undefined =>
    getIndex()
      .get(issuerKey)
      ?.find(({ thisUpdate }) => thisUpdate <= now + CLOCK_SKEW);

  return {
    get lists(): readonly Crl[] {
      return listAll();
    },
    /** Changes when a list has been fetched. */
    get revision(): number {
      return sources.length === 0 ? 0 : getRevision();
    },
    getStatus(issuerKey: string, serial: string, now: Epoch): RevocationStatus {
      const lists = getIndex().get(issuerKey);
      // Also after a fetch: an attacker could have replaced or removed the list of one issuer (they may come over http).
      if (lists === undefined) return sources.some((source) => source.covers(issuerKey)) ? 'unavailable' : 'none';
      const list = findCurrent(issuerKey, now);
      if (list !== undefined && hasSerial(list.serials, serial)) return 'revoked';
      if (list !== undefined && now <= list.nextUpdate) return 'good';
      return lists.some(({ isFetched }) => isFetched) ? 'unavailable' : 'unknown';
    },
    /** Where lists of this issuer are fetched from. */
    listUrls: (issuerKey: string): readonly string[] =>
      sources.filter((source) => source.covers(issuerKey)).map(({ url }) => url),
    /** The last second in which the same list of this issuer applies as now. */
    getStatusExpiry(issuerKey: string, now: Epoch): Epoch {
      const ends = (getIndex().get(issuerKey) ?? []).map(({ thisUpdate, nextUpdate }) =>
        // A list applies from a whole second on, but `now` has fractions: in the second before it, only `now` is certain.
        thisUpdate <= now + CLOCK_SKEW ? nextUpdate : Math.max(now, thisUpdate - CLOCK_SKEW - 1),
      );
      return smallest(ends.filter((end) => end >= now));
    },
    /** The list that applies now, for each issuer. */
    getCurrent: (now: Epoch): readonly Crl[] =>
      [...getIndex().keys()].flatMap((issuerKey) => findCurrent(issuerKey, now) ?? []),
    /** About lists that have expired, or soon will. */
    getWarnings(now: Epoch): string[] {
      return [...getIndex().entries()].flatMap(([issuerKey, [newest]]) => {
        const list = findCurrent(issuerKey, now) ?? newest;
        if (list === undefined) return [];
        const { file, issuer, thisUpdate, nextUpdate } = list;
        const prefix = `${file}: the revocation list of ${issuer}`;
        const date = new Date(nextUpdate * 1_000).toISOString();
        if (now > nextUpdate)
          return [`${prefix} expired on ${date}; certificates of this issuer are refused until a new list is loaded`];
        if (thisUpdate > now + CLOCK_SKEW)
          return [`${prefix} is not valid yet; certificates of this issuer are refused until it is`];
        return now > thisUpdate + WARN_AFTER_FRACTION * (nextUpdate - thisUpdate)
          ? [`${prefix} expires on ${date}`]
          : [];
      });
    },
  };
}

/** Newest first. */
const groupByIssuer = (lists: readonly Crl[]): ReadonlyMap<string, readonly Crl[]> =>
  Map.groupBy(
    lists.toSorted((a, b) => b.thisUpdate - a.thisUpdate || b.nextUpdate - a.nextUpdate),
    ({ issuerKey }) => issuerKey,
  );

const ISSUING_DISTRIBUTION_POINT = '2.5.29.28';
const DELTA_CRL_INDICATOR = '2.5.29.27';
const SUPPORTED_EXTENSIONS: ReadonlySet<string> = new Set([
  '2.5.29.20' /* cRLNumber */,
  '2.5.29.35' /* authorityKeyIdentifier */,
]);

/** Each is verified, which takes up to a millisecond. */
const MAX_LISTS = 1_000;

/**
 * A file contains PEM blocks, or one list in DER. They are parsed one after the other, so that the first invalid one ends it.
 * Throws an `Error` whose message completes "<file> ...".
 */
export function parseCrlFile(file: string, bytes: Buffer, issuers: readonly ApprovedIssuer[]): Crl[] {
  const lists: Crl[] = [];
  try {
    for (const block of readDerBlocks(bytes)) {
      if (lists.length === MAX_LISTS)
        throw new Error(`contains more than ${MAX_LISTS.toLocaleString('en')} revocation lists`);
      lists.push({ file, ...parseCrl(block, issuers) });
    }
  } catch (cause) {
    if (cause instanceof DerError) throw new Error(`is not a revocation list: ${cause.message}`, { cause });
    throw cause;
  }
  if (lists.length === 0) throw new Error('contains no revocation list (PEM "X509 CRL" or DER)');
  return lists;
}

/** The newest list of each key of an issuer. */
export const selectNewest = (lists: readonly Crl[]): readonly Crl[] =>
  [...groupByIssuer(lists).values()].flatMap(([newest]) => newest ?? []);

/** Every block must be a list: skipping one would silently drop its revocations. */
function* readDerBlocks(bytes: Buffer): Generator<Buffer, void> {
  if (bytes[0] === TAG.sequence) return yield bytes;
  for (const { label, decode } of parsePem(bytes)) {
    // Some libraries write `CRL` without `X509`.
    if (label !== 'X509 CRL' && label !== 'CRL')
      throw new PemError(`contains a block "${label}"; only revocation lists ("X509 CRL") are allowed`);
    yield decode();
  }
}

function parseCrl(der: Buffer, issuers: readonly ApprovedIssuer[]): Omit<Crl, 'file'> {
  const { signed, fields } = readSignedStructure(der);
  const remaining = [...fields];
  const takeIf = (tag: number): Element | undefined => (remaining[0]?.tag === tag ? remaining.shift() : undefined);
  const version = takeIf(TAG.integer);
  if (version !== undefined && readSmallInteger(version) !== 1) throw new DerError('not version 2');
  if (!expectTag(remaining.shift(), TAG.sequence).encoded.equals(signed.algorithm.encoded))
    throw new DerError('two signature algorithms');
  const issuerName = expectTag(remaining.shift(), TAG.sequence);
  const thisUpdate = readTime(remaining.shift());
  const hasNextUpdate = remaining[0]?.tag === TAG.utcTime || remaining[0]?.tag === TAG.generalizedTime;
  // RFC 5280 §5.1.2.5: without it, an attacker could withhold newer lists.
  if (!hasNextUpdate) throw new Error('has no nextUpdate');
  const nextUpdate = readTime(remaining.shift());
  const revoked = takeIf(TAG.sequence);
  checkExtensions(takeIf(contextTag(0)));
  if (remaining.length > 0) throw new DerError('unknown fields');

  const issuer = findSigner(signed, issuerName, issuers);
  const serials = readSerials(revoked?.content ?? NO_ENTRIES);
  return { issuer: issuer.name, issuerKey: issuer.keyFingerprint, thisUpdate, nextUpdate, serials };
}

function findSigner(signed: SignedStructure, name: Element, issuers: readonly ApprovedIssuer[]): ApprovedIssuer {
  const scheme = getSignatureScheme(signed);
  if (scheme === undefined) throw new Error('is signed with an algorithm that is not accepted');
  const signer = issuers.find(
    ({ key, facts }) => facts.subject.equals(name.encoded) && verifySignature(signed, scheme, key),
  );
  if (signer === undefined) throw new Error('is not signed by any of the approved issuers (certificates.issuers)');
  if (signer.facts.keyUsage !== undefined && !signer.facts.keyUsage.has(KEY_USAGE.crlSign))
    throw new Error(`is signed by ${signer.name}, which may not sign revocation lists (key usage)`);
  return signer;
}

function checkExtensions(wrapper: Element | undefined): void {
  if (wrapper === undefined) return;
  const extensions = readExtensions(wrapper.content);
  if (extensions.has(DELTA_CRL_INDICATOR)) throw new Error('is a delta CRL; use complete lists');
  if (extensions.has(ISSUING_DISTRIBUTION_POINT))
    throw new Error('covers only some certificates (issuing distribution point); use complete lists');
  for (const [oid, { critical }] of extensions)
    if (critical && !SUPPORTED_EXTENSIONS.has(oid))
      throw new Error(`has a critical extension that is not supported: ${oid}`);
}

const NO_ENTRIES = Buffer.alloc(0);

/** RFC 5280 §5.1.2.6. Without an object per entry: there may be millions. */
function readSerials(list: Buffer): SerialSet {
  const packed = new Uint8Array(list.length);
  const entry: Span = { tag: 0, from: 0, to: 0 };
  const part: Span = { tag: 0, from: 0, to: 0 };
  let length = 0;
  let count = 0;
  for (let at = 0; at < list.length; at = entry.to) {
    readHeader(list, at, list.length, entry);
    if (entry.tag !== TAG.sequence) throw new DerError('not an entry of a revocation list');
    readHeader(list, entry.from, entry.to, part);
    if (part.tag !== TAG.integer) throw new DerError('an entry without a serial number');
    checkInteger(list, part.from, part.to);
    const size = part.to - part.from;
    if (size > MAX_SERIAL_BYTES) throw new DerError('an overlong serial number');
    packed[length] = size;
    for (let from = part.from; from < part.to; from += 1) packed[(length += 1)] = list[from] as number;
    length += 1;
    count += 1;
    readHeader(list, part.to, entry.to, part);
    readTimeAt(list, part);
    if (part.to < entry.to) checkEntryExtensions(list.subarray(part.to, entry.to));
  }
  return createSerialSet(packed.subarray(0, length), count);
}

/** Extensions of an entry are encoded like the extensions of a certificate, without a wrapper (RFC 5280 §5.3). */
function checkEntryExtensions(bytes: Buffer): void {
  for (const [oid, { critical }] of readExtensions(bytes))
    if (critical) throw new Error(`has an entry with a critical extension that is not supported: ${oid}`);
}
