import { KeyObject, sign } from 'node:crypto';
import { type Certified, der, makeCrl } from './pki.ts';

/**
 * A revocation list with this many serial numbers of 16 bytes, and those of the given certificates. @peculiar/x509 would
 * take minutes for a million: it makes a small list, whose entries are replaced before it is signed again.
 */
export async function largeCrl(
  ca: Certified,
  entries: number,
  revoked: readonly Certified[] = [],
): Promise<Buffer> {
  const small = (await makeCrl(ca, { revoked: ['0badcafe'] })).der;
  const [tbs, algorithm] = parts(small, contentOf(small));
  const fields = parts(tbs, contentOf(tbs));
  const entryList = fields.findIndex((field) => field.includes(Buffer.from('0badcafe', 'hex')));
  const [example] = parts(fields[entryList] as Buffer, contentOf(fields[entryList] as Buffer));
  const [, when] = parts(example, contentOf(example));
  const entryOf = (serial: Buffer): Buffer => der(0x30, der(0x02, serial), when);
  const model = entryOf(Buffer.alloc(16, 0x4d));
  const many = Buffer.alloc(model.length * entries, model);
  // The serial number is behind two headers of two bytes; its last four bytes count.
  for (let index = 0; index < entries; index += 1) many.writeUInt32BE(index, index * model.length + 16);
  const listed = der(0x30, many, ...revoked.map(({ serial }) => entryOf(Buffer.from(serial, 'hex'))));
  const signed = der(0x30, ...fields.with(entryList, listed));
  const signature = sign('sha256', signed, KeyObject.from(ca.keys.privateKey));
  return der(0x30, signed, algorithm, der(0x03, Buffer.from([0]), signature));
}

const headerLength = (bytes: Buffer, at: number): number => {
  const first = bytes[at + 1] ?? 0;
  return first < 0x80 ? 2 : 2 + (first & 0x7f);
};
const contentOf = (bytes: Buffer): number => headerLength(bytes, 0);

/** The elements that begin at `from`, whole. */
function parts(bytes: Buffer, from: number): [Buffer, Buffer, ...Buffer[]] {
  const found: Buffer[] = [];
  for (let at = from; at < bytes.length; ) {
    const head = headerLength(bytes, at);
    const length = head === 2 ? (bytes[at + 1] ?? 0) : bytes.readUIntBE(at + 2, head - 2);
    found.push(bytes.subarray(at, at + head + length));
    at += head + length;
  }
  return found as [Buffer, Buffer, ...Buffer[]];
}
