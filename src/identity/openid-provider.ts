import type { Configuration, CustomFetch } from 'openid-client';
import type { LocalizedText } from '../domain/language.ts';
import { createProfile, type Profile } from '../domain/user.ts';
import { IDENTITY_ENCODING, readResponseText, UnusableResponse } from '../http/read-response.ts';
import { createHttpClient, type HttpClient } from '../lib/http-client.ts';
import { singleFlight } from '../lib/promises.ts';
import { parseStrictJson } from '../lib/strict-json.ts';
import type { Claim } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';

/** What an app demands of the sign-in (OpenID Connect Core §3.1.2.1). */
export interface SignInDemands {
  readonly prompt?: string | undefined;
  /** Seconds. */
  readonly maxAge?: number | undefined;
}

export interface AuthorizationChecks {
  readonly state: string;
  readonly nonce: string;
  readonly verifier: string;
}

type OpenIdResult =
  | {
      readonly kind: 'authenticated';
      readonly claim: Claim;
      readonly displayName?: string;
      readonly profile?: Profile;
      /** Empty unless the settings name the claim. */
      readonly groups: readonly string[];
      /** Seconds from the authentication of the user to the ID token, by the provider's clock. Omitted: unknown. */
      readonly authenticationAge?: number;
    }
  /** An error response of the provider: the user cancelled, or may not sign in. */
  | { readonly kind: 'cancelled' }
  /** The response is not valid; `reason` is for the log. */
  | { readonly kind: 'refused'; readonly reason: string };

export interface OpenIdSettings {
  readonly title: LocalizedText;
  readonly issuer: string;
  readonly clientId: string;
  readonly clientSecret?: string;
  readonly sendSecret: 'basic' | 'post';
  readonly scope: string;
  readonly prompt?: string;
  /** PEM. */
  readonly ca?: string;
  readonly directory: string;
  readonly claim: string;
  readonly means: Claim['attribute'];
  /** The claim with the groups. */
  readonly groups?: string;
  /** Seconds. */
  readonly timeout: number;
}

/** After this time the metadata and keys of a provider are fetched again. */
const METADATA_TTL_MS = 600_000;
/** While that fails, the old metadata is used for this time. */
const MAX_STALE_MS = 3_600_000;
/** After a failed discovery; doubled with each failure, minus a random part of up to half. */
const INITIAL_BACKOFF_MS = 2_000;
const MAX_BACKOFF_MS = 60_000;
const MAX_RESPONSE_BYTES = 256 * 1_024;
const MAX_CONNECTIONS = 8;
const MAX_CLAIM_LENGTH = 256;
const MAX_CAUSE_DEPTH = 8;

export type OpenIdProvider = ReturnType<typeof createOpenIdProvider>;

/**
 * Sign-in with an OpenID provider: authorization code flow with PKCE, state and nonce. The signature of the ID token is
 * verified although it comes directly from the provider. Each provider has its own redirect URI against mix-up attacks
 * (RFC 9700 §4.4).
 */
export function createOpenIdProvider(
  name: string,
  settings: OpenIdSettings,
  /** Monotonic milliseconds. */
  now: () => number = () => performance.now(),
) {
  const httpClient = createHttpClient({
    timeoutMs: settings.timeout * 1_000,
    ca: settings.ca,
    maxConnections: MAX_CONNECTIONS,
  });
  const readMetadata = createMetadataCache(() => discover(settings, createFetch(httpClient)), now);
  return {
    name,
    title: settings.title,
    directory: settings.directory,
    /** The authorization URL and the values to check the response against. Throws a `Fault` if the provider is unreachable. */
    async startSignIn(redirectUri: string, { prompt = '', maxAge }: SignInDemands = {}) {
      const [client, configuration] = await Promise.all([import('openid-client'), readMetadata()]);
      const checks: AuthorizationChecks = {
        state: client.randomState(),
        nonce: client.randomNonce(),
        verifier: client.randomPKCECodeVerifier(),
      };
      const prompts = new Set([settings.prompt, ...prompt.split(' ')].filter(Boolean));
      const url = client.buildAuthorizationUrl(configuration, {
        redirect_uri: redirectUri,
        scope: settings.scope,
        state: checks.state,
        nonce: checks.nonce,
        code_challenge: await client.calculatePKCECodeChallenge(checks.verifier),
        code_challenge_method: 'S256',
        ...(prompts.size > 0 && { prompt: [...prompts].join(' ') }),
        ...(maxAge !== undefined && { max_age: String(maxAge) }),
      });
      return { url: url.href, checks };
    },

    /** `callbackUrl`: the authorization response. Throws a `Fault` if the provider is unreachable. */
    async completeSignIn(callbackUrl: URL, checks: AuthorizationChecks): Promise<OpenIdResult> {
      const [client, configuration] = await Promise.all([import('openid-client'), readMetadata()]);
      try {
        const tokens = await client.authorizationCodeGrant(configuration, callbackUrl, {
          expectedState: checks.state,
          expectedNonce: checks.nonce,
          pkceCodeVerifier: checks.verifier,
          idTokenExpected: true,
        });
        const idTokenClaims = tokens.claims();
        if (idTokenClaims === undefined) return { kind: 'refused', reason: 'there is no ID token' };
        const { issuer, userinfo_endpoint: userInfoEndpoint } = configuration.serverMetadata();
        // Some providers have only the subject in the ID token.
        const isMissing = [settings.claim, settings.groups].some(
          (claim) => claim !== undefined && idTokenClaims[claim] === undefined,
        );
        const userInfo =
          isMissing && userInfoEndpoint !== undefined
            ? await client.fetchUserInfo(configuration, tokens.access_token, idTokenClaims.sub)
            : {};
        const result = toResult(settings, issuer, { ...userInfo, ...idTokenClaims });
        const { auth_time: authTime, iat: issuedAt } = idTokenClaims;
        return result.kind === 'authenticated' && authTime !== undefined
          ? { ...result, authenticationAge: Math.max(0, issuedAt - authTime) }
          : result;
      } catch (error) {
        return classifyError(client, error);
      }
    },
    // `close` rejects if the client is closed already.
    close: () => httpClient.close().catch(() => {}),
  };
}

function toResult(
  { claim, means, groups }: OpenIdSettings,
  issuer: string,
  claims: Readonly<Record<string, unknown>>,
): OpenIdResult {
  const value = claims[claim];
  if (typeof value !== 'string' || value === '' || value.length > MAX_CLAIM_LENGTH || /\p{Cc}/u.test(value))
    return { kind: 'refused', reason: `the ID token has no usable claim ${claim}` };
  // Users can enter any address in their profile.
  if ((means === 'email' || claim === 'email') && claims['email_verified'] !== true)
    return { kind: 'refused', reason: 'the email address was not verified by the provider' };
  const displayName = ['name', 'preferred_username', 'email']
    .map((key) => claims[key])
    .find((text) => typeof text === 'string' && text !== '');
  const { preferred_username: name, email, email_verified: isVerified } = claims;
  const profile = createProfile({
    ...(typeof name === 'string' && { name }),
    ...(typeof email === 'string' && isVerified === true && { email }),
  });
  return {
    kind: 'authenticated',
    claim: { issuer, attribute: means, value },
    ...(profile !== undefined && { profile }),
    groups: groups === undefined ? [] : readGroups(claims[groups]),
    ...(typeof displayName === 'string' && { displayName: displayName.slice(0, MAX_CLAIM_LENGTH) }),
  };
}

const MAX_GROUPS = 1_000;

const readGroups = (value: unknown): readonly string[] =>
  Array.isArray(value)
    ? value
        .slice(0, MAX_GROUPS)
        .filter((group) => typeof group === 'string' && group !== '' && group.length <= MAX_CLAIM_LENGTH)
    : [];

type Client = typeof import('openid-client');

/** Throws a `Fault` if the provider does not work, or rejects the credentials of gatehouse. */
function classifyError(client: Client, error: unknown): OpenIdResult {
  if (error instanceof client.AuthorizationResponseError) {
    if (UNAVAILABLE_ERRORS.has(error.error)) throw createUnavailableFault(error.error, error);
    return { kind: 'cancelled' };
  }
  if (error instanceof client.ResponseBodyError) {
    if (error.status >= 500 || UNAVAILABLE_ERRORS.has(error.error)) throw createUnavailableFault(error.error, error);
    return { kind: 'refused', reason: `the provider responded with ${toPrintable(error.error)}` };
  }
  if (error instanceof client.WWWAuthenticateChallengeError) throw createUnavailableFault('invalid_client', error);
  const code = getErrorCode(error);
  if (code === undefined || TRANSPORT_ERROR_CODES.has(code) || isFetchFailure(error))
    throw createUnavailableFault(code ?? 'no response', error);
  return { kind: 'refused', reason: code };
}

const UNAVAILABLE_ERRORS: ReadonlySet<string> = new Set(['temporarily_unavailable', 'server_error', 'invalid_client']);
/** Codes of openid-client for unusable responses. */
const TRANSPORT_ERROR_CODES: ReadonlySet<string> = new Set([
  'OAUTH_TIMEOUT',
  'OAUTH_ABORT',
  'OAUTH_RESPONSE_IS_NOT_CONFORM',
  'OAUTH_RESPONSE_IS_NOT_JSON',
  'OAUTH_PARSE_ERROR',
]);

const isFetchFailure = (error: unknown): boolean => error instanceof TypeError && /fetch failed/.test(error.message);

function getErrorCode(error: unknown): string | undefined {
  const code = (error as { readonly code?: unknown } | undefined)?.code;
  return typeof code === 'string' ? code : undefined;
}

const toPrintable = (text: string): string => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 80);

/** The root cause is kept: the outer errors of openid-client only say that something failed. */
function createUnavailableFault(reason: string, error?: unknown): Fault {
  let cause = error;
  for (let depth = 0; depth < MAX_CAUSE_DEPTH; depth += 1)
    if (cause instanceof Error && cause.cause instanceof Error) cause = cause.cause;
  return new Fault('directory_unavailable', `OpenID: ${toPrintable(reason)}`, {
    retryAfter: 5,
    ...(cause instanceof Error && { cause: new Error(toPrintable(cause.message)) }),
  });
}

/** Fetches the provider metadata (OpenID Connect Discovery §4). */
async function discover(settings: OpenIdSettings, fetch: CustomFetch): Promise<Configuration> {
  const { issuer, clientSecret, sendSecret } = settings;
  try {
    // Imported on first use: most configurations have no provider.
    const client = await import('openid-client');
    const authenticate = sendSecret === 'post' ? client.ClientSecretPost : client.ClientSecretBasic;
    const configuration = await client.discovery(
      new URL(issuer),
      settings.clientId,
      undefined,
      clientSecret === undefined ? client.None() : authenticate(clientSecret),
      {
        [client.customFetch]: fetch,
        timeout: settings.timeout,
        execute: [
          ...(issuer.startsWith('http:') ? [client.allowInsecureRequests] : []),
          client.enableNonRepudiationChecks,
        ],
      },
    );
    // Entra ID's multi-tenant issuer has a placeholder, which openid-client would replace with a claim of the token.
    if (configuration.serverMetadata().issuer.includes('{'))
      throw createUnavailableFault('its issuer is a template for any tenant');
    // Throws unless the authorization endpoint has the scheme https, or http like the issuer.
    client.buildAuthorizationUrl(configuration, {});
    return configuration;
  } catch (error) {
    if (error instanceof Fault) throw error;
    const code = getErrorCode((error as Error).cause) ?? getErrorCode(error);
    throw createUnavailableFault(code ?? 'no response', error);
  }
}

/** Caches the metadata. After a failure, requests fail immediately until the backoff has passed. */
function createMetadataCache(load: () => Promise<Configuration>, now: () => number) {
  let cached: { readonly fetchedAt: number; readonly configuration: Configuration } | undefined;
  let lastFailure: { readonly attempts: number; readonly retryAt: number; readonly fault: Fault } | undefined;
  const getCached = (maxAge: number): Configuration | undefined =>
    cached !== undefined && now() - cached.fetchedAt <= maxAge ? cached.configuration : undefined;

  const refresh = singleFlight(async (): Promise<Configuration> => {
    try {
      const configuration = await load();
      cached = { fetchedAt: now(), configuration };
      lastFailure = undefined;
      return configuration;
    } catch (error) {
      const attempts = (lastFailure?.attempts ?? 0) + 1;
      const backoff = Math.min(INITIAL_BACKOFF_MS * 2 ** Math.min(attempts - 1, 10), MAX_BACKOFF_MS);
      const retryAt = now() + backoff * (1 - Math.random() / 2);
      lastFailure = { attempts, retryAt, fault: error as Fault };
      const stale = getCached(MAX_STALE_MS);
      if (stale === undefined) throw error;
      return stale;
    }
  });

  return async (): Promise<Configuration> => {
    const fresh = getCached(METADATA_TTL_MS);
    if (fresh !== undefined) return fresh;
    if (lastFailure !== undefined && now() < lastFailure.retryAt) {
      const stale = getCached(MAX_STALE_MS);
      if (stale !== undefined) return stale;
      const { code, message, cause } = lastFailure.fault;
      const retryAfter = Math.ceil((lastFailure.retryAt - now()) / 1_000);
      throw new Fault(code, message, { cause, retryAfter });
    }
    return refresh();
  };
}

/** `fetch` for openid-client: no redirects, no content codings, and limits on size, nesting and time. */
const createFetch =
  (httpClient: HttpClient): CustomFetch =>
  // The client has the same timeout as openid-client, so the signal of openid-client is not needed.
  async (url, { method, headers, body }) => {
    try {
      const response = await httpClient.send(url, {
        method,
        headers: { ...headers, ...IDENTITY_ENCODING },
        body: (body as string | URLSearchParams | null | undefined)?.toString(),
      });
      const text = await readResponseText(response, MAX_RESPONSE_BYTES);
      assertUnambiguousJson(text);
      const hasNoBody = [204, 205, 304].includes(response.status);
      return new Response(hasNoBody ? null : text, {
        status: response.status,
        headers: Object.entries(response.headers).flatMap(([name, value]) =>
          [value ?? ''].flat().map((item): [string, string] => [name, item]),
        ),
      });
    } catch (error) {
      // The errors of `fetch`: openid-client distinguishes timeouts from other failures.
      throw error instanceof DOMException ? error : new TypeError('fetch failed', { cause: error });
    }
  };

/** Rejects repeated members and deep nesting before openid-client parses the response. */
function assertUnambiguousJson(text: string): void {
  if (!/^\s*[[{]/.test(text)) return;
  try {
    parseStrictJson(text);
  } catch {
    throw new UnusableResponse('the response is not unambiguous JSON');
  }
}
