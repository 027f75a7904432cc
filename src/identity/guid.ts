/**
 * Ids of LDAP entries as braced GUIDs. Active Directory stores 16 bytes with the first three groups in little-endian
 * order ([MS-DTYP] §2.3.4); OpenLDAP stores text (RFC 4530).
 */
const GUID_PATTERN = /^\{?([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})\}?$/i;

export function formatGuid(bytes: Uint8Array): string | undefined {
  if (bytes.length !== 16) return undefined;
  const hex = (from: number, to: number, isLittleEndian: boolean): string => {
    const part = Buffer.from(bytes.subarray(from, to));
    return (isLittleEndian ? part.reverse() : part).toString('hex');
  };
  return `{${hex(0, 4, true)}-${hex(4, 6, true)}-${hex(6, 8, true)}-${hex(8, 10, false)}-${hex(10, 16, false)}}`;
}

export function guidToBytes(text: string): Buffer | undefined {
  const [, a, b, c, d, e] = GUID_PATTERN.exec(text) ?? [];
  if (a === undefined || b === undefined || c === undefined) return undefined;
  const littleEndianParts = [a, b, c].map((part) => Buffer.from(part, 'hex').reverse());
  return Buffer.concat([...littleEndianParts, Buffer.from(`${d}${e}`, 'hex')]);
}

/** Accepts a GUID with or without braces, in any letter case. */
export function normalizeGuid(text: string): string | undefined {
  const [, ...parts] = GUID_PATTERN.exec(text) ?? [];
  return parts.length === 0 ? undefined : `{${parts.join('-').toLowerCase()}}`;
}
