import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type Configuration, Provider } from 'oidc-provider';
import type { SettingsInput } from '../../src/config/schema.ts';
import type { FormBrowser, Page } from './form-browser.ts';
import type { IssuedCertificate } from './pki.ts';

export const CLIENT = { id: 'gatehouse', secret: 'a secret between the two of them' } as const;

type ProviderSettings = NonNullable<NonNullable<SettingsInput['signIn']>['openid']>[string];

/** Settings of `signIn.openid` for users of the directory `staff`. */
export const createProviderSettings = (issuer: string, changes: Partial<ProviderSettings> = {}): ProviderSettings => ({
  title: 'Example Login',
  issuer,
  clientId: CLIENT.id,
  clientSecret: CLIENT.secret,
  scope: 'openid profile email',
  directory: 'staff',
  claim: 'preferred_username',
  means: 'userName',
  timeout: '60s',
  ...changes,
});

/** The discovery document of a provider that a test implements itself. */
export const createDiscovery = (issuer: string) => ({
  issuer,
  authorization_endpoint: `${issuer}/authorize`,
  token_endpoint: `${issuer}/token`,
  jwks_uri: `${issuer}/keys`,
  response_types_supported: ['code'],
  subject_types_supported: ['public'],
  id_token_signing_alg_values_supported: ['ES256'],
});

/** Submits the page of the provider: a sign-in, or the consent. */
export async function submitProviderPage(
  browser: FormBrowser,
  { text }: Page,
  account: string,
): Promise<{ readonly page: Page; readonly isSignIn: boolean }> {
  const isSignIn = !text.includes('value="consent"');
  return { page: await browser.post('', isSignIn ? { login: account, password: 'any' } : {}), isSignIn };
}

/** Claims by user name; any password is accepted. */
const ACCOUNTS: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  alice: {
    email: 'alice@example.test',
    email_verified: true,
    preferred_username: 'alice',
    name: 'Alice from Elsewhere',
    oid: '5F0C2A52-6D0E-4D0C-9C3E-0D5A3C1F2B11',
  },
  mallory: {
    email: 'alice@example.test',
    email_verified: false,
    preferred_username: 'mallory',
    name: 'Mallory',
  },
  stranger: {
    email: 'stranger@example.test',
    email_verified: true,
    preferred_username: 'stranger',
    name: 'Stranger',
    groups: ['partners', 'unrelated', 7, ''],
  },
};

export interface OpenIdProvider {
  readonly issuer: string;
  readonly port: number;
  /** Number of token requests. */
  readonly tokenRequests: () => number;
  /** While set, every response is 503. */
  isUnavailable: boolean;
  stop(): Promise<void>;
}

/** A real OpenID provider (oidc-provider) over TLS, on a free port. */
export async function startOpenIdProvider(
  server: IssuedCertificate,
  redirectUris: readonly string[],
  options: { readonly claimsInToken?: boolean; readonly host?: string } = {},
): Promise<OpenIdProvider> {
  let handle: ReturnType<Provider['callback']> | undefined;
  let tokenRequests = 0;
  let isUnavailable = false;
  const listener = createServer({ cert: server.pem, key: server.keyPem }, (request, response) => {
    if (request.url?.startsWith('/token') === true) tokenRequests += 1;
    if (isUnavailable) response.writeHead(503).end('unavailable');
    else void handle?.(request, response);
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  const { port } = listener.address() as AddressInfo;
  const issuer = `https://${options.host ?? 'localhost'}:${port}`;
  const configuration: Configuration = {
    clients: [
      {
        client_id: CLIENT.id,
        client_secret: CLIENT.secret,
        redirect_uris: [...redirectUris],
        grant_types: ['authorization_code'],
        response_types: ['code'],
      },
    ],
    cookies: { keys: ['only for tests'] },
    claims: {
      openid: ['sub'],
      profile: ['name', 'preferred_username', 'oid', 'groups'],
      email: ['email', 'email_verified'],
    },
    conformIdTokenClaims: options.claimsInToken === false,
    findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id, ...ACCOUNTS[id] }) }),
    features: { devInteractions: { enabled: true } },
    ttl: {
      Session: 3_600,
      Grant: 3_600,
      Interaction: 600,
      AuthorizationCode: 60,
      IdToken: 600,
      AccessToken: 600,
    },
    pkce: { required: () => true },
  };
  const warn = console.warn;
  console.warn = () => {};
  const provider = new Provider(issuer, configuration);
  handle = provider.callback();
  console.warn = warn;
  return {
    issuer,
    port,
    tokenRequests: () => tokenRequests,
    get isUnavailable() {
      return isUnavailable;
    },
    set isUnavailable(value) {
      isUnavailable = value;
    },
    stop: () =>
      new Promise((resolve) => {
        listener.close(() => resolve());
        listener.closeAllConnections();
      }),
  };
}
