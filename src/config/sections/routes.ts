import { z } from 'zod';
import { parsePattern } from '../../domain/access-rule.ts';
import { METHOD } from '../../domain/method.ts';
import { scope } from '../units.ts';
import { cors } from './cors.ts';

/** `routes[]`: what a request must bring, and where it goes. */
export const routeSection = () =>
  z.strictObject({
    path: z
      .string()
      .superRefine((text, context) => {
        const parsed = parsePattern(text);
        if (!parsed.ok) context.addIssue({ code: 'custom', message: parsed.problem });
      })
      .meta({
        description: 'A path; `*` stands for one segment, `/**` at the end for any rest (none included).',
        examples: ['/files/**'],
      }),
    host: z.string().min(1).exactOptional().meta({ description: 'Only for this host name.' }),
    methods: z
      .array(z.string().regex(METHOD, 'must be a method in capitals, such as GET'))
      .min(1)
      .exactOptional()
      .meta({ description: 'Only for these methods. GET does not include HEAD.' }),
    public: z.literal(true).exactOptional().meta({ description: 'No token is asked for.' }),
    requires: z
      .union([z.literal('any-token'), scope])
      .exactOptional()
      .meta({ description: 'The scope a token must have, or `any-token`.' }),
    clients: z
      .array(z.string().min(1))
      .min(1)
      .exactOptional()
      .meta({ description: 'Only tokens of these integrations.' }),
    upstream: z
      .string()
      .default('default')
      .meta({ description: 'Where it is forwarded to, by its name in `upstreams`.' }),
    stripPrefix: z
      .string()
      .regex(/^(?:\/[^/]+)+$/, 'must be a path such as /api')
      .exactOptional()
      .meta({ description: 'Taken off the path before forwarding.' }),
    encodedSlash: z
      .boolean()
      .default(false)
      .meta({ description: 'Let `%2F` stand inside a segment, untouched.' }),
    forwardAuthorization: z
      .boolean()
      .default(false)
      .meta({ description: 'Send the Authorization header on to the upstream.' }),
    websocket: z.boolean().default(false).meta({
      description: 'Let WebSockets be opened here. The handshake is a GET and needs a token like any.',
    }),
    cors: cors.exactOptional().meta({
      description: 'Which pages of other origins may read the answers. We answer their preflights.',
    }),
    reportOnly: z.boolean().default(false).meta({
      description:
        'For trying a rule out: who has no token or too little scope passes all the same, and the log says `would_refuse`.',
    }),
  });
