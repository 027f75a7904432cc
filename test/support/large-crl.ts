import { KeyObject, sign } from 'node:crypto';
import { createCrl, der, type IssuedCertificate } from './pki.ts';

/**
 * A CRL with `entries` serial numbers of 16 bytes plus those of the `revoked` certificates. @peculiar/x509 would take minutes
 * for a million entries, so it creates a small CRL whose entries are replaced before it is signed again.
 */
export async function largeCrl(
  ca: IssuedCertificate,
  entries: number,
  revoked: readonly IssuedCertificate[] = [],
): Promise<Buffer> {
  const small = (await createCrl(ca, { revoked: ['0badcafe'] })).der;
  const [tbs, algorithm] = splitElements(small, contentOffset(small));
  const fields = splitElements(tbs, contentOffset(tbs));
  const entryList = fields.findIndex((field) => field.includes(Buffer.from('0badcafe', 'hex')));
  const [example] = splitElements(fields[entryList] as Buffer, contentOffset(fields[entryList] as Buffer));
  const [, revocationDate] = splitElements(example, contentOffset(example));
  const encodeEntry = (serial: Buffer): Buffer => der(0x30, der(0x02, serial), revocationDate);
  const model = encodeEntry(Buffer.alloc(16, 0x4d));
  const entryBytes = Buffer.alloc(model.length * entries, model);
  // The serial number follows two 2-byte headers; only its last four bytes differ.
  for (let index = 0; index < entries; index += 1) entryBytes.writeUInt32BE(index, index * model.length + 16);
  const listed = der(0x30, entryBytes, ...revoked.map(({ serial }) => encodeEntry(Buffer.from(serial, 'hex'))));
  const signed = der(0x30, ...fields.with(entryList, listed));
  const signature = sign('sha256', signed, KeyObject.from(ca.keys.privateKey));
  return der(0x30, signed, algorithm, der(0x03, Buffer.from([0]), signature));
}

const headerLength = (bytes: Buffer, at: number): number => {
  const first = bytes[at + 1] ?? 0;
  return first < 0x80 ? 2 : 2 + (first & 0x7f);
};
const contentOffset = (bytes: Buffer): number => headerLength(bytes, 0);

/** Splits the bytes from `from` on into DER elements, including their headers. */
function splitElements(bytes: Buffer, from: number): [Buffer, Buffer, ...Buffer[]] {
  const found: Buffer[] = [];
  for (let at = from; at < bytes.length; ) {
    const head = headerLength(bytes, at);
    const length = head === 2 ? (bytes[at + 1] ?? 0) : bytes.readUIntBE(at + 2, head - 2);
    found.push(bytes.subarray(at, at + head + length));
    at += head + length;
  }
  return found as [Buffer, Buffer, ...Buffer[]];
}
