import { existsSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { read, renderReadme } from './readme.ts';
import { chartSchema } from './values-schema.ts';

const at = (path: string): URL => new URL(`../../${path}`, import.meta.url);
const CHART = 'helm/gatehouse';

interface Generated {
  /** Relative to the root of the repository. */
  readonly file: string;
  readonly render: () => string;
}

/** The generated files of the chart: `npm run chart`. A test compares them with the committed ones. */
export const GENERATED: readonly Generated[] = [
  {
    file: `${CHART}/values.schema.json`,
    render: () => `${JSON.stringify(chartSchema(), null, 2)}\n`,
  },
  {
    file: `${CHART}/README.md`,
    render: () => renderReadme(read(at(`${CHART}/README.md`)), read(at(`${CHART}/values.yaml`))),
  },
  // The same files are used with and without Helm.
  ...['rules.yaml', 'dashboard.json']
    .filter((name) => existsSync(at(`deploy/monitoring/${name}`)))
    .map((name) => ({ file: `${CHART}/files/${name}`, render: () => read(at(`deploy/monitoring/${name}`)) })),
];

if (import.meta.main)
  for (const { file, render } of GENERATED) {
    writeFileSync(fileURLToPath(at(file)), render());
    console.log(file);
  }
