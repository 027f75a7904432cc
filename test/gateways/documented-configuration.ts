import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/**
 * The one snippet of docs/forward-auth.md in this language, as an operator would paste it; for client certificates, that
 * with `nginx client-certificates` after its backquotes.
 */
export function readDocumentedConfig(language: string): string {
  const page = readFileSync(join(ROOT, 'docs/forward-auth.md'), 'utf8');
  const found = [...page.matchAll(/^```(\S[^\n]*)\n([\s\S]*?)^```$/gm)].filter(
    ([, name]) => name === language,
  );
  const [snippet, ...more] = found;
  if (snippet?.[2] === undefined || more.length > 0)
    throw new Error(`${found.length} snippets of ${language} in docs/forward-auth.md`);
  return snippet[2];
}

/** Puts this test's ports and files where the page has its examples; fails when the page has them no more. */
export function fillPlaceholders(snippet: string, places: Readonly<Record<string, string>>): string {
  let text = snippet;
  for (const [example, here] of Object.entries(places)) {
    if (!text.includes(example)) throw new Error(`the snippet does not mention ${example}`);
    text = text.replaceAll(example, here);
  }
  return text;
}

export const luaScript = join(ROOT, 'deploy/haproxy/gatehouse-check.lua');
