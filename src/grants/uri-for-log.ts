import { redactStart } from '../lib/redact.ts';

const MAX_LOGGED_LENGTH = 256;

/** For logs: redacted, bounded, and without user information, query and fragment, which can contain secrets. */
export function formatUriForLog(uri: string | undefined): string {
  if (uri === undefined) return '(missing or repeated)';
  if (!URL.canParse(uri)) return '(not a URL)';
  const { protocol, host, pathname } = new URL(uri);
  return redactStart(`${protocol}${host === '' ? '' : `//${host}`}${pathname}`, MAX_LOGGED_LENGTH);
}
