import { readFileSync } from 'node:fs';

/** package.json has the same relative path from src/ and dist/. */
export function readPackageVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly version: string }).version;
}
