import { hash, randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { createAgent, FormBrowser, type Page } from './form-browser.ts';
import { createOAuthClient } from './oauth-client.ts';
import { PASSWORD, type Reply, type TestGateway, type TestRequest } from './test-gateway.ts';

export const ISSUER = 'https://localhost:8443';
export const CALLBACK = 'https://app.example.test/callback';
export const SECRET = 'ghc_a-secret-for-authorization-codes_0123456789-ABCD';

type Integration = NonNullable<SettingsInput['integrations']>[number];
export type Fields = Readonly<Record<string, string>>;

export const APP: Integration = {
  clientId: 'app',
  name: 'Example App',
  scope: 'reports:read,write;files:read',
  grants: ['code'],
  redirectUris: [CALLBACK, 'http://127.0.0.1/callback', 'com.example.app:/callback'],
  access: [{ groups: ['operators'] }, { groups: ['readers'], scope: 'files:read' }],
};
export const WEB: Integration = {
  ...APP,
  clientId: 'web',
  name: 'Example Site',
  redirectUris: ['https://web.example.test/callback?from=gatehouse'],
  clientSecretHashes: [hashClientSecret(SECRET)],
};

export const withCodeClients = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  integrations: [...(settings.integrations ?? []), APP, WEB],
});

export interface Pkce {
  readonly verifier: string;
  readonly challenge: string;
}
export function createPkce(): Pkce {
  const verifier = randomBytes(32).toString('base64url');
  return { verifier, challenge: hash('sha256', verifier, 'base64url') };
}

/** An app, and the browser of its user, at one gateway. `publicUrl` is `ISSUER`. */
export interface CodeFlow extends AsyncDisposable {
  readonly browser: FormBrowser;
  readonly pkce: Pkce;
  /** The parameters of an authorization request; `''` omits one. */
  parameters(changes?: Fields): Fields;
  /** GET oauth2/authorize, without following redirects. */
  authorize(changes?: Fields | string, headers?: Fields): Promise<Page>;
  /** Signs in if necessary, and stops before the decision. */
  reachReview(changes?: Fields | string, userName?: string): Promise<Page>;
  signIn(userName?: string): Promise<Page>;
  /** The URL of the authorization response. */
  decide(decision: 'approve' | 'deny'): Promise<URL>;
  /** Approves a new request; returns the code. */
  obtainCode(changes?: Fields): Promise<string>;
  exchange(code: string, changes?: Fields, more?: Partial<TestRequest>): Promise<Reply>;
}

const withoutEmpty = (fields: Fields): Fields =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== ''));

/** The URL of a redirect to an app. */
export function readResponse({ status, redirectTo = 'about:blank', text }: Page): URL {
  expect(status, text).toBe(303);
  return new URL(redirectTo);
}

export function createCodeFlow(gateway: TestGateway, pkce = createPkce()): CodeFlow {
  const agent = createAgent({ ca: gateway.ca.pem, port: gateway.port });
  const browser = new FormBrowser({ agent, base: ISSUER });
  const flow: CodeFlow = {
    browser,
    pkce,
    parameters: (changes = {}) =>
      withoutEmpty({
        response_type: 'code',
        client_id: 'app',
        redirect_uri: CALLBACK,
        scope: 'files:read',
        state: 'af0ifjsldkj',
        code_challenge: pkce.challenge,
        code_challenge_method: 'S256',
        ...changes,
      }),
    authorize(changes = {}, headers = {}) {
      const query = typeof changes === 'string' ? changes : new URLSearchParams(flow.parameters(changes)).toString();
      return browser.get(`/authsvc/oauth2/authorize?${query}`, {
        'sec-fetch-site': 'cross-site',
        ...headers,
      });
    },
    async reachReview(changes, userName) {
      const page = await browser.follow(await flow.authorize(changes));
      return page.text.includes('name="password"') ? flow.signIn(userName) : page;
    },
    signIn: (userName = 'alice') =>
      browser.submit('/authsvc/device/sign-in', { user_name: userName, password: PASSWORD }),
    decide: async (decision) => readResponse(await browser.post(`/authsvc/device/${decision}`)),
    async obtainCode(changes) {
      const review = await flow.reachReview(changes);
      expect(review.status, review.text).toBe(200);
      const { searchParams } = await flow.decide('approve');
      return searchParams.get('code') ?? '';
    },
    exchange: (code, changes = {}, more) =>
      createOAuthClient(gateway).post(
        'token',
        withoutEmpty({
          grant_type: 'authorization_code',
          client_id: 'app',
          redirect_uri: CALLBACK,
          code,
          code_verifier: pkce.verifier,
          ...changes,
        }),
        more,
      ),
    [Symbol.asyncDispose]: () => agent.destroy(),
  };
  return flow;
}
