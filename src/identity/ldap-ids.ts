/**
 * Ids of LDAP entries as braced GUIDs. Active Directory keeps 16 bytes, the first three groups of which have their
 * low byte first ([MS-DTYP] §2.3.4); OpenLDAP and its kin keep the text form (RFC 4530).
 */
const SHAPE = /^\{?([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})\}?$/i;

export function bracedFromBytes(bytes: Uint8Array): string | undefined {
  if (bytes.length !== 16) return undefined;
  const hex = (from: number, to: number, turned: boolean): string => {
    const part = Buffer.from(bytes.subarray(from, to));
    return (turned ? part.reverse() : part).toString('hex');
  };
  return `{${hex(0, 4, true)}-${hex(4, 6, true)}-${hex(6, 8, true)}-${hex(8, 10, false)}-${hex(10, 16, false)}}`;
}

export function bytesFromGuid(text: string): Buffer | undefined {
  const [, a, b, c, d, e] = SHAPE.exec(text) ?? [];
  if (a === undefined || b === undefined || c === undefined) return undefined;
  const turned = [a, b, c].map((part) => Buffer.from(part, 'hex').reverse());
  return Buffer.concat([...turned, Buffer.from(`${d}${e}`, 'hex')]);
}

/** A GUID with or without braces, in any case, as identities carry it. */
export function braced(text: string): string | undefined {
  const [, ...parts] = SHAPE.exec(text) ?? [];
  return parts.length === 0 ? undefined : `{${parts.join('-').toLowerCase()}}`;
}
