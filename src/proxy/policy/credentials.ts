import { parseBearerToken, parseDpopToken } from '../../http/bearer-token.ts';
import { getHeaderValues } from '../../http/raw-headers.ts';
import type { CertificateContext } from '../config.ts';
import type { PresentedProof } from './authorize.ts';

/** The Authorization fields of a request. */
export type Credentials =
  | { readonly kind: 'none' }
  | { readonly kind: 'bearer'; readonly token: string }
  /** RFC 9449 §7.1: the request needs a proof as well. */
  | { readonly kind: 'dpop'; readonly token: string }
  /** The Bearer or DPoP scheme without a valid token. */
  | { readonly kind: 'malformed' }
  /** More than one token. */
  | { readonly kind: 'ambiguous'; readonly detail: string };

const DPOP = 'dpop';
const NO_CREDENTIALS: Credentials = { kind: 'none' };

/** `values`: of all Authorization fields. RFC 6750 §2: a request has one token. */
export function readCredentials(values: readonly string[]): Credentials {
  const [value] = values;
  if (value === undefined) return NO_CREDENTIALS;
  if (values.length > 1) return { kind: 'ambiguous', detail: 'more than one Authorization field' };
  // What most requests have; the pattern allows no second token.
  const bearerToken = parseBearerToken(value);
  if (bearerToken !== undefined) return { kind: 'bearer', token: bearerToken };
  if (hasSeveralTokens(value)) return { kind: 'ambiguous', detail: 'more than one token' };
  const [scheme] = /^(?:bearer|dpop)(?=\s|$)/i.exec(value) ?? [];
  if (scheme === undefined) return NO_CREDENTIALS;
  const token = scheme.length === DPOP.length ? parseDpopToken(value) : undefined;
  return token === undefined ? { kind: 'malformed' } : { kind: 'dpop', token };
}

const hasSeveralTokens = (value: string): boolean =>
  value.includes(',') && (/^(?:bearer|dpop)\b/i.test(value) || /,\s*(?:bearer|dpop)\b/i.test(value));

/** The DPoP proof of a request, and the host that it may be for. */
export function readPresentedProof(
  { request: { rawHeaders }, peer, sourceUnknown }: CertificateContext,
  isTrustedPeer: (peer: string) => boolean,
): PresentedProof {
  const values = getHeaderValues(rawHeaders, 'dpop');
  const forwardedHosts =
    sourceUnknown === true || !isTrustedPeer(peer) ? [] : getHeaderValues(rawHeaders, 'x-forwarded-host');
  const [forwardedHost, ...others] = forwardedHosts.flatMap((value) => value.split(','));
  if (forwardedHost === undefined) return { values };
  return others.length === 0 ? { values, forwardedHost } : { values, isHostAmbiguous: true };
}
