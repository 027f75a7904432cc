import { createHmac } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { signForeign } from '../support/foreign-issuer.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import type { ProtocolRequest } from '../support/protocols.ts';
import { FILES_API, PARTNER } from './identity-gateway.ts';
import {
  authenticate,
  BILLING,
  type Claims,
  type CreateRequest,
  call,
  choose,
  EXPIRED,
  type Expected,
  INSUFFICIENT_SCOPE,
  INVALID_TOKEN,
  NOT_AUTHENTIC,
  REVOKED,
  refusal,
  UNAVAILABLE,
  useIdentityRefusals,
  WRONG_AUDIENCE,
} from './identity-refusals.ts';

const setUp = useIdentityRefusals();
const { callCorp, expectAccepted, expectRefused } = setUp;
/** A token of gatehouse for `FILES_API`. */
let ownForFiles: string;
beforeAll(async () => {
  ownForFiles = await setUp.obtainToken({ grant_type: 'client_credentials', ...BILLING });
  for (const revocation of [
    { issuer: 'corp', jti: 'revoked-jti' },
    { issuer: 'corp', subject: 'revoked-subject' },
    { client: 'corp/revoked-client' },
    { issuer: 'strict' },
  ])
    await setUp.revoke(revocation);
  const oauth = createOAuthClient(setUp.gateway);
  for (const claims of [{ sub: 'logged-out' }, { sid: 'logged-out' }]) {
    const { status } = await oauth.post('backchannel_logout', {
      logout_token: await setUp.signLogout(claims),
    });
    expect(status).toBe(200);
  }
});

describe('tokens of trusted issuers', () => {
  test('are accepted without the defects below', async () => {
    await expectAccepted(callCorp({}));
    await expectAccepted(callCorp({}, '/cli/1'));
    await expectAccepted(() => call(setUp.own));
  });

  test.each(
    choose<[string, Claims, string?]>([
      ['of another issuer', { iss: 'https://other.example.test' }],
      ['of an issuer that the route does not list', {}, '/own/1'],
      ['for another API, on a path without a route', { aud: 'billing-api' }, '/none'],
      ['without an audience', { aud: undefined }],
      ['that are expired, on a path without a route', { exp: 1_000 }, '/none'],
      ['without an expiry', { exp: undefined }],
      ['without a time of issue', { iat: undefined }],
      ['that are not valid yet', { nbf: 9_999_999_999 }],
      ['without a subject', { sub: undefined }],
      ['with a line break in the subject', { sub: 'a\r\nX-Admin: 1' }],
      ['bound in an unknown way', { cnf: { kid: 'x' } }],
    ]),
  )('%s', (_, claims, path) => expectRefused(callCorp(claims, path), NOT_AUTHENTIC));

  test.each(
    choose<[string, Claims, Expected]>([
      ['for another API', { aud: 'billing-api' }, WRONG_AUDIENCE],
      ['that are expired', { exp: 1_000 }, EXPIRED],
    ]),
  )('%s', (_, claims, expected) => expectRefused(callCorp(claims), expected));

  test('on a path without a route', () =>
    expectRefused(callCorp({}, '/none'), { ...INVALID_TOKEN, reason: 'no_rule' }));

  test.each(
    choose<[string, Claims, Expected]>([
      ['token id', { jti: 'revoked-jti' }, REVOKED],
      ['subject', { sub: 'revoked-subject' }, REVOKED],
      ['client', { azp: 'revoked-client' }, REVOKED],
      ['subject that logged out', { sub: 'logged-out' }, REVOKED],
      ['session that logged out', { sid: 'logged-out' }, REVOKED],
    ]),
  )('of a revoked %s', (_, claims, expected) => expectRefused(callCorp(claims), expected));

  test('of a revoked issuer', () =>
    expectRefused(async () => {
      const claims = { iss: `${PARTNER}/strict`, tenant: '42' };
      return call(await setUp.signPartner(claims, { typ: 'at+jwt' }), '/strict/1');
    }, REVOKED));

  test.each(
    choose<[string, Claims, Claims?]>([
      ['without a required claim', {}],
      ['with another value of a required claim', { tenant: '43' }],
      ['of another type', { tenant: '42' }, { typ: 'JWT' }],
    ]),
  )('%s', (_, claims, header = { typ: 'at+jwt' }) =>
    expectRefused(
      async () => call(await setUp.signPartner({ iss: `${PARTNER}/strict`, ...claims }, header), '/strict/1'),
      NOT_AUTHENTIC,
    ),
  );

  test.each(
    choose<[string, Claims]>([
      ['with an unknown key id', { kid: 'unknown' }],
      ['that are logout tokens', { typ: 'logout+jwt' }],
      ['with a critical extension', { crit: ['b64'], b64: true }],
      ['with another algorithm', { alg: 'ES384' }],
    ]),
  )('%s', (_, header) =>
    expectRefused(async () => {
      const [, payload, signature] = (await setUp.corp.sign()).split('.');
      return call(`${encode({ alg: 'ES256', kid: 'k1', typ: 'JWT', ...header })}.${payload}.${signature}`);
    }, NOT_AUTHENTIC),
  );

  test.each(
    choose<[string, () => Claims]>([
      ['that another key signed', () => ({})],
      ['with their own key', () => ({ jwk: setUp.attacker.jwk })],
      ['with the address of their key', () => ({ jku: `${setUp.corp.url}/keys` })],
      ['with the address of their certificate', () => ({ x5u: setUp.corp.url })],
    ]),
  )('%s', (_, header) =>
    expectRefused(async () => {
      const [, payload = ''] = (await setUp.corp.sign()).split('.');
      const claims = JSON.parse(Buffer.from(payload, 'base64url').toString()) as Claims;
      return call(await signForeign(setUp.attacker, claims, header()));
    }, NOT_AUTHENTIC),
  );

  test('without a signature, and with the public key as an HMAC secret', async () => {
    const write = async (alg: string, sign: (input: string) => string): Promise<ProtocolRequest> => {
      const [, payload] = (await setUp.corp.sign()).split('.');
      const input = `${encode({ alg, kid: 'k1', typ: 'JWT' })}.${payload}`;
      return call(`${input}.${sign(input)}`);
    };
    const secret = JSON.stringify(setUp.corp.published[0]?.jwk);
    await expectRefused(() => write('none', () => ''), refusal('invalid_token', 401));
    await expectRefused(
      () => write('HS256', (input) => createHmac('sha256', secret).update(input).digest('base64url')),
      NOT_AUTHENTIC,
    );
  });

  test('of another trusted issuer, under their own name and that of the first', async () => {
    await expectRefused(async () => call(await setUp.signPartner()), NOT_AUTHENTIC);
    await expectRefused(async () => call(await setUp.signPartner({ iss: setUp.corp.url })), NOT_AUTHENTIC);
  });

  test('of gatehouse, where only another issuer is listed', () =>
    expectRefused(() => call(setUp.own, '/corp/1'), NOT_AUTHENTIC));

  test('without the scope of the route, and of another client', async () => {
    await expectRefused(callCorp({}, '/admin/1'), INSUFFICIENT_SCOPE);
    await expectRefused(callCorp({ scope: 'files:read' }), INSUFFICIENT_SCOPE);
    await expectRefused(callCorp({ azp: 'other' }, '/cli/1'), INSUFFICIENT_SCOPE);
    await expectRefused(callCorp({ azp: 'report-runner' }, '/cli/1'), INSUFFICIENT_SCOPE);
  });

  test('whose keys cannot be fetched', () =>
    expectRefused(async () => call(await setUp.signUnreachable()), UNAVAILABLE));

  test('at the token API', () =>
    expectRefused(async () => call(await setUp.corp.sign(), '/authsvc/Authorize/Verify'), INVALID_TOKEN));
});

describe('audiences', () => {
  test('a token for its API is accepted', async () => {
    await expectAccepted(() => call(ownForFiles, '/api/1'));
    await expectAccepted(callCorp({ aud: FILES_API }, '/api/1'));
  });
  test.each(
    choose<[string, CreateRequest]>([
      ['a token of gatehouse for another API', () => call(setUp.own, '/api/1')],
      ['a token of a trusted issuer for another API', callCorp({}, '/api/1')],
      ['a token for one API at all others', () => call(ownForFiles)],
    ]),
  )('%s', (_, create) => expectRefused(create, WRONG_AUDIENCE));
  test('a resource that the client does not have', () =>
    expectRefused(
      () => authenticate({ ...BILLING, resource: 'https://other.example.test' }),
      refusal('invalid_target'),
    ));
});

describe('opaque tokens of a trusted issuer', () => {
  test('are accepted while they are active', () => expectAccepted(() => call(setUp.issueOpaque())));
  test.each(
    choose<[string, Claims, Expected?]>([
      ['that are inactive', { active: false }],
      ['for another API', { aud: 'other-api' }],
      ['of another issuer', { iss: 'https://other.example.test' }],
      ['that are expired', { exp: 1_000 }, INVALID_TOKEN],
      ['that are refresh tokens', { token_type: 'refresh_token' }],
      ['of a revoked subject', { sub: 'revoked-subject' }, REVOKED],
      ['bound to a certificate', { cnf: { 'x5t#S256': 'x' } }, INVALID_TOKEN],
      ['bound to a key', { cnf: { jkt: 'x' } }, INVALID_TOKEN],
      ['without the scope', { scope: 'other' }, INSUFFICIENT_SCOPE],
    ]),
  )('%s', (_, claims, expected = NOT_AUTHENTIC) => expectRefused(() => call(setUp.issueOpaque(claims)), expected));
  test('that the issuer does not know, that are too long, or on another route', async () => {
    await expectRefused(() => call(`op_${crypto.randomUUID()}`), NOT_AUTHENTIC);
    await expectRefused(() => call(`op_${'x'.repeat(2_048)}`), NOT_AUTHENTIC);
    await expectRefused(() => call(setUp.issueOpaque(), '/own/1'), NOT_AUTHENTIC);
  });
  test('whose issuer does not respond', () => expectRefused(() => call(`no_${crypto.randomUUID()}`), UNAVAILABLE));
});

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
