import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { renderJsonSchema } from '../src/config/known-settings.ts';
import { renderReference } from './configuration-page.ts';
import { renderErrors } from './errors-page.ts';
import { renderManPage } from './man-page.ts';
import { renderObservability } from './observability-page.ts';
import { renderOpenApi } from './openapi.ts';
import { renderReliability } from './reliability/page.ts';
import { renderSizing } from './sizing-page.ts';

export interface GeneratedFile {
  /** Relative to the root of the repository. */
  readonly file: string;
  readonly render: () => string | Promise<string>;
}

/** All generated files. A test compares them with the committed ones. */
export const GENERATED: readonly GeneratedFile[] = [
  { file: 'docs/configuration.md', render: renderReference },
  { file: 'docs/configuration.schema.json', render: renderJsonSchema },
  { file: 'docs/errors.md', render: renderErrors },
  { file: 'docs/gatehouse.1', render: renderManPage },
  { file: 'docs/observability.md', render: renderObservability },
  { file: 'docs/openapi.json', render: renderOpenApi },
  { file: 'docs/reliability.md', render: renderReliability },
  { file: 'docs/sizing.md', render: renderSizing },
];

export const pathOf = ({ file }: GeneratedFile): string => fileURLToPath(new URL(`../${file}`, import.meta.url));

if (import.meta.main)
  for (const generated of GENERATED) {
    mkdirSync(dirname(pathOf(generated)), { recursive: true });
    writeFileSync(pathOf(generated), await generated.render());
    console.log(generated.file);
  }
