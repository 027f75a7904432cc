/** What a request's URL has after its first question mark; empty where there is none. */
export function queryOf({ url = '' }: { readonly url?: string | undefined }): string {
  const at = url.indexOf('?');
  return at < 0 ? '' : url.slice(at + 1);
}
