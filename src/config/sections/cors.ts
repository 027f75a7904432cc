import * as z from 'zod';
import { checkWith } from '../cross-check.ts';
import { durationBetween, list, method, nonEmptyList, off, optional, text } from '../units.ts';

/** As browsers serialize it: scheme, host and a port other than the default one (RFC 6454 §6.2). */
function isOrigin(text: string): boolean {
  if (!/^[a-z][a-z0-9+.-]*:\/\/[^/?#@\s*]+$/.test(text)) return false;
  return !/^https?:/.test(text) || (URL.canParse(text) && new URL(text).origin === text);
}

const fieldName = text(/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/, 'must be a header name');

/** `routes[].cors`. */
export const cors = z
  .strictObject({
    origins: z
      .array(
        text(
          (text) => text === '*' || isOrigin(text),
          'must be an origin such as https://app.example.test (no path, no default port), or *',
        ),
      )
      .min(1)
      .meta({
        description: 'Allowed origins, compared exactly; or only `*` for any origin.',
        examples: [['https://app.example.test']],
      }),
    methods: optional(nonEmptyList(method)).describe('Allowed methods. Default: those of the route.'),
    headers: z
      .array(fieldName)
      .default(['Authorization', 'Content-Type'])
      .describe('Request headers that pages may send.'),
    exposeHeaders: list(fieldName).describe('Response headers that pages may read.'),
    credentials: off.describe('Allow cookies. Not with the origin `*`.'),
    maxAge: durationBetween('0s', '1d', '10m').describe('How long a browser may cache a preflight response.'),
  })
  .superRefine(
    checkWith(({ origins, credentials }, report) => {
      if (!origins.includes('*')) return;
      if (origins.length > 1) report(['origins'], 'contains * and other origins; * already allows every origin');
      if (credentials) report(['credentials'], 'cannot be combined with the origin *; list the allowed origins');
    }),
  );
