import { explainConnectionError, isTimeout } from '../client/connection-error.ts';
import type { Settings } from '../config/schema.ts';
import { IDENTITY_ENCODING, readResponseText } from '../http/read-response.ts';
import { sendOnce } from '../lib/http-client.ts';
import { parseStrictJsonObject } from '../lib/strict-json.ts';
import { type CommandContext, CommandError, EXIT, UsageError } from './command.ts';
import type { TlsFiles } from './files.ts';
import { parseWebUrl } from './web-url.ts';

/** The admin listener of a running gatehouse, with the credentials for it. */
export interface AdminTarget extends TlsFiles {
  readonly url: URL;
  readonly token?: string;
  /** Where the token was read, for errors. */
  readonly tokenFile?: string;
  /** It is `admin.tokenFile` of a configuration on this machine, which the listener reads too. */
  readonly isOwnTokenFile?: boolean;
  /** `url` comes from a configuration, not from --url. */
  readonly isFromConfig?: boolean;
  readonly timeoutMs?: number;
}

export interface AdminResponse {
  readonly status: number;
  readonly json: Readonly<Record<string, unknown>>;
}

const TIMEOUT_MS = 60_000;
const MAX_BYTES = 16 * 1_048_576;

/** The address of --url, or of the configuration, whose settings are then returned too. */
export async function resolveAdminUrl(
  context: CommandContext,
  label: string,
): Promise<{ readonly url: URL; readonly admin?: Settings['admin'] }> {
  const urlOption = context.option('url');
  if (urlOption !== undefined) return { url: parseWebUrl(`${label}: --url`, urlOption, { scheme: 'http' }) };
  // Loaded on demand: a probe with --url starts faster without the schema.
  const { loadCommandSettings } = await import('./settings.ts');
  const { admin } = loadCommandSettings(context).settings;
  const { host, port, tls } = admin;
  if (port === 0)
    throw new UsageError(
      `${label}: admin.port is 0 (any free port); pass --url with the admin_port from the log line \`ready\``,
    );
  // A listener on all addresses is reachable on the loopback address.
  const name = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  const scheme = tls === undefined ? 'http' : 'https';
  return { url: new URL(`${scheme}://${name.includes(':') ? `[${name}]` : name}:${port}`), admin };
}

export async function requestAdmin(
  { url, token, cert, key, ca, timeoutMs = TIMEOUT_MS }: AdminTarget,
  method: 'GET' | 'POST',
  path: string,
  body?: Readonly<Record<string, string>>,
): Promise<AdminResponse> {
  const unavailable = (why: string): CommandError =>
    new CommandError(`the admin listener ${url.origin} ${why}`, EXIT.unavailable);
  try {
    const { status, text } = await sendOnce(new URL(`/admin/v1${path}`, url), {
      timeoutMs,
      ca,
      certificate: cert && key && { cert, key },
      request: {
        method,
        headers: {
          ...IDENTITY_ENCODING,
          ...(token !== undefined && { authorization: `Bearer ${token}` }),
          ...(body !== undefined && { 'content-type': 'application/json' }),
        },
        body: body && JSON.stringify(body),
      },
      read: async (response) => ({
        status: response.status,
        text: await readResponseText(response, MAX_BYTES),
      }),
    });
    // Limits the nesting: the output functions are recursive.
    const json = parseStrictJsonObject(text);
    if (json === undefined) throw unavailable('is not a gatehouse admin listener');
    return { status, json };
  } catch (error) {
    if (error instanceof CommandError) throw error;
    const context = { url, caOption: '--cacert FILE', hasCa: ca !== undefined, timeoutMs };
    const { message } = explainConnectionError(error, context);
    if (!isTimeout(error)) throw unavailable(message);
    const retryHint = method === 'POST' ? ' The request may have been carried out; it is safe to repeat it.' : '';
    throw unavailable(`${message}. Check the address with \`gatehouse health --url ${url.origin}\`.${retryHint}`);
  }
}
