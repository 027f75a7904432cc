import { z } from 'zod';

/** The fields that requests and answers of the token service are made of. */
export const text = (description: string) => z.string().meta({ description });
/** What is empty counts as not sent. */
export const sent = (description: string) => z.string().min(1).meta({ description });
export const whole = (description: string) => z.int().min(0).meta({ description });

export const namesOf = (request: { readonly shape: Readonly<Record<string, unknown>> }): readonly string[] =>
  Object.keys(request.shape);
