import type { Epoch } from '../domain/epoch.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { Keyring } from '../tokens/keyring.ts';
import { serveDocument } from './document.ts';

/** Below the service path. */
export const JWKS_PATH = '/oauth2/jwks';

/** RFC 7517 §5: the public keys of all signing keys that have not retired, including those not active yet. */
export const handleJwks = ({ signingKeys }: Keyring, context: RequestContext, now: Epoch): Reply =>
  serveDocument(context, {
    rule: 'oauth2:jwks',
    contentType: 'application/jwk-set+json',
    // Shorter than the time for which a new key is published before it signs (`gatehouse keys rotate --publish-before`).
    cacheControl: 'public, max-age=300',
    body: JSON.stringify({
      keys: signingKeys.filter(({ retireAt }) => now < retireAt).map(({ publicJwk }) => publicJwk),
    }),
  });
