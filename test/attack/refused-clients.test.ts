import { beforeAll, describe, test } from 'vitest';
import { signForeign } from '../support/foreign-issuer.ts';
import { exchangeFields, JWT_BEARER } from '../support/oauth-client.ts';
import type { ProtocolRequest } from '../support/protocols.ts';
import { withSettings } from '../support/reconfigure.ts';
import type { SettingsChange } from '../support/test-gateway.ts';
import { CLIENT_SECRET, PARTNER } from './identity-gateway.ts';
import {
  authenticate,
  BILLING,
  type Claims,
  choose,
  type Expected,
  type Fields,
  INVALID_CLIENT,
  LOGOUT_EVENT,
  ORIGIN,
  post,
  refusal,
  requestToken,
  UNAVAILABLE,
  useIdentityRefusals,
} from './identity-refusals.ts';

const ASSERTION_TYPE = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';

const setUp = useIdentityRefusals();
const { expectAccepted, expectRefused, now, signLogout } = setUp;
let usedAssertion: string;
let usedSubjectToken: string;
beforeAll(async () => {
  usedAssertion = await signAssertion();
  await setUp.obtainToken({ grant_type: 'client_credentials', ...asserted(usedAssertion) });
  usedSubjectToken = await setUp.corp.sign({ sub: 'once' });
  await setUp.obtainToken({ grant_type: JWT_BEARER, client_id: 'jobs', assertion: usedSubjectToken });
  await setUp.revoke({ issuer: 'corp', jti: 'revoked-jti' });
});

const exchange = (token: string, more: Fields = {}): ProtocolRequest =>
  requestToken({ ...exchangeFields(token), client_id: 'jobs', ...more });
const requestByJwtBearer = (token: string, more: Fields = {}): ProtocolRequest =>
  requestToken({ grant_type: JWT_BEARER, client_id: 'jobs', assertion: token, ...more });
const basic = (id: string, secret: string): Fields => ({
  authorization: `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}`,
});
const asserted = (assertion: string): Fields => ({
  client_assertion: assertion,
  client_assertion_type: ASSERTION_TYPE,
});
const signAssertion = (claims: Claims = {}, header: Claims = {}, key = setUp.clientKey): Promise<string> =>
  signForeign(
    key,
    {
      iss: 'signing',
      sub: 'signing',
      aud: ORIGIN,
      iat: now(),
      exp: now() + 60,
      jti: crypto.randomUUID(),
      ...claims,
    },
    header,
  );
const logOut = (logoutToken: string): ProtocolRequest =>
  post('/authsvc/oauth2/backchannel_logout', { logout_token: logoutToken });

describe('token exchange and JWT bearer', () => {
  test('a valid token is accepted', async () => {
    await expectAccepted(async () => exchange(await setUp.corp.sign()));
    await expectAccepted(async () => requestByJwtBearer(await setUp.corp.sign()));
  });
  test.each(
    choose<[string, () => string | Promise<string>]>([
      ['a token of another subject', () => setUp.corp.sign({ sub: 'other' })],
      ['a token for another API', () => setUp.corp.sign({ aud: 'other' })],
      ['an expired token', () => setUp.corp.sign({ exp: 1_000 })],
      ['a revoked token', () => setUp.corp.sign({ jti: 'revoked-jti' })],
      ['a token that another key signed', () => setUp.corp.sign({}, setUp.attacker)],
      ['a token of another issuer with the same subject', () => setUp.signPartner()],
      ['a token of another issuer under this name', () => setUp.signPartner({ iss: setUp.corp.url })],
      ['a token bound to a certificate', () => setUp.corp.sign({ cnf: { 'x5t#S256': 'x'.repeat(43) } })],
      ['a token bound to a key', () => setUp.corp.sign({ cnf: { jkt: 'x'.repeat(43) } })],
      ['a token that was used', () => usedSubjectToken],
      ['a token of gatehouse', () => setUp.own],
      ['junk', () => 'a.b.c'],
    ]),
  )('%s', async (_, sign) => {
    await expectRefused(async () => exchange(await sign()), refusal('invalid_request'));
    await expectRefused(async () => requestByJwtBearer(await sign()), refusal('invalid_grant'));
  });
  test.each(
    choose<[string, Fields, Expected]>([
      ['of a client that may not', { client_id: 'report-runner' }, refusal('unauthorized_client')],
      ['of an unknown client', { client_id: 'unknown' }, refusal('invalid_client')],
      ['without a client', { client_id: '' }, refusal('invalid_request')],
      ['with more scope', { scope: 'files:write' }, refusal('invalid_scope')],
      ['for another API', { resource: 'https://other.example.test' }, refusal('invalid_target')],
    ]),
  )('a request %s', async (_, fields, expected) => {
    await expectRefused(async () => exchange(await setUp.corp.sign(), fields), expected);
    await expectRefused(async () => requestByJwtBearer(await setUp.corp.sign(), fields), expected);
  });
  test('an exchange with an actor, or for another type of token', async () => {
    const type = 'urn:ietf:params:oauth:token-type:refresh_token';
    for (const fields of [{ actor_token: setUp.own }, { requested_token_type: type }, { subject_token_type: type }])
      await expectRefused(async () => exchange(await setUp.corp.sign(), fields), refusal('invalid_request'));
  });
  test('an issuer whose keys cannot be fetched', async () => {
    await expectRefused(async () => exchange(await setUp.signUnreachable()), UNAVAILABLE);
    await expectRefused(async () => requestByJwtBearer(await setUp.signUnreachable()), UNAVAILABLE);
  });
});

describe('client authentication', () => {
  test('is accepted', async () => {
    await expectAccepted(() => authenticate(BILLING));
    await expectAccepted(() => authenticate({}, basic('billing', CLIENT_SECRET)));
    await expectAccepted(async () => authenticate(asserted(await signAssertion())));
  });
  test.each(
    choose<[string, Fields, Fields?]>([
      ['a wrong secret in the body', { client_id: 'billing', client_secret: 'wrong' }],
      ['a wrong secret in the header', {}, basic('billing', 'wrong')],
      ['no secret', { client_id: 'billing' }],
      ['the secret of a client without one', { client_id: 'jobs', client_secret: CLIENT_SECRET }],
    ]),
  )('%s', (_, fields, headers) => expectRefused(() => authenticate(fields, headers), INVALID_CLIENT));
  test.each(
    choose<[string, Fields, Fields]>([
      ['two methods', BILLING, basic('billing', CLIENT_SECRET)],
      ['a malformed header', {}, { authorization: 'Basic !!!' }],
    ]),
  )('%s', (_, fields, headers) => expectRefused(() => authenticate(fields, headers), refusal('invalid_request')));
  test.each(
    choose<[string, () => Claims, Claims?]>([
      ['for another server', () => ({ aud: 'https://other.example.test' })],
      ['of another client', () => ({ iss: 'billing', sub: 'billing' })],
      ['that is expired', () => ({ exp: now() - 1 })],
      ['without jti', () => ({ jti: undefined })],
      ['of another type', () => ({}), { typ: 'at+jwt' }],
      ['with an unknown key id', () => ({}), { kid: 'unknown' }],
    ]),
  )('an assertion %s', (_, claims, header) =>
    expectRefused(async () => authenticate(asserted(await signAssertion(claims(), header))), INVALID_CLIENT),
  );
  test('an assertion that another key signed, or that was used', async () => {
    await expectRefused(
      async () => authenticate(asserted(await signAssertion({}, { kid: 'signer' }, setUp.attacker))),
      INVALID_CLIENT,
    );
    await expectRefused(() => authenticate(asserted(usedAssertion)), INVALID_CLIENT);
  });
  test('after too many guesses', () =>
    withSettings(setUp.gateway, withRate('clientGuesses'), async () => {
      const guess = authenticate({ client_id: 'billing', client_secret: 'wrong' });
      await setUp.clients.send('HTTP/2', guess);
      await expectRefused(() => guess, refusal('temporarily_unavailable', 429));
    }));
});

describe('back-channel logout', () => {
  test.each(
    choose<[string, () => string | Promise<string>]>([
      ['a token for another client', () => signLogout({ sub: 'x', aud: 'files-api' })],
      ['a token of another issuer', () => signLogout({ sub: 'x', iss: PARTNER })],
      ['a token without the event', () => signLogout({ sub: 'x', events: {} })],
      ['a token with a nonce', () => signLogout({ sub: 'x', nonce: 'n' })],
      ['a token without subject and session', () => signLogout({})],
      ['an old token', () => signLogout({ sub: 'x', iat: now() - 400 })],
      ['a token of another type', () => signLogout({ sub: 'x' }, { typ: 'at+jwt' })],
      ['an access token', () => setUp.corp.sign()],
      ['no token', () => ''],
    ]),
  )('%s', (_, sign) => expectRefused(async () => logOut(await sign()), refusal('invalid_request')));
  test('of an issuer whose keys cannot be fetched', () =>
    expectRefused(
      async () => logOut(await setUp.signUnreachable({ aud: 'gatehouse-client', events: { [LOGOUT_EVENT]: {} } })),
      UNAVAILABLE,
    ));
  test('after too many tokens', () =>
    withSettings(setUp.gateway, withRate('introspect'), async () => {
      await setUp.clients.send('HTTP/2', logOut('junk'));
      await expectRefused(async () => logOut(await signLogout({ sub: 'x' })), refusal('temporarily_unavailable', 429));
    }));
});

const withRate =
  (name: 'clientGuesses' | 'introspect'): SettingsChange =>
  (settings) => ({
    ...settings,
    limits: { ...settings.limits, rates: { ...settings.limits?.rates, [name]: '1/h' } },
  });
