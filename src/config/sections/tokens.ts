import * as z from 'zod';
import { TOKEN_FORMATS } from '../../domain/integration.ts';
import { PROFILE_CLAIMS } from '../../domain/user.ts';
import { checkWith } from '../cross-check.ts';
import { choice, codeLifetime, count, durationBetween, group, lifetime, off, on, type PathSchema } from '../units.ts';

/** `keys`: signing and sealing keys. */
export const keysSection = (path: PathSchema) =>
  z.strictObject({
    file: path
      .prefault('data/keys.json')
      .describe(
        'Signing and sealing keys, mode 0600. Embedded store: created if missing while the store is empty. Redis: must exist, the same on every replica.',
      ),
    algorithm: choice(['EdDSA', 'ES256']).describe('Algorithm of new signing keys.'),
  });

/** `tokens`: format and lifetime. */
export const tokensSection = () =>
  z.strictObject({
    format: z
      .enum(TOKEN_FORMATS)
      .default('jwt')
      .describe(
        'Format of new access tokens: `jwt` is signed and self-contained, `opaque` is short and looked up in the store when a process first sees it. Existing tokens of the other format stay valid.',
      ),
    accessLifetime: lifetime.prefault('1h').describe('Lifetime of access tokens.'),
    grantLifetime: lifetime.prefault('90d').describe('How long a grant can be refreshed.'),
    refresh: group({
      retryWindow: durationBetween('0s', '60s', '10s').describe(
        'How long a client can repeat a refresh whose response was lost; outages of gatehouse extend it. `0s`: never.',
      ),
      reuse: choice(['revoke', 'reject']).describe(
        'When a used refresh token is presented again: revoke the grant, or only reject it.',
      ),
      supersede: off.describe('A refresh revokes the previous access token immediately, on every replica.'),
    }),
    claims: z
      .array(z.enum(PROFILE_CLAIMS))
      .default(['name'])
      .describe(
        'What access tokens contain about the user besides the identity: `name` (`preferred_username`), `email`, `groups`. Upstreams see it in the headers of `headers`, in assertions and in forward-auth responses; clients can read it in a JWT.',
      ),
    endStreams: z
      .enum(['all', 'upgrades-and-events', 'none'])
      .default('upgrades-and-events')
      .describe(
        'What ends within a second when its token does (expired, revoked, integration removed): WebSockets and event streams, all active requests, or nothing.',
      ),
  });

/** `dpop`: tokens that are bound to a key of the client. */
export const dpopSection = () =>
  z.strictObject({
    enabled: off.describe(
      'If a client sends a proof to oauth2/token, bind its tokens to the key of the proof. Accept `Authorization: DPoP` with a proof on proxied requests and forward-auth. If false, tokens that are bound already are refused.',
    ),
    nonce: choice(['off', 'required']).describe(
      '`required`: proofs must contain a nonce from gatehouse, so that a proof cannot be made long before it is used. Clients obtain it from the `DPoP-Nonce` header of the first refusal and repeat the request.',
    ),
  });

/** `device`: grants that a user confirms in a browser. */
export const deviceSection = () =>
  z
    .strictObject({
      enabled: on.describe('Whether the device flow (Authorize/Device) is available.'),
      codeLifetime: codeLifetime.prefault('5m').describe('How long a device code can be confirmed and exchanged.'),
      interval: lifetime.prefault('5s').describe('Minimum interval between polls of a device.'),
      maxPending: count(100_000).describe('Maximum number of pending device requests in total.'),
      maxPendingPerClient: count(10_000).describe(
        'Maximum number of pending device requests of one integration; one address can have a tenth of them. At this limit, and at `maxPending`, a new request replaces one from the network with the most requests.',
      ),
      sessionLifetime: lifetime.prefault('15m').describe('How long a user stays signed in on the confirmation page.'),
    })
    .superRefine(
      checkWith(({ interval, codeLifetime: longest }, report) => {
        if (interval > longest)
          report(['interval'], 'is longer than device.codeLifetime, so a device could never poll; shorten it');
      }),
    );
