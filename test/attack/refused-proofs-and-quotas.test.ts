import { hash } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { createDpopKey, type DpopKey, type ProofInput, signProof } from '../support/dpop-client.ts';
import { PROTOCOLS, type ProtocolRequest } from '../support/protocols.ts';
import { withSettings } from '../support/reconfigure.ts';
import type { CertificateName } from './identity-gateway.ts';
import {
  call,
  choose,
  EXPIRED,
  type Expected,
  INVALID_CLIENT,
  INVALID_PROOF,
  INVALID_TOKEN,
  ORIGIN,
  refusal,
  requestToken,
  TOKEN_PATH,
  UNAVAILABLE,
  useIdentityRefusals,
} from './identity-refusals.ts';

const setUp = useIdentityRefusals();
const { callCorp, expectAccepted, expectRefused, now } = setUp;
let proofKey: DpopKey;
/** A token of gatehouse that is bound to `proofKey`. */
let bound: string;
beforeAll(async () => {
  const { gateway, own } = setUp;
  proofKey = await createDpopKey();
  const dpop = await prove({ method: 'POST', url: ORIGIN + TOKEN_PATH, token: undefined });
  const certificateGrant = {
    grant_type: 'client_credentials',
    client_id: 'report-runner',
    scope: 'files:read',
  };
  bound = await setUp.obtainToken(certificateGrant, { as: gateway.users.alice, headers: { dpop } });
  for (const path of ['/limited/1', '/per-client/1', '/per-route/1', '/open/1'])
    expect((await gateway.api(path, own)).status).toBe(200);
});

const prove = (input: Partial<ProofInput> = {}, key = proofKey): Promise<string> =>
  signProof(key, { url: `${ORIGIN}/files/1`, token: bound, now: now(), ...input });
const callWithProof = (dpop: string | string[] | undefined, token = bound): ProtocolRequest => ({
  path: '/files/1',
  headers: { authorization: `DPoP ${token}`, ...(dpop !== undefined && { dpop }) },
});
/** With a token that is bound to this certificate, over a connection with `as`. */
const callAs = async (name: CertificateName, as: CertificateName | undefined = name): Promise<ProtocolRequest> => {
  const { certificates, corp } = setUp;
  const cnf = { 'x5t#S256': hash('sha256', certificates[name].der, 'base64url') };
  return call(await corp.sign({ cnf }), '/files/1', { as: as && certificates[as] });
};
const grantAs = (name: CertificateName): ProtocolRequest =>
  requestToken({ grant_type: 'client_credentials', client_id: 'machines' }, { as: setUp.certificates[name] });
const grantOfTokenApiAs = (name: CertificateName): ProtocolRequest => ({
  method: 'POST',
  path: '/authsvc/Authorize/Certificate',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ client_id: 'machines', scope: 'files:read' }),
  as: setUp.certificates[name],
});

describe('DPoP', () => {
  test('a bound token with a proof is accepted', () => expectAccepted(async () => callWithProof(await prove())));
  test.each(
    choose<[string, () => Partial<ProofInput>]>([
      ['for another method', () => ({ method: 'POST' })],
      ['for another path', () => ({ url: `${ORIGIN}/files/2` })],
      ['for another host', () => ({ url: 'https://other.example.test/files/1' })],
      ['for another token', () => ({ token: setUp.own })],
      ['that is too old', () => ({ now: now() - 62 })],
      ['from the future', () => ({ now: now() + 7 })],
      ['without jti', () => ({ claims: { jti: undefined } })],
      ['of another type', () => ({ header: { typ: 'JWT' } })],
      ['with a private key', () => ({ header: { jwk: proofKey.privateJwk } })],
      ['without a key', () => ({ header: { jwk: undefined } })],
      ['that is too long', () => ({ claims: { padding: 'p'.repeat(8_192) } })],
    ]),
  )('a proof %s', (_, input) => expectRefused(async () => callWithProof(await prove(input())), INVALID_PROOF));
  test('a proof with another key, two proofs, no proof, and a used one', async () => {
    const other = await createDpopKey();
    const used = await prove();
    await setUp.clients.send('HTTP/2', callWithProof(used));
    setUp.gateway.upstream.requests.length = 0;
    await expectRefused(async () => callWithProof(await prove({}, other)), INVALID_PROOF);
    await expectRefused(async () => callWithProof([await prove(), await prove()]), INVALID_PROOF);
    await expectRefused(() => callWithProof(undefined), INVALID_PROOF);
    await expectRefused(() => callWithProof(used), INVALID_PROOF);
  });
  test('a bound token with the Bearer scheme, also with a proof, and an unbound one with DPoP', async () => {
    await expectRefused(() => call(bound), { ...INVALID_TOKEN, reason: 'token_proof_missing' });
    await expectRefused(async () => call(bound, '/files/1', { headers: { dpop: await prove() } }), INVALID_TOKEN);
    await expectRefused(async () => callWithProof(await prove({ token: setUp.own }), setUp.own), INVALID_TOKEN);
  });
  test('a token of a trusted issuer that is bound to another key, or without a proof', async () => {
    const sign = (): Promise<string> => setUp.corp.sign({ cnf: { jkt: 'x'.repeat(43) } });
    await expectRefused(async () => call(await sign()), INVALID_TOKEN);
    await expectRefused(async () => {
      const token = await sign();
      return callWithProof(await prove({ token }), token);
    }, INVALID_PROOF);
  });
  test('a proof without a nonce where one is required', () =>
    withSettings(
      setUp.gateway,
      (settings) => ({ ...settings, dpop: { enabled: true, nonce: 'required' } }),
      () => expectRefused(async () => callWithProof(await prove()), refusal('use_dpop_nonce', 401)),
    ));
  test('at the token endpoint: an invalid proof, and none where the client must have one', async () => {
    const request = (dpop?: string): ProtocolRequest =>
      requestToken(
        { grant_type: 'client_credentials', client_id: 'proving' },
        { as: setUp.certificates.good, headers: { ...(dpop !== undefined && { dpop }) } },
      );
    await expectRefused(async () => request(await prove({ token: undefined })), refusal('invalid_dpop_proof'));
    await expectRefused(() => request(), refusal('invalid_request'));
  });
});

describe('quotas', () => {
  test.each(
    choose<[string, string, string]>([
      ['an identity', '/limited/1', '"identity";q=1;w=3600'],
      ['a client', '/per-client/1', '"client";q=1;w=3600'],
      ['a route', '/per-route/1', '"route";q=1;w=3600, "identity";q=9;w=3600'],
      ['an address', '/open/1', '"address";q=1;w=3600'],
    ]),
  )('of %s', async (_, path, policy) => {
    await expectRefused(() => call(setUp.own, path), refusal('too_many_requests', 429));
    for (const protocol of PROTOCOLS) {
      const { headers } = await setUp.clients.send(protocol, call(setUp.own, path));
      expect([protocol, headers['ratelimit-policy']]).toEqual([protocol, policy]);
      expect(headers['ratelimit']).toMatch(/^"[a-z]+";r=0;t=\d+/);
    }
  });
  test('a refused token does not get 429, and takes nothing', async () => {
    await expectRefused(callCorp({ exp: 1_000, sub: 'unlimited' }, '/limited/1'), EXPIRED);
    expect(await setUp.clients.send('HTTP/2', await callCorp({ sub: 'unlimited' }, '/limited/1')())).toMatchObject({
      status: 200,
    });
  });
});

describe('client certificates', () => {
  test('are accepted without the defects below', async () => {
    await expectAccepted(() => callAs('good'));
    for (const name of ['good', 'dns', 'spiffe'] as const) {
      await expectAccepted(() => grantAs(name));
      await expectAccepted(() => grantOfTokenApiAs(name));
    }
  });
  const NOT_PRESENTED = { ...INVALID_TOKEN, reason: 'token_certificate_not_presented' };
  const REJECTED = { ...INVALID_TOKEN, reason: 'token_certificate_rejected' };
  test.each(
    choose<[string, CertificateName, Expected]>([
      ['revoked by a CRL', 'revokedByCrl', REJECTED],
      ['revoked by OCSP', 'revokedByOcsp', REJECTED],
      ['unknown to the OCSP responder', 'unknownToOcsp', REJECTED],
      ['of another CA', 'otherCa', REJECTED],
      ['whose OCSP responder does not respond', 'withoutOcspResponse', UNAVAILABLE],
      ['whose CRL was never fetched', 'withoutFetchedCrl', UNAVAILABLE],
    ]),
  )('%s', async (_, name, expected) => {
    await expectRefused(() => callAs(name), expected);
    const isOurs = expected === UNAVAILABLE;
    await expectRefused(() => grantAs(name), isOurs ? UNAVAILABLE : INVALID_CLIENT);
    // The token API has no 503: its description says that the failure is temporary.
    await expectRefused(() => grantOfTokenApiAs(name), isOurs ? refusal('invalid_request') : INVALID_CLIENT);
  });
  test.each<CertificateName>(['twoDnsNames', 'otherTrustDomain', 'notSpiffe'])(
    'with an unusable name: %s',
    async (name) => {
      await expectRefused(() => grantAs(name), INVALID_CLIENT);
      await expectRefused(() => grantOfTokenApiAs(name), INVALID_CLIENT);
    },
  );
  test('that a token is not bound to, and none', async () => {
    await expectRefused(() => callAs('good', 'dns'), NOT_PRESENTED);
    await expectRefused(async () => ({ ...(await callAs('good')), as: undefined }), NOT_PRESENTED);
  });
});
