import { IDENTITY_ENCODING, readResponseText } from '../http/read-response.ts';
import { createHttpClient, type HttpRequest, type HttpResponse } from '../lib/http-client.ts';
import { printable } from '../lib/printable.ts';
import { parseStrictJsonObject } from '../lib/strict-json.ts';
import { explainConnectionError } from './connection-error.ts';
import { OAuthError, ServiceUnavailableError } from './errors.ts';

export interface ServiceOptions {
  /** The base URL of gatehouse, such as https://api.example.test */
  readonly url: string | URL;
  /** Path of the token service below `url`. Default: /authsvc */
  readonly servicePath?: string | undefined;
  /** The CA to trust, PEM. Default: the CAs of the runtime. */
  readonly ca?: string | Buffer | undefined;
  readonly certificate?: { readonly cert: string | Buffer; readonly key: string | Buffer } | undefined;
  /** Milliseconds for one response. Default: 15,000 */
  readonly timeout?: number | undefined;
  /** How error messages name the option that sets the CA. */
  readonly caOption?: string | undefined;
}

/** Calls to the token API. */
export type TokenService = ReturnType<typeof createTokenService>;

export type ServiceResponse = Readonly<Record<string, unknown>>;

const TIMEOUT_MS = 15_000;
const MAX_BYTES = 64 * 1_024;

export function createTokenService(options: ServiceOptions) {
  const { ca, certificate, caOption = 'the option ca', servicePath = '/authsvc' } = options;
  const url = parseBaseUrl(options.url);
  const base = new URL(`${url.pathname.replace(/\/$/, '')}${servicePath}/`, url);
  if (base.origin !== url.origin) throw new TypeError(`${url.origin}: servicePath leads to another origin`);
  const http = createHttpClient({ timeoutMs: options.timeout ?? TIMEOUT_MS, ca, certificate });

  const send = async (route: string, request: HttpRequest): Promise<ServiceResponse> => {
    let response: HttpResponse;
    let text: string;
    try {
      const headers = { ...request.headers, accept: 'application/json', ...IDENTITY_ENCODING };
      response = await http.send(new URL(route, base), { ...request, headers });
      text = await readResponseText(response, MAX_BYTES);
    } catch (error) {
      const { message, isLocal } = explainConnectionError(error, { url, caOption, hasCa: ca !== undefined });
      throw new ServiceUnavailableError(`${url.origin} ${message}`, { cause: error, isLocal });
    }
    return parseResponse(url, response, text);
  };

  return {
    url,
    /** The URL of the token service. Grants belong to it. */
    base: base.href,
    /** Returns an agent for requests to the API with the same CA and certificate. */
    agent: () => http.getAgent(),
    post: (route: string, body: Readonly<Record<string, string>>, timeoutMs?: number) =>
      send(route, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
        timeoutMs,
      }),
    /** Calls an OAuth endpoint, with the access token if there is one. */
    postForm: (route: string, fields: Readonly<Record<string, string>>, accessToken?: string) =>
      send(route, {
        method: 'POST',
        headers: {
          ...(accessToken !== undefined && { authorization: `Bearer ${accessToken}` }),
          'content-type': 'application/x-www-form-urlencoded',
        },
        body: new URLSearchParams(fields).toString(),
      }),
    get: (route: string, accessToken: string) => send(route, { headers: { authorization: `Bearer ${accessToken}` } }),
    close: () => http.close(),
  };
}

/** Throws unless tokens may be sent to this URL. */
export function parseBaseUrl(input: string | URL): URL {
  const url = new URL(input);
  if (url.protocol !== 'https:' && !isLoopback(url))
    throw new TypeError(`${url.origin}: tokens are sent over https only (http is for loopback addresses)`);
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '')
    throw new TypeError(`${url.origin}: the URL must not contain a user, a query or a fragment`);
  return url;
}

const isLoopback = ({ protocol, hostname }: URL): boolean =>
  protocol === 'http:' && /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/.test(hostname);

/** Only an OAuth error is a refusal: an error page of a proxy in between is not. */
function parseResponse(url: URL, { status, headers }: HttpResponse, text: string): ServiceResponse {
  const body = parseStrictJsonObject(text);
  if (status === 200 && body !== undefined) return body;
  const retryAfter = parseRetryAfter(headers['retry-after']);
  const code = readString(body, 'Error', 'error');
  const description = readString(body, 'Error_description', 'error_description');
  // Where the specification allows no other status, the service reports its own failure as 400 with Retry-After.
  const isServiceFailure = status >= 500 || status === 429 || (code === 'invalid_request' && retryAfter !== undefined);
  if (!isServiceFailure && code !== '') throw new OAuthError(code, description, status);
  const detail = description === '' ? '' : `: ${description}`;
  throw new ServiceUnavailableError(`${url.origin} returned ${status}${detail}`, { retryAfter });
}

/** The text is escaped, because errors are printed. */
function readString(body: ServiceResponse = {}, ...names: readonly string[]): string {
  const found = names.map((name) => body[name]).find((value) => typeof value === 'string') ?? '';
  return printable(found.slice(0, 500));
}

const parseRetryAfter = (header: string | string[] | undefined): number | undefined =>
  typeof header === 'string' && /^\d{1,6}$/.test(header) ? Number(header) : undefined;
