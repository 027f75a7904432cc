import * as z from 'zod';
import { deviceNameField, integerField, nonEmptyField, textField } from '../http/schema-fields.ts';

/** Requests and responses. The endpoints take their parameter names and types from here, and so does the OpenAPI document. */

const clientId = nonEmptyField('The API integration.').meta({ examples: ['report-runner'] });
const scope = nonEmptyField('`resource:permission,permission` joined by `;`.').meta({
  examples: ['files:read;reports:read,write'],
});

export const TokenRequest = z.looseObject({
  client_id: clientId,
  grant_type: nonEmptyField(
    '`urn:ietf:params:oauth:grant-type:device_code` with a device_code; with a refresh_token `refresh_token`, or omitted.',
  ).exactOptional(),
  device_code: nonEmptyField('From Authorize/Device. Either this or a refresh_token.').exactOptional(),
  refresh_token: nonEmptyField('From the latest response; JSON only.').exactOptional(),
});

export const CertificateRequest = z.looseObject({ client_id: clientId, scope });

export const DeviceRequest = z.looseObject({ client_id: clientId, scope, device_name: deviceNameField });

export const TokenGrant = z.object({
  access_token: textField('Sent as `Authorization: Bearer …`; opaque to the client.'),
  refresh_token: textField('Exchanged for the next pair; valid once.'),
  expires_in: integerField('Seconds until the access token expires.'),
  expires: integerField('When the access token expires, in seconds since 1970.'),
  token_type: z.literal('Bearer'),
  scope: textField('As requested.'),
  refresh_until: integerField('When the grant expires, in seconds since 1970. It never changes.'),
});

export const CertificateGrant = TokenGrant.extend({
  identity: textField('The identity in the certificate, as `label:id`.'),
});

export const DeviceResponse = z.object({
  device_code: textField('Sent when polling for the token.'),
  user_code: textField('Shown to the user, as `XXXX-XXXX`.'),
  verification_uri: textField('Where the user enters it.'),
  verification_uri_complete: textField('The same URL with the code, for a QR code.'),
  expires_in: integerField('Seconds until the codes expire.'),
  interval: integerField('Minimum seconds between polls.'),
  expires: integerField('When the codes expire, in seconds since 1970.'),
});

const timestampFields = <N extends string>(name: N, description: string) =>
  ({
    [name]: z
      .string()
      .regex(/^\/Date\(\d+\)\/$/)
      .meta({ description }),
    [`${name}_ISO8601`]: z.string().regex(/^\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
    [`${name}_unix_time`]: z.int().min(0),
  }) as { [K in N | `${N}_ISO8601`]: z.ZodString } & { [K in `${N}_unix_time`]: z.ZodInt };

export const VerifyResponse = z.object({
  application: clientId,
  identity: textField('The user, as `label:id`.'),
  scope: textField('The scope of the grant, as requested.'),
  valid_for: integerField('The total lifetime of the access token, in seconds.'),
  ...timestampFields('access_issued_on', 'When this access token was issued.'),
  ...timestampFields('grant_issued_on', 'When its grant was issued.'),
  ...timestampFields('expires', 'When its grant expires.'),
});

export const EmptyResponse = z.object({});
