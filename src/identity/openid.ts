import type { Configuration, CustomFetch } from 'openid-client';
import type { OwnText } from '../domain/language.ts';
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
const MAX_RESPONSE = 1_048_576;
const MAX_VALUE = 256;

export function openIdProvider(name: string, settings: OpenIdSettings): OpenIdProvider {
  const known = metadata(settings);
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
/** openid-client's words for an answer that is none. */
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

/** Read once for many sign-ins; a failure is not remembered. */
function metadata(settings: OpenIdSettings): {
  read(): Promise<Configuration>;
  close(): Promise<void>;
} {
  let last: { readonly at: number; readonly configuration: Promise<Configuration> } | undefined;
  let agent: { close(): Promise<void> } | undefined;

  const discover = async (): Promise<Configuration> => {
    // Loaded with the first use: whoever has no provider does not pay for it.
    const [client, undici] = await Promise.all([import('openid-client'), import('undici')]);
    const dispatcher = new undici.Agent({
      allowH2: false,
      connect: {
        timeout: settings.timeout * 1_000,
        // Named, so that no environment variable can turn it off.
        rejectUnauthorized: true,
        ...(settings.ca !== undefined && { ca: settings.ca }),
      },
      headersTimeout: settings.timeout * 1_000,
      bodyTimeout: settings.timeout * 1_000,
      maxResponseSize: MAX_RESPONSE,
      connections: 8,
    });
    void agent?.close().catch(() => {});
    agent = dispatcher;
    const fetchThere = ((url: string, options: object) =>
      undici.fetch(url, { ...options, dispatcher })) as unknown as CustomFetch;
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
    return configuration;
  };

  return {
    read() {
      if (last === undefined || performance.now() - last.at > METADATA_MS) {
        const configuration = discover().catch((error: unknown) => {
          last = undefined;
          if (error instanceof Fault) throw error;
          return away(codeOf((error as { cause?: unknown }).cause) ?? codeOf(error) ?? 'no answer', error);
        });
        last = { at: performance.now(), configuration };
      }
      return last.configuration;
    },
    async close() {
      // One that is closed already says so by an error.
      await agent?.close().catch(() => {});
    },
  };
}
