import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { cutSection, findOtherVersions, linkTo, unwrap } from '../../tools/release-notes.ts';
import { runChild } from '../support/child-process.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');

const CHANGELOG = `# Changelog

For operators.

## 0.3.0 (unreleased)

- Not yet.

## 0.2.0 (2026-12-01)

The second version.

### New

- One.

## 0.2.0-rc.1 (2026-11-20)

- A candidate.

## 0.1.0 (2026-11-17)
`;

describe('the section of a version', () => {
  test('reaches from its heading to the next version', () => {
    expect(cutSection(CHANGELOG, '0.2.0')).toBe('The second version.\n\n### New\n\n- One.\n');
    expect(cutSection(CHANGELOG, '0.2.0-rc.1')).toBe('- A candidate.\n');
  });

  test.each([
    ['0.2', 'has no section'],
    ['0.4.0', 'has no section'],
    ['0.3.0', 'has no date'],
    ['0.1.0', 'is empty'],
  ])('is rejected for %s: %s', (version, problem) => {
    expect(() => cutSection(CHANGELOG, version)).toThrow(problem);
  });

  test('exists for the current version', () => {
    const { version } = JSON.parse(read('package.json')) as { readonly version: string };
    const dated = read('CHANGELOG.md').replace(`## ${version} (unreleased)`, `## ${version} (2026-12-31)`);
    expect(cutSection(dated, version)).toMatch(/^### /m);
  });
});

describe('release notes', () => {
  test('have no line breaks within paragraphs and list items', () => {
    const wrapped = `A paragraph
of two lines.

- An item
  of two lines.
- Another

1. A step
2. Another
   step

| a | b |
|---|---|
| c | d |
Next.

### Heading
Text

\`\`\`sh
one
two
\`\`\`
After
it.
`;
    expect(unwrap(wrapped)).toBe(`A paragraph of two lines.

- An item of two lines.
- Another

1. A step
2. Another step

| a | b |
|---|---|
| c | d |
Next.

### Heading
Text

\`\`\`sh
one
two
\`\`\`
After it.
`);
  });

  test('link to the files of the release', () => {
    expect(linkTo('[a](docs/a.md#b) [c](https://c.example/) [d](#d)', 'https://forge.example/o/r/blob/v1/')).toBe(
      '[a](https://forge.example/o/r/blob/v1/docs/a.md#b) [c](https://c.example/) [d](#d)',
    );
  });
});

describe('the version of a release', () => {
  const { version } = JSON.parse(read('package.json')) as { readonly version: string };

  test('is the same in the package, the chart and the image', () => {
    expect(findOtherVersions(version, read)).toEqual([]);
  });

  test('is rejected if a file names another one', async () => {
    expect(findOtherVersions('9.9.9', read)).toHaveLength(5);
    expect(findOtherVersions(version, (file) => (file.endsWith('Dockerfile') ? '' : read(file)))).toEqual([
      `deploy/docker/Dockerfile: VERSION is missing, not ${version}`,
    ]);
    const { code, stdout, stderr } = await runChild([process.execPath, join(ROOT, 'tools/release-notes.ts'), 'v9.9.9']);
    expect(code).toBe(1);
    expect(stdout).toBe('');
    expect(stderr).toContain(`package.json: version is ${version}, not 9.9.9`);
  });
});
