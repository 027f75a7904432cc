import type { Epoch } from '../domain/epoch.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { KEY_USAGE, readExtensions } from './certificate-facts.ts';
import {
  checkInteger,
  context,
  DerError,
  type Element,
  expect,
  readHeader,
  readSmallInteger,
  readTime,
  type Span,
  TAG,
  timeAt,
} from './der.ts';
import { PemError, readPem } from './pem.ts';
import { hasSerial, LONGEST_SERIAL, type SerialSet, serialSet } from './serial-set.ts';
import { isSignedBy, readSigned, type Signed, schemeOf } from './signature.ts';

/** A revocation list (RFC 5280 §5) whose signature by an approved issuer was checked. Plain data: it is sent between threads. */
export interface RevocationList {
  /** The file it came from. */
  readonly file: string;
  readonly issuer: string;
  readonly issuerKey: string;
  readonly thisUpdate: Epoch;
  readonly nextUpdate: Epoch;
  readonly serials: SerialSet;
}

/** `none`: no list of this issuer was loaded. `unknown`: there are lists, and none that counts now. */
export type RevocationStatus = 'good' | 'revoked' | 'unknown' | 'none';

export interface RevocationLists {
  /** All that were loaded. */
  readonly lists: readonly RevocationList[];
  statusOf(issuerKey: string, serial: string, now: Epoch): RevocationStatus;
  /** The last second in which the same lists of this issuer are in force as now. */
  statusUntil(issuerKey: string, now: Epoch): Epoch;
  /** The lists that count now, one for each issuer. */
  inForce(now: Epoch): { readonly issuer: string; readonly nextUpdate: Epoch }[];
  /** What an operator should know: lists that have run out, or soon will. */
  warnings(now: Epoch): string[];
}

/** How far the clock of a CA may be ahead of ours. */
const CLOCK_SKEW = 300;
const WORN = 0.8;

export function revocationLists(lists: readonly RevocationList[]): RevocationLists {
  const byIssuer = Map.groupBy(
    lists.toSorted((a, b) => b.thisUpdate - a.thisUpdate || b.nextUpdate - a.nextUpdate),
    ({ issuerKey }) => issuerKey,
  );
  // The newest list counts. One from the future does not hide what is known today.
  const current = (issuerKey: string, now: Epoch): RevocationList | undefined =>
    byIssuer.get(issuerKey)?.find(({ thisUpdate }) => thisUpdate <= now + CLOCK_SKEW);

  return {
    lists,
    statusOf(issuerKey, serial, now) {
      if (!byIssuer.has(issuerKey)) return 'none';
      const list = current(issuerKey, now);
      if (list !== undefined && hasSerial(list.serials, serial)) return 'revoked';
      return list === undefined || now > list.nextUpdate ? 'unknown' : 'good';
    },
    statusUntil(issuerKey, now) {
      const ends = (byIssuer.get(issuerKey) ?? []).map(({ thisUpdate, nextUpdate }) =>
        // A list counts from a whole second on, and `now` has fractions: within the second before it, only `now` is certain.
        thisUpdate <= now + CLOCK_SKEW ? nextUpdate : Math.max(now, thisUpdate - CLOCK_SKEW - 1),
      );
      return Math.min(...ends.filter((end) => end >= now));
    },
    inForce: (now) => [...byIssuer.keys()].flatMap((issuerKey) => current(issuerKey, now) ?? []),
    warnings(now) {
      return [...byIssuer.entries()].flatMap(([issuerKey, [newest]]) => {
        const list = current(issuerKey, now) ?? newest;
        if (list === undefined) return [];
        const { file, issuer, thisUpdate, nextUpdate } = list;
        const what = `${file}: the revocation list of ${issuer}`;
        const day = new Date(nextUpdate * 1_000).toISOString();
        if (now > nextUpdate)
          return [
            `${what} ran out on ${day}; certificates of this issuer are refused until there is a new one`,
          ];
        if (thisUpdate > now + CLOCK_SKEW)
          return [`${what} begins in the future; certificates of this issuer are refused until then`];
        return now > thisUpdate + WORN * (nextUpdate - thisUpdate) ? [`${what} runs out on ${day}`] : [];
      });
    },
  };
}

const INDIRECT = '2.5.29.28';
const DELTA = '2.5.29.27';
const KNOWN: ReadonlySet<string> = new Set([
  '2.5.29.20' /* cRLNumber */,
  '2.5.29.35' /* authorityKeyIdentifier */,
]);

/** The lists in one file: PEM (several) or DER. Throws an `Error` whose message completes "<file> ...". */
export function readRevocationFile(
  file: string,
  bytes: Buffer,
  issuers: readonly ApprovedIssuer[],
): RevocationList[] {
  try {
    const blocks = derBlocks(bytes);
    if (blocks.length === 0) throw new Error('holds no revocation list (PEM "X509 CRL" or DER)');
    return blocks.map((block) => ({ file, ...readList(block, issuers) }));
  } catch (cause) {
    if (cause instanceof DerError) throw new Error(`is not a revocation list: ${cause.message}`, { cause });
    throw cause;
  }
}

/** Every block must be a list: one that is skipped would silently take back the revocations in it. */
function derBlocks(bytes: Buffer): Buffer[] {
  if (bytes[0] === TAG.sequence) return [bytes];
  return readPem(bytes).map(({ label, decode }) => {
    // `CRL` without `X509` is what some libraries write.
    if (label !== 'X509 CRL' && label !== 'CRL')
      throw new PemError(`holds a block "${label}"; only revocation lists ("X509 CRL") are allowed in it`);
    return decode();
  });
}

function readList(der: Buffer, issuers: readonly ApprovedIssuer[]): Omit<RevocationList, 'file'> {
  const { signed, fields } = readSigned(der);
  const left = [...fields];
  const taken = (tag: number): Element | undefined => (left[0]?.tag === tag ? left.shift() : undefined);
  const version = taken(TAG.integer);
  if (version !== undefined && readSmallInteger(version) !== 1) throw new DerError('not version 2');
  if (!expect(left.shift(), TAG.sequence).whole.equals(signed.algorithm.whole))
    throw new DerError('two signature algorithms');
  const issuerName = expect(left.shift(), TAG.sequence);
  const thisUpdate = readTime(left.shift());
  const hasNext = left[0]?.tag === TAG.utcTime || left[0]?.tag === TAG.generalizedTime;
  // RFC 5280 §5.1.2.5: without it nobody can tell a fresh list from a withheld one.
  if (!hasNext) throw new Error('does not say when the next list comes (nextUpdate)');
  const nextUpdate = readTime(left.shift());
  const revoked = taken(TAG.sequence);
  checkExtensions(taken(context(0)));
  if (left.length > 0) throw new DerError('unknown fields');

  const issuer = signerOf(signed, issuerName, issuers);
  const serials = serialsIn(revoked?.content ?? NO_ENTRIES);
  return { issuer: issuer.name, issuerKey: issuer.keyFingerprint, thisUpdate, nextUpdate, serials };
}

function signerOf(signed: Signed, name: Element, issuers: readonly ApprovedIssuer[]): ApprovedIssuer {
  const scheme = schemeOf(signed);
  if (scheme === undefined) throw new Error('is signed with an algorithm that is not accepted');
  const signer = issuers.find(
    ({ key, facts }) => facts.subject.equals(name.whole) && isSignedBy(signed, scheme, key),
  );
  if (signer === undefined)
    throw new Error('is not signed by any of the approved issuers (certificates.issuers)');
  if (signer.facts.keyUsage !== undefined && !signer.facts.keyUsage.has(KEY_USAGE.crlSign))
    throw new Error(`is signed by ${signer.name}, which may not sign revocation lists (key usage)`);
  return signer;
}

function checkExtensions(wrapper: Element | undefined): void {
  if (wrapper === undefined) return;
  const extensions = readExtensions(wrapper.content);
  if (extensions.has(DELTA)) throw new Error('is a delta list; give complete lists');
  if (extensions.has(INDIRECT))
    throw new Error('covers only a part, or other issuers (issuing distribution point); give complete lists');
  for (const [oid, { critical }] of extensions)
    if (critical && !KNOWN.has(oid))
      throw new Error(`carries a critical extension that is not understood: ${oid}`);
}

const NO_ENTRIES = Buffer.alloc(0);

/** RFC 5280 §5.1.2.6. Without an object for each part of each entry: there may be millions. */
function serialsIn(list: Buffer): SerialSet {
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
    if (size > LONGEST_SERIAL) throw new DerError('a serial number of absurd length');
    packed[length] = size;
    for (let from = part.from; from < part.to; from += 1) packed[(length += 1)] = list[from] as number;
    length += 1;
    count += 1;
    readHeader(list, part.to, entry.to, part);
    timeAt(list, part);
    if (part.to < entry.to) checkEntryExtensions(list.subarray(part.to, entry.to));
  }
  return serialSet(packed.subarray(0, length), count);
}

/** RFC 5280 §5.3: like those of a certificate, without a wrapper. Bytes after them are an error. */
function checkEntryExtensions(bytes: Buffer): void {
  for (const [oid, { critical }] of readExtensions(bytes))
    if (critical) throw new Error(`has an entry with a critical extension that is not understood: ${oid}`);
}
