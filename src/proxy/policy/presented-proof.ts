import { getHeaderValues } from '../../http/raw-headers.ts';
import type { CertificateContext } from '../config.ts';
import type { PresentedProof } from './authorize.ts';

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
