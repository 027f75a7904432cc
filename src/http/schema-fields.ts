import * as z from 'zod';

/** Field types of the token API. */
export const textField = (description: string) => z.string().meta({ description });
/** Empty values are treated as missing. */
export const nonEmptyField = (description: string) => z.string().min(1).meta({ description });
export const integerField = (description: string) => z.int().min(0).meta({ description });

/** Both APIs accept it in device authorization requests. It is not in RFC 8628; clients that don't know it omit it. */
export const deviceNameField = nonEmptyField(
  'A name by which the user recognizes the device, such as its host name. Shown on the confirmation page as a claim of the device; longer names are truncated.',
)
  .exactOptional()
  .meta({ examples: ['Kitchen display'] });

export const getFieldNames = (request: { readonly shape: Readonly<Record<string, unknown>> }): readonly string[] =>
  Object.keys(request.shape);
