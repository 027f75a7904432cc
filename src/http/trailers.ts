import { foldFieldName, foldFieldNames, memoizeByFieldName } from './fold-field-name.ts';

/**
 * RFC 9110 §6.5.1: fields for framing, routing, authentication, request modifiers, response control data and the format of the
 * content, which a recipient may merge into the header section after it has processed that.
 */
const FORBIDDEN_NAMES = foldFieldNames([
  'transfer-encoding',
  'host',
  'connection',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'upgrade',
  'http2-settings',
  'authorization',
  'www-authenticate',
  'proxy-authenticate',
  'proxy-authorization',
  'dpop',
  'dpop-nonce',
  'cookie',
  'set-cookie',
  'cache-control',
  'pragma',
  'expect',
  'max-forwards',
  'range',
  'if-match',
  'if-none-match',
  'if-modified-since',
  'if-unmodified-since',
  'if-range',
  'age',
  'date',
  'expires',
  'location',
  'refresh',
  'retry-after',
  'vary',
  'warning',
  'alt-svc',
  'clear-site-data',
  'strict-transport-security',
]);
const FORBIDDEN_PREFIXES = ['content-', 'access-control-'].map(foldFieldName);
/** RFC 9530 §2: it can be computed only after the content. */
const DIGEST_NAME = foldFieldName('content-digest');
/** RFC 9110 §5.1 and §5.5. */
const NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

const isAllowed = memoizeByFieldName((name: string): boolean => {
  const folded = foldFieldName(name);
  if (!NAME.test(name) || FORBIDDEN_NAMES.has(folded)) return false;
  return folded === DIGEST_NAME || !FORBIDDEN_PREFIXES.some((prefix) => folded.startsWith(prefix));
});

/** The trailers that may be forwarded; undefined: none. `list`: names and values. */
export function filterTrailers(list: readonly string[]): readonly string[] | undefined {
  const kept: string[] = [];
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = list[at] as string;
    const value = list[at + 1] as string;
    if (isAllowed(name) && VALUE.test(value)) kept.push(name, value);
  }
  return kept.length === 0 ? undefined : kept;
}
