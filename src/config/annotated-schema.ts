import * as z from 'zod';
import { createSections, createSettingsSchema } from './schema.ts';

/** JSON Schema of the settings, with our own keywords. tools/build.ts replaces this module with the result. */
export const createAnnotatedSchema = (): unknown =>
  z.toJSONSchema(createSettingsSchema(createSections('.')), { io: 'input' });
