import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { exportJWK, generateKeyPair, type JWK } from 'jose';
import { type Configuration, Provider } from 'oidc-provider';
import * as openid from 'openid-client';
import { type Agent, fetch as fetchBy } from 'undici';
import { createAgent, FormBrowser } from './form-browser.ts';
import type { IssuedCertificate } from './pki.ts';

/** The APIs for which it issues access tokens, by their resource indicators (RFC 8707). */
const RESOURCES = {
  jwt: { url: 'https://files.example.test/', audience: 'files-api', accessTokenFormat: 'jwt' },
  opaque: { url: 'https://opaque.example.test/', audience: 'files-api', accessTokenFormat: 'opaque' },
  mail: { url: 'https://mail.example.test/', audience: 'mail-api', accessTokenFormat: 'jwt' },
  opaqueMail: { url: 'https://opaque-mail.example.test/', audience: 'mail-api', accessTokenFormat: 'opaque' },
} as const;
export type Resource = keyof typeof RESOURCES;

/** The client with which gatehouse asks about tokens. Characters that HTTP Basic and forms encode are part of its secret. */
export const INTROSPECTION_CLIENT = { id: 'gate:house', secret: 'a secret: 100 % + ~' } as const;
/** A program without users. */
const SERVICE = { id: 'reports', secret: 'the secret of the reports' } as const;
const CALLBACK = 'https://client.example.test/callback';

export interface SignedInUser {
  readonly tokens: Awaited<ReturnType<typeof openid.authorizationCodeGrant>>;
  /** Revokes a token at the provider (RFC 7009). */
  revoke(token: string): Promise<void>;
  /** Ends the session at the provider, as its user. */
  signOut(): Promise<void>;
}

/** A real OpenID provider (oidc-provider) that issues access tokens for APIs, over TLS. */
export interface OpenIdTokenProvider {
  readonly issuer: string;
  readonly introspectionUrl: string;
  /** Paths of the requests it has received. */
  readonly requests: readonly string[];
  /** Results of the logout tokens that it has sent: `200`, or the error. */
  readonly logouts: readonly string[];
  /** Tokens that it has issued, to look for in logs. */
  readonly issued: readonly string[];
  /** A token of a program, by `client_credentials`; with a key, bound to it (DPoP). */
  issueToService(resource?: Resource, proofKey?: openid.CryptoKeyPair): Promise<string>;
  /** Signs in with a browser and the authorization code flow. */
  signIn(user: string, options?: { readonly clientId?: string; readonly resource?: Resource }): Promise<SignedInUser>;
  /** Starts it again with a new signing key. The previous key is still published, unless it is removed. */
  rotateKey(options?: { readonly removePrevious?: boolean }): Promise<void>;
  stop(): Promise<void>;
}

export interface TokenProviderOptions {
  readonly ca: IssuedCertificate;
  readonly server: IssuedCertificate;
  /** Back-channel logout URL of its clients. */
  readonly logoutUrl: string;
}

const createKey = async (): Promise<JWK> => {
  const { privateKey } = await generateKeyPair('ES256', { extractable: true });
  return { ...(await exportJWK(privateKey)), kid: crypto.randomUUID(), alg: 'ES256', use: 'sig' };
};

export async function startOpenIdTokenProvider({
  ca,
  server,
  logoutUrl,
}: TokenProviderOptions): Promise<OpenIdTokenProvider> {
  let handle: ReturnType<Provider['callback']> | undefined;
  const requests: string[] = [];
  const logouts: string[] = [];
  const issued: string[] = [];
  const listener = createServer({ cert: server.pem, key: server.keyPem }, (request, response) => {
    requests.push(String(request.url));
    void handle?.(request, response);
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  const { port } = listener.address() as AddressInfo;
  const issuer = `https://localhost:${port}`;
  const agent = createAgent({ ca: ca.pem });

  const start = (keys: readonly JWK[]): void => {
    const provider = createProvider({ issuer, keys, agent, logoutUrl });
    provider.on('backchannel.success', () => void logouts.push('200'));
    provider.on('backchannel.error', (_context, error) => void logouts.push(String(error)));
    handle = provider.callback();
  };
  let keys = [await createKey()];
  start(keys);

  const discover = (clientId: string, authentication: openid.ClientAuth): Promise<openid.Configuration> =>
    openid.discovery(new URL(issuer), clientId, { id_token_signed_response_alg: 'ES256' }, authentication, {
      [openid.customFetch]: async (url, options) => fetchBy(url, { ...(options as object), dispatcher: agent }),
    });

  return {
    issuer,
    introspectionUrl: `${issuer}/token/introspection`,
    requests,
    logouts,
    issued,
    async issueToService(resource = 'jwt', proofKey) {
      const config = await discover(SERVICE.id, openid.ClientSecretPost(SERVICE.secret));
      const { access_token } = await openid.clientCredentialsGrant(
        config,
        { scope: 'files.read', resource: RESOURCES[resource].url },
        proofKey && { DPoP: openid.getDPoPHandle(config, proofKey) },
      );
      issued.push(access_token);
      return access_token;
    },
    async signIn(user, { clientId = 'cli', resource = 'jwt' } = {}) {
      const config = await discover(clientId, openid.None());
      const verifier = openid.randomPKCECodeVerifier();
      const target = RESOURCES[resource].url;
      const begin = openid.buildAuthorizationUrl(config, {
        redirect_uri: CALLBACK,
        scope: 'openid offline_access files.read',
        prompt: 'consent',
        code_challenge: await openid.calculatePKCECodeChallenge(verifier),
        code_challenge_method: 'S256',
        resource: target,
      });
      const browser = new FormBrowser({ agent, base: issuer });
      const isBack = (url: string): boolean => url.startsWith(CALLBACK);
      let page = await browser.follow(await browser.get(begin.href), isBack);
      for (let steps = 0; steps < 5 && !isBack(page.redirectTo ?? ''); steps += 1) {
        const isConsent = page.text.includes('value="consent"');
        page = await browser.post('', isConsent ? {} : { login: user, password: 'any' });
        page = await browser.follow(page, isBack);
      }
      if (page.redirectTo === undefined) throw new Error(`no redirect from the provider:\n${page.text}`);
      const tokens = await openid.authorizationCodeGrant(
        config,
        new URL(page.redirectTo),
        { pkceCodeVerifier: verifier },
        { resource: target },
      );
      issued.push(tokens.access_token, tokens.refresh_token ?? tokens.access_token);
      return {
        tokens,
        revoke: (token) => openid.tokenRevocation(config, token),
        async signOut() {
          await browser.open(openid.buildEndSessionUrl(config, {}).href);
          const signedOut = await browser.post('/session/end/confirm', { logout: 'yes' });
          if (signedOut.status !== 303) throw new Error(`not signed out: ${signedOut.status} ${signedOut.text}`);
        },
      };
    },
    async rotateKey({ removePrevious = false } = {}) {
      keys = [await createKey(), ...(removePrevious ? [] : keys)];
      start(keys);
    },
    stop: async () => {
      await agent.destroy();
      await new Promise<void>((resolve) => {
        listener.close(() => resolve());
        listener.closeAllConnections();
      });
    },
  };
}

interface ProviderOptions extends Pick<TokenProviderOptions, 'logoutUrl'> {
  readonly issuer: string;
  /** The first signs. */
  readonly keys: readonly JWK[];
  readonly agent: Agent;
}

function createProvider({ issuer, keys, agent, logoutUrl }: ProviderOptions): Provider {
  const publicClient = (clientId: string): Configuration['clients'][number] => ({
    client_id: clientId,
    token_endpoint_auth_method: 'none',
    redirect_uris: [CALLBACK],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
  });
  const configuration: Configuration = {
    jwks: { keys },
    clients: [
      { ...publicClient('cli'), backchannel_logout_uri: logoutUrl },
      {
        ...publicClient('cli-with-sessions'),
        backchannel_logout_uri: logoutUrl,
        backchannel_logout_session_required: true,
      },
      publicClient('without-logout'),
      {
        client_id: INTROSPECTION_CLIENT.id,
        client_secret: INTROSPECTION_CLIENT.secret,
        redirect_uris: [],
        grant_types: [],
        response_types: [],
        backchannel_logout_uri: logoutUrl,
      },
      {
        client_id: SERVICE.id,
        client_secret: SERVICE.secret,
        token_endpoint_auth_method: 'client_secret_post',
        redirect_uris: [],
        grant_types: ['client_credentials'],
        response_types: [],
      },
    ],
    clientDefaults: { id_token_signed_response_alg: 'ES256' },
    cookies: { keys: ['only for tests'] },
    scopes: ['openid', 'offline_access'],
    findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    features: {
      devInteractions: { enabled: true },
      clientCredentials: { enabled: true },
      introspection: { enabled: true, allowedPolicy: () => true },
      revocation: { enabled: true, allowedPolicy: () => true },
      rpInitiatedLogout: {
        enabled: true,
        logoutSource: (context: { body: unknown }, form: string) => void (context.body = `<body>${form}`),
      },
      backchannelLogout: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_context: unknown, resource: string) => {
          const found = Object.values(RESOURCES).find(({ url }) => url === resource);
          if (found === undefined) throw new Error(`no such API: ${resource}`);
          const { audience, accessTokenFormat } = found;
          return {
            scope: 'files.read files.write',
            audience,
            accessTokenFormat,
            jwt: { sign: { alg: 'ES256' } },
          };
        },
      },
    },
    ttl: {
      Session: 3_600,
      Grant: 3_600,
      Interaction: 600,
      AuthorizationCode: 60,
      IdToken: 600,
      AccessToken: 600,
      ClientCredentials: 600,
      RefreshToken: 3_600,
    },
    pkce: { required: () => true },
    // Its own client refuses loopback addresses and trusts public CAs only.
    // It also gives up after 2.5 s, which is too short on a busy machine.
    fetch: (url: string, options: RequestInit) =>
      fetchBy(url, { ...(options as object), signal: null, dispatcher: agent }),
  };
  const warn = console.warn;
  console.warn = () => {};
  try {
    return new Provider(issuer, configuration);
  } finally {
    console.warn = warn;
  }
}
