import { z } from 'zod';
import { GRANT_TYPES, TOKEN_FORMATS } from '../../domain/integration.ts';
import { isIdentityId, isIdentityLabel } from '../../domain/person.ts';
import { codeLifetime, lifetime, scope } from '../units.ts';

/** `label:id`, as tokens and logs carry it. */
function isIdentity(text: string): boolean {
  const colon = text.indexOf(':');
  return colon > 0 && isIdentityLabel(text.slice(0, colon)) && isIdentityId(text.slice(colon + 1));
}

const grantType = z.enum(GRANT_TYPES);

/** Who may use something. */
const accessEntry = () =>
  z.strictObject({
    groups: z.array(z.string().min(1)).default([]).meta({ description: 'Everyone in one of these groups.' }),
    identities: z
      .array(z.string().refine(isIdentity, 'must be label:id, the id being a braced GUID or a hex string'))
      .default([])
      .meta({
        description: 'These people, each as `label:id`.',
        examples: [['local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}']],
      }),
    directory: z.string().exactOptional().meta({ description: 'Everyone in this directory.' }),
    scope: scope.exactOptional().meta({ description: 'Only this part of the integration’s scope.' }),
    grants: z.array(grantType).min(1).exactOptional().meta({ description: 'Only by these grant types.' }),
  });

/** `integrations[]`: a registered client. */
export const integrationSection = () =>
  z.strictObject({
    clientId: z
      .string()
      .min(1)
      .max(256)
      .regex(/^[\x21-\x7e]+$/, 'must be printable ASCII without spaces')
      .meta({ description: 'Compared exactly, case included.' }),
    name: z
      .string()
      .min(1)
      .max(256)
      .exactOptional()
      .meta({ description: 'What people see. Default: the client id.' }),
    scope: scope.meta({ description: 'The most a token of this integration may carry.' }),
    grants: z
      .array(grantType)
      .min(1)
      .default([...GRANT_TYPES])
      .meta({ description: 'By which flows grants are made.' }),
    access: z
      .array(accessEntry())
      .default([])
      .meta({ description: 'Who may use it. Entries add up; nobody when empty.' }),
    accessLifetime: lifetime
      .exactOptional()
      .meta({ description: 'How long its access tokens work. Default: `tokens.accessLifetime`.' }),
    grantLifetime: lifetime
      .exactOptional()
      .meta({ description: 'How long its grants can be refreshed. Default: `tokens.grantLifetime`.' }),
    device: z
      .strictObject({
        codeLifetime: codeLifetime
          .exactOptional()
          .meta({ description: 'How long its device codes work. Default: `device.codeLifetime`.' }),
        interval: lifetime
          .exactOptional()
          .meta({ description: 'How often its devices may ask. Default: `device.interval`.' }),
      })
      .prefault({}),
    issuers: z
      .array(z.string().min(1))
      .min(1)
      .exactOptional()
      .meta({ description: 'Only certificates of these issuers, by name.' }),
    tokenFormat: z
      .enum(TOKEN_FORMATS)
      .exactOptional()
      .meta({ description: 'Form of its access tokens. Default: `tokens.format`.' }),
    bindToCertificate: z.boolean().default(false).meta({
      description:
        'Tokens work only with the certificate they were issued for (RFC 8705), as long as it is valid and not revoked.',
    }),
  });

/** `introspection`: who may ask what a token is worth. */
export const introspectionSection = () =>
  z.strictObject({
    requires: scope
      .exactOptional()
      .meta({ description: 'Whoever shows an access token with this scope may ask.' }),
    access: z
      .array(accessEntry().pick({ groups: true, identities: true, directory: true }))
      .default([])
      .meta({ description: 'Whoever shows a client certificate of one of these may ask.' }),
  });
