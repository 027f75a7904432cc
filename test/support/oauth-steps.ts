import { DEVICE_GRANT, FORM } from './device-steps.ts';
import type { Ask, House, Reply } from './house.ts';

/** The steps of a client that speaks OAuth as the RFCs have it. */
export interface OAuthSteps {
  /** POST with a form below /authsvc/oauth2. */
  post(
    operation: string,
    fields: Readonly<Record<string, string>> | string,
    more?: Partial<Ask>,
  ): Promise<Reply>;
  refresh(refreshToken: string, more?: Readonly<Record<string, string>>): Promise<Reply>;
  poll(deviceCode: string, more?: Readonly<Record<string, string>>): Promise<Reply>;
  clientCredentials(fields?: Readonly<Record<string, string>>, more?: Partial<Ask>): Promise<Reply>;
  revoke(token: string, fields?: Readonly<Record<string, string>>): Promise<Reply>;
  introspect(token: string, more?: Partial<Ask>): Promise<Reply>;
}

export function oauthSteps(house: House): OAuthSteps {
  const post: OAuthSteps['post'] = (operation, fields, { headers, ...more } = {}) =>
    house.ask({
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
    clientCredentials: (fields = {}, more = { as: house.people.alice }) =>
      post('token', { grant_type: 'client_credentials', client_id: 'report-runner', ...fields }, more),
    revoke: (token, fields = {}) => post('revoke', { token, ...fields }),
    introspect: (token, more = { as: house.people.alice }) => post('introspect', { token }, more),
  };
}
