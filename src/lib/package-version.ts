import { readFileSync } from 'node:fs';
import { PACKAGE_ROOT } from './package-root.ts';

export function readPackageVersion(): string {
  const text = readFileSync(new URL('package.json', PACKAGE_ROOT), 'utf8');
  return (JSON.parse(text) as { readonly version: string }).version;
}
