/** The folder with package.json and docs/: two levels above this file in a checkout, one above the files in dist/. */
export const PACKAGE_ROOT = new URL(import.meta.url.endsWith('.ts') ? '../../' : '../', import.meta.url);
