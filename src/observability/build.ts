import { readFileSync } from 'node:fs';

/** Of the package this file belongs to; the same place from src/ and from dist/. */
export function packageVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly version: string }).version;
}
