import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/**
 * The only snippet of docs/forward-auth.md in this language; for client certificates, the one with the info string
 * `nginx client-certificates`.
 */
export function readDocumentedConfig(language: string): string {
  const page = readFileSync(join(ROOT, 'docs/forward-auth.md'), 'utf8');
  const found = [...page.matchAll(/^```(\S[^\n]*)\n([\s\S]*?)^```$/gm)].filter(([, name]) => name === language);
  const [snippet, ...more] = found;
  if (snippet?.[2] === undefined || more.length > 0)
    throw new Error(`${found.length} snippets of ${language} in docs/forward-auth.md`);
  return snippet[2];
}

/** Replaces the examples of the page with the test's ports and files; throws if an example is missing. */
export function fillPlaceholders(snippet: string, replacements: Readonly<Record<string, string>>): string {
  let text = snippet;
  for (const [example, replacement] of Object.entries(replacements)) {
    if (!text.includes(example)) throw new Error(`the snippet does not mention ${example}`);
    text = text.replaceAll(example, replacement);
  }
  return text;
}

export const luaScript = join(ROOT, 'deploy/haproxy/gatehouse-check.lua');
