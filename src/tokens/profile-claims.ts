import { createProfile, type Profile } from '../domain/profile.ts';
import type { Json, JsonObject } from '../lib/strict-json.ts';

/** OpenID Connect Core §5.1; `groups`: RFC 9068 §2.2.3.1. */
export const formatProfileClaims = ({ name, email, groups }: Profile = {}) => ({
  preferred_username: name,
  email,
  groups,
});

/** What has another type is ignored: the signature is gatehouse's own, and a profile decides nothing. */
export function readProfileClaims({ preferred_username: name, email, groups }: JsonObject): Profile | undefined {
  return createProfile({
    ...(typeof name === 'string' && { name }),
    ...(typeof email === 'string' && { email }),
    ...(isStringList(groups) && { groups }),
  });
}

const isStringList = (value: Json | undefined): value is readonly string[] =>
  Array.isArray(value) && value.every((item) => typeof item === 'string');
