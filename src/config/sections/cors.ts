import { z } from 'zod';
import { METHOD } from '../../domain/method.ts';
import { durationFrom } from '../units.ts';

/** As browsers write it: scheme, host, a port only where it is not the scheme's own; nothing behind. */
function isOrigin(text: string): boolean {
  if (!/^[a-z][a-z0-9+.-]*:\/\/[^/?#@\s*]+$/.test(text)) return false;
  return !/^https?:/.test(text) || (URL.canParse(text) && new URL(text).origin === text);
}

const fieldName = z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$/, 'must be the name of a header');

/** `routes[].cors`. */
export const cors = z
  .strictObject({
    origins: z
      .array(
        z
          .string()
          .refine(
            (text) => text === '*' || isOrigin(text),
            'must be an origin as browsers write it, such as https://app.example.test (no path, no default port), or *',
          ),
      )
      .min(1)
      .meta({
        description: 'Origins of the pages, each to the letter; or `*` alone for every page there is.',
        examples: [['https://app.example.test']],
      }),
    methods: z
      .array(z.string().regex(METHOD, 'must be a method in capitals, such as GET'))
      .min(1)
      .exactOptional()
      .meta({ description: 'Methods pages may use. Default: those of the route.' }),
    headers: z
      .array(fieldName)
      .default(['Authorization', 'Content-Type'])
      .meta({ description: 'Header fields pages may send.' }),
    exposeHeaders: z
      .array(fieldName)
      .default([])
      .meta({ description: 'Header fields of the answer pages may read.' }),
    credentials: z
      .boolean()
      .default(false)
      .meta({ description: 'Cookies of the browser may come along. Not with the origin `*`.' }),
    maxAge: durationFrom(0, 86_400, 'must be at most 1d')
      .prefault('10m')
      .meta({ description: 'How long a browser may remember the answer to a preflight.' }),
  })
  .superRefine(({ origins, credentials }, context) => {
    if (!origins.includes('*')) return;
    if (origins.length > 1)
      context.addIssue({ code: 'custom', path: ['origins'], message: '* stands alone: it is every origin' });
    if (credentials)
      context.addIssue({
        code: 'custom',
        path: ['credentials'],
        message: 'cannot stand beside the origin *; list the origins that are meant',
      });
  });
