/** Packages that are not part of dist/: native code, and what is loaded with `require`. */
export const EXTERNAL_PACKAGES: readonly string[] = ['lmdb', 'http-proxy-3'];
