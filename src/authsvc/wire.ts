import { z } from 'zod';
import { sent, text, whole } from '../http/wire-fields.ts';

/**
 * What the operations read and answer. The names an operation reads come from here, its answers are held against these
 * types when it is compiled, and the OpenAPI document is made of them.
 */

const clientId = sent('The API integration.').meta({ examples: ['report-runner'] });
const scope = sent('`resource:permission,permission` joined by `;`.').meta({
  examples: ['files:read;reports:read,write'],
});

export const TokenRequest = z.looseObject({
  client_id: clientId,
  grant_type: sent(
    '`urn:ietf:params:oauth:grant-type:device_code` with a device_code; with a refresh_token `refresh_token`, or left out.',
  ).exactOptional(),
  device_code: sent('Of Authorize/Device. Either this or a refresh_token.').exactOptional(),
  refresh_token: sent('Of the latest answer; in JSON only.').exactOptional(),
});

export const CertificateRequest = z.looseObject({ client_id: clientId, scope });

export const DeviceRequest = z.looseObject({ client_id: clientId, scope });

export const TokenGrant = z.object({
  access_token: text('Sent as `Authorization: Bearer …`; opaque to the client.'),
  refresh_token: text('Buys the next pair, once.'),
  expires_in: whole('Seconds until the access token ends.'),
  expires: whole('When the access token ends, in seconds since 1970.'),
  token_type: z.literal('Bearer'),
  scope: text('As it was asked for.'),
  refresh_until: whole('When the grant ends, in seconds since 1970. Never moves.'),
});

export const CertificateGrant = TokenGrant.extend({
  identity: text('Who the certificate says the caller is, as `label:id`.'),
});

export const DeviceCodes = z.object({
  device_code: text('To ask with.'),
  user_code: text('To show to a person, as `XXXX-XXXX`.'),
  verification_uri: text('Where the person types it.'),
  verification_uri_complete: text('The same with the code, for a QR code.'),
  expires_in: whole('Seconds until the codes end.'),
  interval: whole('Seconds between two questions.'),
  expires: whole('When the codes end, in seconds since 1970.'),
});

const inThreeForms = <N extends string>(name: N, description: string) =>
  ({
    [name]: z
      .string()
      .regex(/^\/Date\(\d+\)\/$/)
      .meta({ description }),
    [`${name}_ISO8601`]: z.string().regex(/^\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
    [`${name}_unix_time`]: z.int().min(0),
  }) as { [K in N | `${N}_ISO8601`]: z.ZodString } & { [K in `${N}_unix_time`]: z.ZodInt };

export const Verified = z.object({
  application: clientId,
  identity: text('Whose token it is, as `label:id`.'),
  scope: text('Of the grant, as it was asked for.'),
  valid_for: whole('The whole lifetime of the access token, in seconds.'),
  ...inThreeForms('access_issued_on', 'When this access token was made.'),
  ...inThreeForms('grant_issued_on', 'When its grant was made.'),
  ...inThreeForms('expires', 'When its grant ends.'),
});

export const Nothing = z.object({});
