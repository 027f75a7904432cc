import { z } from 'zod';
import { TOKEN_FORMATS } from '../../domain/integration.ts';
import { codeLifetime, duration, durationFrom, lifetime, type Path } from '../units.ts';

/** `keys`: what tokens are signed and sealed with. */
export const keysSection = (path: Path) =>
  z.strictObject({
    file: path.prefault('data/keys.json').meta({
      description:
        'Signing and sealing keys, mode 0600. Embedded store: made when missing and the store is empty. Redis: must exist, the same on every replica.',
    }),
    algorithm: z
      .enum(['EdDSA', 'ES256'])
      .default('EdDSA')
      .meta({ description: 'Algorithm of signing keys made from now on.' }),
    publishBefore: duration
      .prefault('5m')
      .meta({ description: 'How long a new signing key is published before it signs.' }),
  });

/** `tokens`: their form and their time. */
export const tokensSection = () =>
  z.strictObject({
    format: z.enum(TOKEN_FORMATS).default('jwt').meta({
      description:
        'Form of access tokens made from now on: `jwt` is signed and says what it is worth, `opaque` is short, says nothing, and is looked up in the store when a process first sees it. Tokens of the other form go on working.',
    }),
    accessLifetime: lifetime.prefault('1h').meta({ description: 'How long an access token works.' }),
    grantLifetime: lifetime.prefault('90d').meta({ description: 'How long a grant can be refreshed.' }),
    refresh: z
      .strictObject({
        retryWindow: durationFrom(0, 60, 'must be at most 60s').prefault('10s').meta({
          description:
            'How long a lost refresh response can be requested again; outages of gatehouse do not count. 0s is never, at most 60s.',
        }),
        reuse: z
          .enum(['revoke', 'reject'])
          .default('revoke')
          .meta({ description: 'What a spent refresh token does: end the grant, or only be refused.' }),
        supersede: z
          .boolean()
          .default(false)
          .meta({ description: 'A refresh ends the access token before it at once, everywhere.' }),
      })
      .prefault({}),
    endStreams: z.enum(['all', 'upgrades-and-events', 'none']).default('upgrades-and-events').meta({
      description:
        'What ends within a second of its token (expired, revoked, integration removed): WebSockets and event streams, every request and answer under way, or nothing.',
    }),
    remembered: z
      .int()
      .min(100)
      .default(20_000)
      .meta({ description: 'How many verified access tokens a process remembers.' }),
  });

/** `device`: grants that a person confirms in a browser. */
export const deviceSection = () =>
  z.strictObject({
    enabled: z
      .boolean()
      .default(true)
      .meta({ description: 'Browser confirmation (Authorize/Device) is on.' }),
    codeLifetime: codeLifetime
      .prefault('5m')
      .meta({ description: 'How long a device code can be confirmed and exchanged.' }),
    interval: lifetime.prefault('5s').meta({ description: 'How often a device may ask.' }),
    maxPending: z
      .int()
      .min(1)
      .default(100_000)
      .meta({ description: 'Most device requests waiting at once, in all.' }),
    maxPendingPerClient: z.int().min(1).default(10_000).meta({
      description:
        'Most device requests waiting at once for one integration; one address may have a tenth of them. At this limit, and at `maxPending`, the network with the most requests loses one to a newcomer.',
    }),
    sessionLifetime: lifetime
      .prefault('15m')
      .meta({ description: 'How long a person stays signed in on the confirmation page.' }),
  });
