import { findRedirectUriProblem } from './redirect-uri.ts';

/** A client whose id is the URL of its metadata (draft-ietf-oauth-client-id-metadata-document). */
export interface ClientDocument {
  readonly clientId: string;
  /** As the client calls itself: never displayed alone. */
  readonly name?: string;
  readonly redirectUris: readonly string[];
}

const MAX_URL_LENGTH = 256;
const MAX_REDIRECT_URIS = 32;

/** §3: https, a path, no fragment, user information or dot segments. Undefined: not the URL of a document. */
export function parseClientIdUrl(clientId: string): URL | undefined {
  if (!clientId.startsWith('https://') || clientId.length > MAX_URL_LENGTH || !URL.canParse(clientId)) return undefined;
  const url = new URL(clientId);
  const isCanonical = url.href === clientId && url.pathname !== '/';
  return isCanonical && url.username === '' && url.password === '' && !clientId.includes('#') ? url : undefined;
}

/** Entries are hosts or `host:port`; `*.example.com` is any host below it. Without a port, 443. */
export const isAllowedHost = (allowed: readonly string[], { host }: URL): boolean =>
  allowed.some((entry) =>
    entry.startsWith('*.') ? host.endsWith(entry.slice(1)) && host.length >= entry.length : host === entry,
  );

type ParsedDocument =
  | { readonly ok: true; readonly document: ClientDocument }
  | { readonly ok: false; readonly problem: string };

const fail = (problem: string): ParsedDocument => ({ ok: false, problem });

/** §4. Only public clients: secrets cannot be in a public document. */
export function parseClientDocument(clientId: string, json: unknown): ParsedDocument {
  if (typeof json !== 'object' || json === null || Array.isArray(json)) return fail('it is not a JSON object');
  const members = json as Readonly<Record<string, unknown>>;
  if (members['client_id'] !== clientId) return fail('its client_id is not its URL');
  if ('client_secret' in members || 'client_secret_expires_at' in members) return fail('it has a client secret');
  if ((members['token_endpoint_auth_method'] ?? 'none') !== 'none')
    return fail('its token_endpoint_auth_method is not none');
  const { redirect_uris: redirectUris, client_name: name } = members;
  if (!Array.isArray(redirectUris) || redirectUris.length === 0 || redirectUris.length > MAX_REDIRECT_URIS)
    return fail(`redirect_uris must have 1 to ${MAX_REDIRECT_URIS} entries`);
  for (const uri of redirectUris) {
    const problem = typeof uri === 'string' ? findRedirectUriProblem(uri) : 'is not a text';
    if (problem !== undefined) return fail(`an entry of redirect_uris ${problem}`);
  }
  const document: ClientDocument = { clientId, redirectUris, ...(typeof name === 'string' && { name }) };
  return { ok: true, document };
}
