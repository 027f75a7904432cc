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
