import { z } from 'zod';
import { duration, rate, size } from '../units.ts';

/** `limits`: how much and how often. */
export const limitsSection = () =>
  z.strictObject({
    body: size.prefault('10MiB').meta({ description: 'Largest request body that is forwarded.' }),
    headers: size.prefault('16KiB').meta({ description: 'Largest request head.' }),
    url: size
      .prefault('8KiB')
      .meta({ description: 'Longest path and query of a request; longer ones are answered 414.' }),
    headerTimeout: duration
      .prefault('10s')
      .meta({ description: 'A request head must arrive within this time.' }),
    connections: z
      .int()
      .min(1)
      .default(10_000)
      .meta({ description: 'Most open client connections per process.' }),
    streams: z
      .int()
      .min(1)
      .max(1_000)
      .default(100)
      .meta({ description: 'Most requests at once on one HTTP/2 connection.' }),
    rates: z
      .strictObject({
        token: rate.prefault('100/s').meta({
          description:
            'Authorize/Token: per grant for a valid refresh token, per device request that waits for its user, otherwise per client address.',
        }),
        certificate: rate.prefault('50/s').meta({
          description:
            'Authorize/Certificate and client_credentials: per accepted certificate and client_id, otherwise per client address.',
        }),
        device: rate.prefault('10/s').meta({ description: 'Authorize/Device, per client address.' }),
        revoke: rate.prefault('50/s').meta({
          description: 'Revoke/Token: per grant for an authentic token, otherwise per client address.',
        }),
        verify: rate.prefault('100/s').meta({
          description: 'Authorize/Verify: per grant for an authentic token, otherwise per client address.',
        }),
        introspect: rate.prefault('1000/s').meta({
          description:
            'Introspection (oauth2/introspect): per grant or certificate of an authenticated caller, otherwise per client address.',
        }),
        page: rate.prefault('10/s').meta({ description: 'The confirmation page, per client address.' }),
        codeGuesses: rate.prefault('5/m').meta({ description: 'Wrong user codes, per client address.' }),
        networkCodeGuesses: rate.prefault('20/m').meta({
          description:
            'Wrong user codes, per network (IPv4 /24, IPv6 /48); those of signed-in people count apart.',
        }),
        allCodeGuesses: rate.prefault('60/m').meta({
          description:
            'Wrong user codes of people who are not signed in, in all. When used up, people sign in before they enter a code.',
        }),
        identityCodeGuesses: rate
          .prefault('5/m')
          .meta({ description: 'Wrong user codes, per signed-in person.' }),
      })
      .prefault({}),
  });

/** `shutdown`: how it ends. */
export const shutdownSection = () =>
  z.strictObject({
    preStop: duration
      .prefault('5s')
      .meta({ description: 'After SIGTERM: not ready, but still serving, for this long.' }),
    drain: duration.prefault('30s').meta({ description: 'Then: how long running requests may take to end.' }),
  });
