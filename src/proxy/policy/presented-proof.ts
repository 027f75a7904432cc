import { getHeaderValues } from '../../http/raw-headers.ts';
import type { RequestContext } from '../../http/request-context.ts';
import type { PresentedProof } from './authorize.ts';

/** The DPoP proof of a request, and the host that it may be for. */
export function readPresentedProof(
  {
    request: { rawHeaders },
    peer,
    sourceUnknown,
  }: Pick<RequestContext, 'request' | 'peer' | 'sourceUnknown'>,
  isTrustedPeer: (peer: string) => boolean,
): PresentedProof {
  const values = getHeaderValues(rawHeaders, 'dpop');
  const forwardedHosts =
    sourceUnknown === true || !isTrustedPeer(peer) ? [] : getHeaderValues(rawHeaders, 'x-forwarded-host');
  if (forwardedHosts.length === 0) return { values };
  // Several proxies may have added theirs: none of the names is listed then, and the public URL applies.
  return { values, forwardedHost: forwardedHosts.join(', ') };
}
