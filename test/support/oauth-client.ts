import { expect } from 'vitest';
import { DEVICE_GRANT, FORM } from './device-client.ts';
import type { Reply, TestGateway, TestRequest } from './test-gateway.ts';

export const TOKEN_EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
export const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
/** The beginning of token types (RFC 8693 §3). */
export const TOKEN_TYPE = 'urn:ietf:params:oauth:token-type:';

/** RFC 8693 §2.1. */
export const exchangeFields = (subjectToken: string) => ({
  grant_type: TOKEN_EXCHANGE,
  subject_token: subjectToken,
  subject_token_type: `${TOKEN_TYPE}jwt`,
});

/** To compare with a reply of the OAuth endpoints. */
export const refusal = (error: string, status = 400) => ({ status, json: { error } });

/** Returns the access token of a reply, which must be successful. */
export const getAccessToken = (reply: Reply): string => {
  expect(reply.status, reply.text).toBe(200);
  return String(reply.json['access_token']);
};

/** A client of the standard OAuth endpoints. */
export interface OAuthClient {
  /** POST with a form body to a path under /authsvc/oauth2. */
  post(
    operation: string,
    fields: Readonly<Record<string, string>> | string,
    more?: Partial<TestRequest>,
  ): Promise<Reply>;
  refresh(refreshToken: string, more?: Readonly<Record<string, string>>): Promise<Reply>;
  poll(deviceCode: string, more?: Readonly<Record<string, string>>): Promise<Reply>;
  clientCredentials(fields?: Readonly<Record<string, string>>, more?: Partial<TestRequest>): Promise<Reply>;
  /** Token exchange (RFC 8693). */
  readonly exchange: (
    subjectToken: string,
    fields?: Readonly<Record<string, string>>,
    more?: Partial<TestRequest>,
  ) => Promise<Reply>;
  /** RFC 7523 §2.1. */
  readonly bearJwt: (assertion: string, fields?: Readonly<Record<string, string>>) => Promise<Reply>;
  revoke(token: string, fields?: Readonly<Record<string, string>>): Promise<Reply>;
  introspect(token: string, more?: Partial<TestRequest>): Promise<Reply>;
}

export function createOAuthClient(gateway: TestGateway): OAuthClient {
  const post: OAuthClient['post'] = (operation, fields, { headers, ...more } = {}) =>
    gateway.request({
      path: `/authsvc/oauth2/${operation}`,
      method: 'POST',
      body: typeof fields === 'string' ? fields : new URLSearchParams(fields).toString(),
      ...more,
      headers: { 'content-type': FORM, ...headers },
    });
  return {
    post,
    refresh: (refreshToken, more = {}) =>
      post('token', {
        grant_type: 'refresh_token',
        client_id: 'report-runner',
        refresh_token: refreshToken,
        ...more,
      }),
    poll: (deviceCode, more = {}) =>
      post('token', {
        grant_type: DEVICE_GRANT,
        client_id: 'report-runner',
        device_code: deviceCode,
        ...more,
      }),
    clientCredentials: (fields = {}, more = { as: gateway.users.alice }) =>
      post('token', { grant_type: 'client_credentials', client_id: 'report-runner', ...fields }, more),
    exchange: (subjectToken, fields = {}, more = {}) =>
      post('token', { ...exchangeFields(subjectToken), client_id: 'jobs', ...fields }, more),
    bearJwt: (assertion, fields = {}) =>
      post('token', { grant_type: JWT_BEARER, client_id: 'jobs', assertion, ...fields }),
    revoke: (token, fields = {}) => post('revoke', { token, ...fields }),
    introspect: (token, more = { as: gateway.users.alice }) => post('introspect', { token }, more),
  };
}
