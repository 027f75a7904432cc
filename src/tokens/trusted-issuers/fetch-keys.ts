import { IDENTITY_ENCODING, readResponseText } from '../../http/read-response.ts';
import type { HttpClient, HttpResponse } from '../../lib/http-client.ts';
import { printable } from '../../lib/printable.ts';
import { type Json, parseStrictJsonObject } from '../../lib/strict-json.ts';
import { type IssuerKey, parseKeySet } from './key-set.ts';

const MAX_BYTES = 512 * 1_024;
const METADATA_TYPE = 'application/json';
/** RFC 7517 §8.5. A Kubernetes API server responds with 406 where only `application/json` is accepted. */
const KEY_SET_TYPES = 'application/jwk-set+json, application/json';

export interface FetchKeysOptions {
  readonly issuer: string;
  /** If omitted, it is found by discovery. */
  readonly jwksUri?: string | undefined;
  /** Sent as a bearer token, read before each request (Kubernetes renews it). */
  readonly readBearerToken?: (() => string) | undefined;
  /** May have a client certificate. */
  readonly httpClient: Pick<HttpClient, 'send'>;
  /** The same without it. */
  readonly anonymousHttpClient: Pick<HttpClient, 'send'>;
}

export async function fetchKeys(options: FetchKeysOptions): Promise<readonly IssuerKey[]> {
  const { jwksUri = await discoverKeySetUri(options) } = options;
  const response = await get(options, jwksUri, KEY_SET_TYPES);
  if (response.status !== 200)
    throw new Error(
      `${jwksUri} responded with ${response.status}${isTrustedOrigin(options, jwksUri) ? '' : '; credentials are sent there only if it is configured as jwksUri'}`,
    );
  return parseKeySet(response.text);
}

/** OpenID Connect Discovery 1.0 §4, and RFC 8414 §3 where the issuer has no OpenID configuration. */
async function discoverKeySetUri(options: FetchKeysOptions): Promise<string> {
  const { issuer } = options;
  const [openId, oauth] = listMetadataUrls(issuer);
  let response = await get(options, openId, METADATA_TYPE);
  if (response.status === 404) response = await get(options, oauth, METADATA_TYPE);
  if (response.status !== 200) throw new Error(`${openId} responded with ${response.status}`);
  const metadata = parseStrictJsonObject(response.text);
  if (metadata === undefined) throw new Error('the metadata of the issuer is not a JSON object');
  // OpenID Connect Discovery 1.0 §4.3, RFC 8414 §3.3: otherwise another issuer could provide the keys.
  if (metadata['issuer'] !== issuer) throw new Error(describeOtherIssuer(issuer, metadata['issuer']));
  const uri = metadata['jwks_uri'];
  if (typeof uri !== 'string' || !isAllowedKeySetUri(uri, issuer))
    throw new Error(`the metadata of ${issuer} has no usable jwks_uri`);
  return uri;
}

const MAX_SHOWN_ISSUER = 200;

function describeOtherIssuer(issuer: string, found: Json | undefined): string {
  if (typeof found !== 'string') return `the metadata of ${issuer} names no issuer`;
  const shown = printable(found.length > MAX_SHOWN_ISSUER ? `${found.slice(0, MAX_SHOWN_ISSUER)}…` : found);
  return `the metadata of ${issuer} names another issuer, ${shown}: the setting "issuer" must equal it exactly, including a trailing slash`;
}

function listMetadataUrls(issuer: string): readonly [openId: string, oauth: string] {
  const base = issuer.replace(/\/$/, '');
  const { origin, pathname } = new URL(base);
  const path = pathname === '/' ? '' : pathname;
  return [`${base}/.well-known/openid-configuration`, `${origin}/.well-known/oauth-authorization-server${path}`];
}

/** Keys are never fetched over a weaker connection than the metadata. */
function isAllowedKeySetUri(uri: string, issuer: string): boolean {
  if (!URL.canParse(uri)) return false;
  const { protocol, username, password } = new URL(uri);
  if (username !== '' || password !== '') return false;
  return protocol === 'https:' || (protocol === 'http:' && issuer.startsWith('http:'));
}

/** The metadata of an issuer can name any host in `jwks_uri`: credentials are for the configured one. */
const isTrustedOrigin = ({ issuer, jwksUri = issuer }: FetchKeysOptions, url: string): boolean =>
  new URL(url).origin === new URL(jwksUri).origin;

async function get(
  options: FetchKeysOptions,
  url: string,
  accept: string,
): Promise<{ readonly status: number; readonly text: string }> {
  const { httpClient, anonymousHttpClient, readBearerToken } = options;
  const isTrusted = isTrustedOrigin(options, url);
  const response = await (isTrusted ? httpClient : anonymousHttpClient).send(url, {
    headers: {
      accept,
      ...IDENTITY_ENCODING,
      ...(isTrusted && readBearerToken !== undefined && { authorization: `Bearer ${readBearerToken()}` }),
    },
  });
  const { status, headers } = response;
  const text = await readResponseText(response, MAX_BYTES);
  if (status === 200 && !isJsonType(headers)) throw new Error(`${url} did not respond with JSON`);
  return { status, text };
}

export const isJsonType = (headers: HttpResponse['headers']): boolean =>
  /^application\/(?:[\w.+-]+\+)?json\s*(?:;|$)/i.test(String(headers['content-type']));
