import { z } from 'zod';

/** Field types of the token API. */
export const textField = (description: string) => z.string().meta({ description });
/** Empty values are treated as missing. */
export const nonEmptyField = (description: string) => z.string().min(1).meta({ description });
export const integerField = (description: string) => z.int().min(0).meta({ description });

export const getFieldNames = (request: {
  readonly shape: Readonly<Record<string, unknown>>;
}): readonly string[] => Object.keys(request.shape);
