import type { Configuration, CustomFetch } from 'openid-client';
import type { OwnText } from '../domain/language.ts';
import { NO_CODING, readText, UnusableResponse } from '../http/read-response.ts';
import { parseStrictJson } from '../http/strict-json.ts';
import type { Claim } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';

/**
 * Sign-in by an OpenID provider: code flow with PKCE, state and nonce. The ID token's signature is verified though it
 * comes from the provider itself, and each provider has a redirect address of its own, so that an answer of one
 * cannot be taken for another's (RFC 9700 §4.4).
 */
export interface OpenIdProvider {
  readonly name: string;
  readonly title: OwnText;
  readonly directory: string;
  /** Where the browser goes, and what its answer will be held against. Throws a `Fault` when the provider is away. */
  begin(redirectUri: string): Promise<{ readonly url: string; readonly expects: Expected }>;
  /** The provider's answer, as the address the browser came back to. Throws a `Fault` when the provider is away. */
  finish(answer: URL, expects: Expected): Promise<OpenIdAnswer>;
  close(): Promise<void>;
}

export interface Expected {
  readonly state: string;
  readonly nonce: string;
  readonly verifier: string;
}

export type OpenIdAnswer =
  | { readonly kind: 'known'; readonly claim: Claim; readonly shownAs?: string }
  /** The person, or the provider for them, said no. */
  | { readonly kind: 'cancelled' }
  /** What came back is not what was asked for; `why` is for the log. */
  | { readonly kind: 'refused'; readonly why: string };

export interface OpenIdSettings {
  readonly title: OwnText;
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
  readonly means: Claim['means'];
  /** Seconds. */
  readonly timeout: number;
}

/** What a provider offers is read again after this time: its keys and addresses may move. */
const METADATA_MS = 600_000;
/** How long what was read before is used while it cannot be read again. */
const MAX_STALE_MS = 3_600_000;
/** After a failed discovery there is none for this time, doubled with each failure, less up to half of it by chance. */
const FIRST_PAUSE_MS = 2_000;
const MAX_PAUSE_MS = 60_000;
const MAX_RESPONSE = 256 * 1_024;
const MAX_HEADERS = 16 * 1_024;
const MAX_VALUE = 256;

export function openIdProvider(
  name: string,
  settings: OpenIdSettings,
  /** Milliseconds of a clock that never goes back. */
  now: () => number = () => performance.now(),
): OpenIdProvider {
  const known = metadata(settings, now);
  return {
    name,
    title: settings.title,
    directory: settings.directory,
    async begin(redirectUri) {
      const [client, configuration] = await Promise.all([import('openid-client'), known.read()]);
      const expects = {
        state: client.randomState(),
        nonce: client.randomNonce(),
        verifier: client.randomPKCECodeVerifier(),
      };
      const url = client.buildAuthorizationUrl(configuration, {
        redirect_uri: redirectUri,
        scope: settings.scope,
        state: expects.state,
        nonce: expects.nonce,
        code_challenge: await client.calculatePKCECodeChallenge(expects.verifier),
        code_challenge_method: 'S256',
        ...(settings.prompt !== undefined && { prompt: settings.prompt }),
      });
      return { url: url.href, expects };
    },

    async finish(answer, expects) {
      const [client, configuration] = await Promise.all([import('openid-client'), known.read()]);
      try {
        const tokens = await client.authorizationCodeGrant(configuration, answer, {
          expectedState: expects.state,
          expectedNonce: expects.nonce,
          pkceCodeVerifier: expects.verifier,
          idTokenExpected: true,
        });
        const inToken = tokens.claims();
        if (inToken === undefined) return { kind: 'refused', why: 'there is no ID token' };
        const { issuer, userinfo_endpoint: asks } = configuration.serverMetadata();
        // Some providers tell no more than the subject in the token, and the rest when asked.
        const more =
          inToken[settings.claim] === undefined && asks !== undefined
            ? await client.fetchUserInfo(configuration, tokens.access_token, inToken.sub)
            : {};
        return answerOf(settings, issuer, { ...more, ...inToken });
      } catch (error) {
        return whyNot(client, error);
      }
    },
    close: () => known.close(),
  };
}

function answerOf(
  { claim, means }: OpenIdSettings,
  issuer: string,
  claims: Readonly<Record<string, unknown>>,
): OpenIdAnswer {
  const value = claims[claim];
  if (typeof value !== 'string' || value === '' || value.length > MAX_VALUE || /\p{Cc}/u.test(value))
    return { kind: 'refused', why: `the ID token has no usable claim ${claim}` };
  // Anybody can write anybody's address into a profile; only a verified one is theirs.
  if ((means === 'email' || claim === 'email') && claims['email_verified'] !== true)
    return { kind: 'refused', why: 'the e-mail address was not verified by the provider' };
  const shownAs = ['name', 'preferred_username', 'email']
    .map((one) => claims[one])
    .find((one) => typeof one === 'string' && one !== '');
  return {
    kind: 'known',
    claim: { issuer, means, value },
    ...(typeof shownAs === 'string' && { shownAs: shownAs.slice(0, MAX_VALUE) }),
  };
}

type Client = typeof import('openid-client');

/** Whose fault it was: the person's choice, an answer that cannot be trusted, or a provider that does not work. */
function whyNot(client: Client, error: unknown): OpenIdAnswer {
  if (error instanceof client.AuthorizationResponseError)
    return AWAY.has(error.error) ? away(error.error, error) : { kind: 'cancelled' };
  if (error instanceof client.ResponseBodyError)
    return error.status >= 500 || AWAY.has(error.error)
      ? away(error.error, error)
      : { kind: 'refused', why: `the provider said ${safe(error.error)}` };
  // The provider does not take our name or secret.
  if (error instanceof client.WWWAuthenticateChallengeError) return away('invalid_client', error);
  const code = codeOf(error);
  if (code === undefined || TRANSPORT.has(code) || isTransport(error))
    return away(code ?? 'no answer', error);
  return { kind: 'refused', why: code };
}

const AWAY: ReadonlySet<string> = new Set(['temporarily_unavailable', 'server_error', 'invalid_client']);
/** openid-client's codes of responses that cannot be used. */
const TRANSPORT: ReadonlySet<string> = new Set([
  'OAUTH_TIMEOUT',
  'OAUTH_ABORT',
  'OAUTH_RESPONSE_IS_NOT_CONFORM',
  'OAUTH_RESPONSE_IS_NOT_JSON',
  'OAUTH_PARSE_ERROR',
]);

const isTransport = (error: unknown): boolean =>
  error instanceof TypeError && /fetch failed/.test(error.message);

function codeOf(error: unknown): string | undefined {
  const code = (error as { readonly code?: unknown } | undefined)?.code;
  return typeof code === 'string' ? code : undefined;
}

const safe = (text: string): string => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 80);

/** With the innermost error as the cause: the outer ones say no more than that something failed. */
function away(why: string, error?: unknown): never {
  let cause = error;
  for (
    let depth = 0;
    depth < MOST_CAUSES && cause instanceof Error && cause.cause instanceof Error;
    depth += 1
  )
    cause = cause.cause;
  throw new Fault('directory_unavailable', `OpenID: ${safe(why)}`, {
    retryAfter: 5,
    ...(cause instanceof Error && { cause: new Error(safe(cause.message)) }),
  });
}

const MOST_CAUSES = 8;

/** Read once for many sign-ins. After a failure, sign-ins fail at once for a while instead of repeating it. */
function metadata(
  settings: OpenIdSettings,
  now: () => number,
): {
  read(): Promise<Configuration>;
  close(): Promise<void>;
} {
  let good: { readonly at: number; readonly configuration: Configuration } | undefined;
  let failed: { readonly times: number; readonly until: number; readonly fault: Fault } | undefined;
  let running: Promise<Configuration> | undefined;
  const connection = connectionTo(settings);

  const discover = async (): Promise<Configuration> => {
    // Loaded with the first use: a gateway without a provider does not pay for it.
    const [client, fetchThere] = await Promise.all([import('openid-client'), connection.fetch()]);
    const { clientSecret, sendSecret } = settings;
    const authentication =
      clientSecret === undefined
        ? client.None()
        : sendSecret === 'post'
          ? client.ClientSecretPost(clientSecret)
          : client.ClientSecretBasic(clientSecret);
    const insecure = settings.issuer.startsWith('http:') ? [client.allowInsecureRequests] : [];
    const configuration = await client.discovery(
      new URL(settings.issuer),
      settings.clientId,
      undefined,
      authentication,
      {
        [client.customFetch]: fetchThere,
        timeout: settings.timeout,
        execute: [...insecure, client.enableNonRepudiationChecks],
      },
    );
    // Entra ID's word for "any tenant", which openid-client would fill in from the token itself.
    if (configuration.serverMetadata().issuer.includes('{')) return away('its issuer is everybody');
    // Throws unless browsers are sent to an https address, or to http where the issuer itself has it.
    client.buildAuthorizationUrl(configuration, {});
    return configuration;
  };

  const stale = (): Configuration | undefined =>
    good !== undefined && now() - good.at <= MAX_STALE_MS ? good.configuration : undefined;

  const attempt = async (): Promise<Configuration> => {
    try {
      const configuration = await discover();
      good = { at: now(), configuration };
      failed = undefined;
      return configuration;
    } catch (error) {
      const fault = faultOf(error);
      const times = (failed?.times ?? 0) + 1;
      const pause = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(times - 1, 10), MAX_PAUSE_MS);
      failed = { times, until: now() + pause * (1 - Math.random() / 2), fault };
      const before = stale();
      if (before === undefined) throw fault;
      return before;
    }
  };

  return {
    async read() {
      if (good !== undefined && now() - good.at <= METADATA_MS) return good.configuration;
      if (failed !== undefined && now() < failed.until) {
        const before = stale();
        if (before !== undefined) return before;
        const { code, message, cause } = failed.fault;
        throw new Fault(code, message, { cause, retryAfter: Math.ceil((failed.until - now()) / 1_000) });
      }
      running ??= attempt().finally(() => {
        running = undefined;
      });
      return running;
    },
    close: () => connection.close(),
  };
}

function faultOf(error: unknown): Fault {
  try {
    if (error instanceof Fault) return error;
    return away(codeOf((error as { cause?: unknown }).cause) ?? codeOf(error) ?? 'no answer', error);
  } catch (fault) {
    return fault as Fault;
  }
}

/**
 * Connections to the provider. `fetch` for openid-client: without redirects and content codings, within limits on bytes,
 * nesting and time.
 */
function connectionTo({ ca, timeout }: OpenIdSettings): {
  fetch(): Promise<CustomFetch>;
  close(): Promise<void>;
} {
  const limitMs = timeout * 1_000;
  const open = async () => {
    const undici = await import('undici');
    const dispatcher = new undici.Agent({
      allowH2: false,
      connect: {
        timeout: limitMs,
        // Named, so that no environment variable can turn it off.
        rejectUnauthorized: true,
        ...(ca !== undefined && { ca }),
      },
      headersTimeout: limitMs,
      bodyTimeout: limitMs,
      maxHeaderSize: MAX_HEADERS,
      connections: 8,
    });
    const exchange: CustomFetch = async (url, { method, headers, body, signal }) => {
      const late = AbortSignal.timeout(limitMs);
      const sent = body instanceof URLSearchParams ? body.toString() : body;
      if (sent !== undefined && sent !== null && typeof sent !== 'string')
        throw new TypeError('a form or no body is sent to a provider');
      const response = await undici.request(url, {
        method: method as 'GET' | 'POST',
        headers: { ...headers, ...NO_CODING },
        ...(typeof sent === 'string' && { body: sent }),
        dispatcher,
        // For the whole exchange: a response that comes byte by byte ends with it.
        signal: signal === undefined ? late : AbortSignal.any([signal, late]),
      });
      const text = await readText(response, MAX_RESPONSE);
      mustBeFlat(text);
      const isBodiless = [204, 205, 304].includes(response.statusCode);
      return new undici.Response(isBodiless ? null : text, {
        status: response.statusCode,
        headers: Object.entries(response.headers).flatMap(([name, value]) =>
          (Array.isArray(value) ? value : [value ?? '']).map((one): [string, string] => [name, one]),
        ),
      });
    };
    const fetchThere: CustomFetch = async (url, options) => {
      try {
        return await exchange(url, options);
      } catch (error) {
        // As `fetch` does: openid-client distinguishes time-outs from other failures.
        throw error instanceof DOMException ? error : new TypeError('fetch failed', { cause: error });
      }
    };
    return { dispatcher, fetchThere };
  };
  let opened: ReturnType<typeof open> | undefined;
  return {
    fetch: async () => (await (opened ??= open())).fetchThere,
    async close() {
      // A dispatcher that is closed already rejects.
      await (await opened?.catch(() => undefined))?.dispatcher.close().catch(() => {});
    },
  };
}

/** JSON that is nested without end, or names a member twice, is refused before any library reads it. */
function mustBeFlat(text: string): void {
  if (!/^\s*[[{]/.test(text)) return;
  try {
    parseStrictJson(text);
  } catch {
    throw new UnusableResponse('the response is not unambiguous JSON');
  }
}
