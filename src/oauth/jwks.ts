import type { Epoch } from '../domain/epoch.ts';
import { sendJson } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import type { Keyring } from '../tokens/keyring.ts';

/** Below the service path. */
export const JWKS_PATH = '/oauth2/jwks';

/** A new key is published for at least this long before it signs (`keys.publishBefore`). */
const CACHE = 'public, max-age=300';

/** RFC 7517 §5: the public halves of the keys whose signatures count, or soon will. */
export function answerJwks(keyring: Keyring, call: Call, now: Epoch): void {
  const { method = '' } = call.request;
  call.note({ rule: 'oauth2:jwks' });
  if (method !== 'GET' && method !== 'HEAD') {
    call.note({ decision: 'refused', reason: 'method_not_served' });
    sendJson(call.response, {
      status: 405,
      body: { error: 'invalid_request', error_description: 'Use GET.' },
      headers: { allow: 'GET, HEAD' },
    });
    return;
  }
  const keys = keyring.publicKeys.filter(({ kid }) => {
    const { retireAt = 0 } = keyring.fingerprints.get(String(kid)) ?? {};
    return now < retireAt;
  });
  call.note({ decision: 'allowed' });
  const text = JSON.stringify({ keys });
  call.response.writeHead(200, {
    'content-type': 'application/jwk-set+json',
    'content-length': Buffer.byteLength(text),
    'cache-control': CACHE,
    'x-content-type-options': 'nosniff',
  });
  call.response.end(method === 'HEAD' ? undefined : text);
}
