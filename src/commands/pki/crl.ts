import { createPrivateKey, X509Certificate } from 'node:crypto';
import { approveIssuer } from '../../x509/approved-issuer.ts';
import { parseCrlFile } from '../../x509/crl-set.ts';
import { children, readIntegerHex, TAG } from '../../x509/der.ts';
import { parsePem } from '../../x509/pem.ts';
import { readSignedStructure } from '../../x509/signature.ts';
import {
  ECDSA_SHA256,
  encodeExtension,
  encodeKeyReference,
  encodeTime,
  integer,
  type PemPair,
  readSubject,
  sequence,
  signToPem,
  tagged,
} from './certificate.ts';

/** An entry of a list, as encoded there: the revocation date of an earlier one is kept. */
interface RevokedEntry {
  /** Hex. */
  readonly serial: string;
  readonly encoded: Buffer;
}

/**
 * A revocation list (RFC 5280 §5), PEM: the entries of `previous` and these certificates of the same CA. It is valid as long as
 * the CA is, since nothing renews it.
 */
export function createCrl(
  authority: PemPair,
  revoked: readonly X509Certificate[],
  previous: string | undefined,
  now: Date,
): string {
  const earlier = previous === undefined ? [] : readEntries(authority, previous);
  const known = new Set(earlier.map(({ serial }) => serial));
  const added = revoked
    .map(({ serialNumber }) => encodeEntry(serialNumber, now))
    .filter(({ serial }) => !known.has(serial));
  const key = createPrivateKey(authority.keyPem);
  const extensions = sequence(
    encodeKeyReference(key),
    // §5.2.3: each list needs a larger number. Milliseconds: 41 bits.
    encodeExtension('551d14', false, integer(Buffer.from(now.getTime().toString(16).padStart(12, '0'), 'hex'))),
  );
  const tbs = sequence(
    integer(Buffer.of(1)),
    ECDSA_SHA256,
    readSubject(authority.pem),
    encodeTime(now),
    encodeTime(new X509Certificate(authority.pem).validToDate),
    sequence(...[...earlier, ...added].map(({ encoded }) => encoded)),
    tagged(0, extensions),
  );
  return signToPem('X509 CRL', tbs, key);
}

function encodeEntry(serialNumber: string, date: Date): RevokedEntry {
  const bytes = Buffer.from(serialNumber.padStart(serialNumber.length + (serialNumber.length % 2), '0'), 'hex');
  const content = (bytes[0] ?? 0) >= 0x80 ? Buffer.concat([Buffer.of(0), bytes]) : bytes;
  return { serial: content.toString('hex'), encoded: sequence(integer(content), encodeTime(date)) };
}

/** Throws an `Error` whose message completes "<file> …", also for a list that another CA has signed. */
function readEntries({ pem }: PemPair, list: string): readonly RevokedEntry[] {
  const bytes = Buffer.from(list);
  const certificate = new X509Certificate(pem).raw;
  const issuer = approveIssuer({ name: 'CA', certificate, directory: '', identityFrom: 'commonName' });
  parseCrlFile('', bytes, [issuer]);
  return [...parsePem(bytes)].flatMap(({ decode }) => {
    const sequences = readSignedStructure(decode()).fields.filter(({ tag }) => tag === TAG.sequence);
    // After the algorithm and the issuer; missing in an empty list.
    const entries = sequences[2] === undefined ? [] : children(sequences[2]);
    return entries.map((entry) => ({ serial: readIntegerHex(children(entry)[0]), encoded: entry.encoded }));
  });
}
