import { hash } from 'node:crypto';
import { isIdentityId } from '../domain/user.ts';

/**
 * The id of a configured user in the form that identities have: a braced GUID or a hex string is kept; from any other text, or
 * from the user name if there is no id, a GUID is derived (RFC 9562 §5.8). It never changes while the text stays the same.
 */
export function getUserId({ id, name }: { readonly id?: string | undefined; readonly name: string }): string {
  return id === undefined ? deriveGuid(`name:${name}`) : toIdentityId(id);
}

export const toIdentityId = (id: string): string => (isIdentityId(id) ? id : deriveGuid(`id:${id}`));

/** `label:id`, where the id may be any text that a configured user has as its id. */
export function normalizeIdentity(identity: string): string {
  const colon = identity.indexOf(':');
  return identity.slice(0, colon + 1) + toIdentityId(identity.slice(colon + 1));
}

function deriveGuid(text: string): string {
  const bytes = hash('sha256', `gatehouse user ${text.normalize('NFC')}`, 'buffer');
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x80;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = bytes.toString('hex');
  const groups = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)];
  return `{${groups.join('-')}}`;
}

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
