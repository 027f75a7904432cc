import { hash, type KeyObject, X509Certificate } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import { type CertificateFacts, KEY_USAGE, readCertificateFacts, readExtensions } from './certificate-facts.ts';
import {
  children,
  contextTag,
  DerError,
  type Element,
  expectTag,
  readBitStringBytes,
  readElement,
  readIntegerHex,
  readOid,
  readSmallInteger,
  readTime,
  TAG,
  writeElement,
} from './der.ts';
import { findKeyWeakness, getSignatureScheme, type SignedStructure, verifySignature } from './signature.ts';
import { isValidAt } from './validity.ts';

/** The certificate whose status is requested. */
export interface OcspSubject {
  readonly issuer: ApprovedIssuer;
  /** The bytes of the integer, hex. */
  readonly serial: string;
}

export interface OcspResult {
  readonly status: 'good' | 'revoked' | 'unknown';
  readonly thisUpdate: Epoch;
  /** The last second in which the status may be used. */
  readonly validUntil: Epoch;
}

const ENUMERATED = 0x0a;
const SHA1 = '1.3.14.3.2.26';
/** AlgorithmIdentifier of SHA-1 with NULL parameters. Only an identifier here: the response is signed with another hash. */
const SHA1_ALGORITHM = Buffer.from('300906052b0e03021a0500', 'hex');
const BASIC_RESPONSE = '1.3.6.1.5.5.7.48.1.1';
const OCSP_SIGNING = '1.3.6.1.5.5.7.3.9';
const EXTENSIONS = contextTag(1);

/** Seconds by which the clock of the responder may be ahead. */
const CLOCK_SKEW = 300;
/** Seconds for which a response without nextUpdate is used: newer information is always available (RFC 6960 §4.2.2.1). */
const DEFAULT_VALIDITY = 300;
/** Signatures that one response may cost. */
const MAX_SIGNERS = 4;

/** RFC 6960 §2.3. */
const RESPONSE_STATUS: Readonly<Record<number, string>> = {
  1: 'malformedRequest',
  2: 'internalError',
  3: 'tryLater',
  5: 'sigRequired',
  6: 'unauthorized',
};

const sha1 = (bytes: Uint8Array): Buffer => hash('sha1', bytes, 'buffer');

/** The content of subjectPublicKey. */
const getKeyBits = (key: KeyObject): Buffer =>
  readBitStringBytes(children(readElement(key.export({ type: 'spki', format: 'der' }), TAG.sequence))[1]);

/** RFC 6960 §4.1. */
export function writeOcspRequest({ issuer, serial }: OcspSubject): Buffer {
  const certId = writeElement(
    TAG.sequence,
    SHA1_ALGORITHM,
    writeElement(TAG.octetString, sha1(issuer.facts.subject)),
    writeElement(TAG.octetString, sha1(getKeyBits(issuer.key))),
    writeElement(TAG.integer, Buffer.from(serial, 'hex')),
  );
  const requestList = writeElement(TAG.sequence, writeElement(TAG.sequence, certId));
  return writeElement(TAG.sequence, writeElement(TAG.sequence, requestList));
}

/**
 * The status in a response (RFC 6960 §4.2), if it is authentic, current and about this certificate. Throws an `Error` for every
 * other response; its message contains nothing of the response.
 */
export function readOcspResponse(
  bytes: Buffer,
  subject: OcspSubject,
  now: Epoch,
  /** Is this certificate of the issuer on a revocation list? For the certificate of the responder. */
  isRevoked: (serial: string) => boolean = () => false,
): OcspResult {
  const { signed, responderId, responses, certificates } = readBasicResponse(bytes);
  if (!isSignedFor(subject.issuer, signed, responderId, certificates, now, isRevoked))
    throw new Error('the response is not signed by the issuer or by a responder of the issuer');
  const [single, ...more] = responses.filter((response) => isAbout(response, subject));
  if (single === undefined) throw new Error('the response is not about this certificate');
  if (more.length > 0) throw new Error('the response contains two statuses of this certificate');
  return readSingleResponse(single, now);
}

function readBasicResponse(bytes: Buffer) {
  const [statusCode, wrapped, ...rest] = children(readElement(bytes, TAG.sequence));
  if (rest.length > 0) throw new DerError('more than a response');
  const status = readSmallInteger({ ...expectTag(statusCode, ENUMERATED), tag: TAG.integer });
  if (status !== 0) throw new Error(`the responder reports ${RESPONSE_STATUS[status] ?? 'an error'}`);
  const [type, content, ...others] = children(readElement(expectTag(wrapped, contextTag(0)).content, TAG.sequence));
  if (others.length > 0 || readOid(type) !== BASIC_RESPONSE) throw new DerError('not a basic response');
  const [data, algorithm, signature, certs, ...more] = children(
    readElement(expectTag(content, TAG.octetString).content, TAG.sequence),
  );
  if (more.length > 0) throw new DerError('more than a basic response');
  const tbs = expectTag(data, TAG.sequence);
  return {
    signed: {
      bytes: tbs.encoded,
      algorithm: expectTag(algorithm, TAG.sequence),
      signature: readBitStringBytes(signature),
    },
    certificates:
      certs === undefined ? [] : children(readElement(expectTag(certs, contextTag(0)).content, TAG.sequence)),
    ...readResponseData(tbs),
  };
}

function readResponseData(tbs: Element) {
  const fields = children(tbs);
  // X.690 §11.5: the default version is omitted.
  const responderId = fields.shift();
  if (responderId === undefined || ![contextTag(1), contextTag(2)].includes(responderId.tag))
    throw new DerError('not version 1, or no responder id');
  readTime(expectTag(fields.shift(), TAG.generalizedTime));
  const responses = children(expectTag(fields.shift(), TAG.sequence));
  checkExtensions(fields[0]?.tag === EXTENSIONS ? fields.shift() : undefined);
  if (fields.length > 0) throw new DerError('unknown fields');
  return { responderId, responses };
}

function checkExtensions(wrapper: Element | undefined): void {
  if (wrapper === undefined) return;
  for (const { critical } of readExtensions(wrapper.content).values())
    if (critical) throw new Error('the response has a critical extension that is not supported');
}

/** RFC 6960 §4.2.2.2: by the issuer, or by a certificate that the issuer itself signed for this purpose. */
function isSignedFor(
  issuer: ApprovedIssuer,
  signed: SignedStructure,
  responderId: Element,
  certificates: readonly Element[],
  now: Epoch,
  isRevoked: (serial: string) => boolean,
): boolean {
  const scheme = getSignatureScheme(signed);
  if (scheme === undefined) return false;
  if (isResponder(responderId, issuer.facts.subject, issuer.key))
    if (verifySignature(signed, scheme, issuer.key)) return true;
  let attempts = 0;
  return certificates.some(({ encoded }) => {
    const facts = readCertificateFacts(encoded);
    const { publicKey } = new X509Certificate(encoded);
    if (!isResponder(responderId, facts.subject, publicKey)) return false;
    attempts += 1;
    return (
      attempts <= MAX_SIGNERS &&
      mayRespond(facts, publicKey, issuer, now) &&
      !isRevoked(facts.serial) &&
      verifySignature(signed, scheme, publicKey)
    );
  });
}

/** `byName`, or `byKey` with the SHA-1 of the key. */
function isResponder({ tag, content }: Element, name: Buffer, key: KeyObject): boolean {
  return tag === contextTag(1)
    ? content.equals(name)
    : readElement(content, TAG.octetString).content.equals(sha1(getKeyBits(key)));
}

function mayRespond(facts: CertificateFacts, key: KeyObject, issuer: ApprovedIssuer, now: Epoch): boolean {
  const scheme = getSignatureScheme(facts.signed);
  return (
    facts.issuer.equals(issuer.facts.subject) &&
    facts.extendedKeyUsage?.has(OCSP_SIGNING) === true &&
    facts.keyUsage?.has(KEY_USAGE.digitalSignature) !== false &&
    facts.unknownCritical.length === 0 &&
    isValidAt(facts, now) &&
    findKeyWeakness(key) === undefined &&
    scheme !== undefined &&
    verifySignature(facts.signed, scheme, issuer.key)
  );
}

function isAbout(response: Element, { issuer, serial }: OcspSubject): boolean {
  const [certId] = children(expectTag(response, TAG.sequence));
  const [algorithm, nameHash, keyHash, serialNumber, ...more] = children(expectTag(certId, TAG.sequence));
  if (more.length > 0) throw new DerError('unknown fields of a certificate id');
  return (
    readOid(children(expectTag(algorithm, TAG.sequence))[0]) === SHA1 &&
    expectTag(nameHash, TAG.octetString).content.equals(sha1(issuer.facts.subject)) &&
    expectTag(keyHash, TAG.octetString).content.equals(sha1(getKeyBits(issuer.key))) &&
    readIntegerHex(serialNumber) === serial
  );
}

function readSingleResponse(response: Element, now: Epoch): OcspResult {
  const [, certStatus, thisUpdateField, ...optional] = children(response);
  const status = readStatus(certStatus);
  const thisUpdate = readTime(expectTag(thisUpdateField, TAG.generalizedTime));
  const nextUpdateField = optional[0]?.tag === contextTag(0) ? optional.shift() : undefined;
  checkExtensions(optional[0]?.tag === EXTENSIONS ? optional.shift() : undefined);
  if (optional.length > 0) throw new DerError('unknown fields of a status');
  const validUntil =
    nextUpdateField === undefined
      ? thisUpdate + DEFAULT_VALIDITY
      : readTime(readElement(nextUpdateField.content, TAG.generalizedTime));
  if (thisUpdate > now + CLOCK_SKEW) throw new Error('the response is from the future');
  if (now > validUntil) throw new Error('the response is out of date');
  return { status, thisUpdate, validUntil };
}

/** The tags are IMPLICIT: `good` and `unknown` are empty. */
function readStatus(element: Element | undefined): OcspResult['status'] {
  if (element?.tag === contextTag(1)) return 'revoked';
  if (element?.tag === contextTag(0, false) && element.content.length === 0) return 'good';
  if (element?.tag === contextTag(2, false) && element.content.length === 0) return 'unknown';
  throw new DerError('not a status');
}
