// node tools/release-notes.ts v0.2.0 [--links-to URL]: the section of a version in CHANGELOG.md, as the notes of its release.
// Fails if the version is not the one of the package, the chart and the image, or if its section is missing or has no date.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

/** The places that name the version of a release. */
const VERSIONS: readonly { readonly file: string; readonly name: string; readonly pattern: RegExp }[] = [
  { file: 'package.json', name: 'version', pattern: /^ {2}"version": "([^"]*)",$/m },
  { file: 'package-lock.json', name: 'version', pattern: /^ {2}"version": "([^"]*)",$/m },
  { file: 'helm/gatehouse/Chart.yaml', name: 'version', pattern: /^version: (\S+)$/m },
  { file: 'helm/gatehouse/Chart.yaml', name: 'appVersion', pattern: /^appVersion: "([^"]*)"$/m },
  { file: 'deploy/docker/Dockerfile', name: 'VERSION', pattern: /^ARG VERSION=(\S+)$/m },
];

/** The places that name another version; `read` returns the content of a file of the repository. */
export function findOtherVersions(version: string, read: (file: string) => string): string[] {
  return VERSIONS.flatMap(({ file, name, pattern }) => {
    const found = pattern.exec(read(file))?.[1];
    return found === version ? [] : [`${file}: ${name} is ${found ?? 'missing'}, not ${version}`];
  });
}

/** The part of a changelog between the heading of a version and the next one. */
export function cutSection(changelog: string, version: string): string {
  const sections = changelog.split(/^## /m).slice(1);
  const section = sections.find((text) => text.split(/\s/, 1)[0] === version);
  if (section === undefined) throw new Error(`CHANGELOG.md has no section "## ${version} (date)"`);
  const [heading = '', ...lines] = section.split('\n');
  if (!/^\S+ \(\d{4}-\d{2}-\d{2}\)$/.test(heading))
    throw new Error(`CHANGELOG.md: "## ${heading}" has no date; expected "## ${version} (2026-12-31)"`);
  const text = lines.join('\n').trim();
  if (text === '') throw new Error(`CHANGELOG.md: the section of ${version} is empty`);
  return `${text}\n`;
}

/** Whether a line continues the paragraph or list item before it. */
const isContinuation = (line: string, previous: string): boolean =>
  /^ *[^\s|#>*+-]/.test(line) && !/^ *(?:\d+[.)] |```)/.test(line) && /\S/.test(previous) && !/^[|#]/.test(previous);

/** Joins wrapped lines: in release notes, unlike in files, GitHub shows line breaks. Code blocks stay unchanged. */
export function unwrap(markdown: string): string {
  const lines: string[] = [];
  let isCode = false;
  for (const line of markdown.split('\n')) {
    const isFence = /^ *```/.test(line);
    const previous = lines.at(-1) ?? '';
    if (!isCode && !isFence && !/^ *```/.test(previous) && isContinuation(line, previous))
      lines[lines.length - 1] = `${previous} ${line.trimStart()}`;
    else lines.push(line);
    if (isFence) isCode = !isCode;
  }
  return lines.join('\n');
}

/** Makes relative links absolute. */
export const linkTo = (markdown: string, url: string): string =>
  markdown.replaceAll(/\]\((?![a-z]+:|#)([^)\s]+)\)/g, (_, path: string) => `](${url.replace(/\/$/, '')}/${path})`);

if (import.meta.main) {
  try {
    const { values, positionals } = parseArgs({
      options: { 'links-to': { type: 'string' } },
      allowPositionals: true,
    });
    const [tag] = positionals;
    if (tag === undefined || positionals.length > 1)
      throw new Error('usage: node tools/release-notes.ts VERSION [--links-to URL]');
    const version = tag.replace(/^v/, '');
    const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');
    const others = findOtherVersions(version, read);
    if (others.length > 0) throw new Error(others.join('\n'));
    const notes = unwrap(cutSection(read('CHANGELOG.md'), version));
    process.stdout.write(values['links-to'] === undefined ? notes : linkTo(notes, values['links-to']));
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
