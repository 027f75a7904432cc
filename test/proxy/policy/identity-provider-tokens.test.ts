import { createHmac } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  createShapedIssuers,
  type IssuerShape,
  type ShapedIssuer,
  toIssuerSettings,
  writeKeySets,
} from '../../support/foreign-tokens.ts';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

/** Tokens with the claims that products write, and the settings that docs/trusted-issuers.md recommends for them. */
type Claims = Readonly<Record<string, unknown>>;
const ALL: readonly IssuerShape[] = [
  'cluster',
  'otherCluster',
  'github',
  'gitlab',
  'keycloak',
  'entra',
  'entraV1',
  'okta',
];
const SCOPES = { scopes: { 'Files.Read': 'files:read', 'files-reader': 'files:read', files: 'files:read' } };
const ADDITIONAL: Readonly<Record<IssuerShape, object>> = {
  // Their tokens have no scopes.
  cluster: { scope: 'files:read' },
  otherCluster: { scope: 'files:read' },
  github: { scope: 'files:read', requiredClaims: { repository_owner_id: '65' } },
  gitlab: { scope: 'files:read', requiredClaims: { namespace_id: '7' }, claims: { name: 'user_login' } },
  keycloak: { ...SCOPES, claims: { scope: ['scope', '/realm_access/roles'] } },
  entra: SCOPES,
  entraV1: SCOPES,
  okta: SCOPES,
};

/** In a lightweight access token of Keycloak, the claims of mappers are missing: here all but audience, subject and roles. */
const LIGHTWEIGHT = {
  acr: undefined,
  'allowed-origins': undefined,
  name: undefined,
  preferred_username: undefined,
  given_name: undefined,
  family_name: undefined,
  email: undefined,
  email_verified: undefined,
  resource_access: undefined,
};

let gateway: TestGateway;
let issuers: Readonly<Record<IssuerShape, ShapedIssuer>>;
beforeAll(async () => {
  issuers = await createShapedIssuers();
  gateway = await startGateway(
    (settings) => ({
      ...settings,
      tokens: { claims: ['name', 'email'] },
      headers: { email: 'X-Forwarded-Email' },
      trustedIssuers: Object.fromEntries(
        Object.entries(toIssuerSettings(issuers)).map(([name, shaped]) => [
          name,
          { ...shaped, ...ADDITIONAL[name as IssuerShape] },
        ]),
      ),
      routes: [
        { path: '/files/**', requires: 'files:read', issuers: [...ALL] },
        { path: '/cluster/**', requires: 'files:read', issuers: ['cluster'] },
      ],
    }),
    (folder) => writeKeySets(folder, issuers),
  );
});
afterAll(() => gateway.close());

const call = async (token: string, path = '/files/1'): Promise<number> => (await gateway.api(path, token)).status;

describe('the upstream receives', () => {
  const TENANT_USER = '3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d';
  const ENTRA_CLIENT = '1d0c9b8a-3f2e-4c5e-9b1a-2a7b1c308f0d';
  test.each<[string, IssuerShape, Claims, readonly (string | undefined)[]]>([
    [
      'a user of Keycloak',
      'keycloak',
      {},
      ['keycloak:2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a', 'keycloak/cli', 'carol', 'carol@example.test'],
    ],
    [
      'a service account of Keycloak',
      'keycloak',
      {
        sub: '0c9b8a2a-8f0d-4c5e-9b1a-3f2e1d7b1c30',
        azp: 'reports',
        client_id: 'reports',
        clientHost: '192.0.2.7',
        clientAddress: '192.0.2.7',
        preferred_username: 'service-account-reports',
        name: undefined,
        email: undefined,
        sid: undefined,
      },
      ['keycloak:0c9b8a2a-8f0d-4c5e-9b1a-3f2e1d7b1c30', 'keycloak/reports', 'service-account-reports', undefined],
    ],
    [
      'a user of Keycloak with a lightweight token, to which audience, subject and roles were added',
      'keycloak',
      LIGHTWEIGHT,
      ['keycloak:2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a', 'keycloak/cli', undefined, undefined],
    ],
    [
      'an application of Entra ID',
      'entra',
      { idtyp: 'app' },
      [`entra:${TENANT_USER}`, `entra/${ENTRA_CLIENT}`, undefined, undefined],
    ],
    [
      'a user of Entra ID',
      'entra',
      {
        roles: undefined,
        scp: 'Files.Read User.Read',
        preferred_username: 'dave@example.test',
        name: 'Dave',
      },
      [`entra:${TENANT_USER}`, `entra/${ENTRA_CLIENT}`, 'dave@example.test', undefined],
    ],
    [
      'a user of Entra ID with a version 1 token',
      'entraV1',
      {},
      [`entraV1:${TENANT_USER}`, `entraV1/${ENTRA_CLIENT}`, 'dave@example.test', undefined],
    ],
    [
      'a user of an old Keycloak, which copies the nonce',
      'keycloak',
      { nonce: 'n', typ: 'Bearer' },
      ['keycloak:2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a', 'keycloak/cli', 'carol', 'carol@example.test'],
    ],
    ['a user of Okta', 'okta', {}, ['okta:dave@example.test', 'okta/0oa1', undefined, undefined]],
    [
      'a job of GitHub Actions',
      'github',
      {},
      ['github:repo:octo-org/shop:ref:refs/heads/main', 'github/', undefined, undefined],
    ],
    [
      'a job of GitLab',
      'gitlab',
      {},
      ['gitlab:project_path:shop/api:ref_type:branch:ref:main', 'gitlab/', 'dave', undefined],
    ],
    [
      'a service account',
      'cluster',
      {},
      ['cluster:system:serviceaccount:shop:builder', 'cluster/', undefined, undefined],
    ],
    [
      'a service account of another cluster, with another identity',
      'otherCluster',
      {},
      ['otherCluster:system:serviceaccount:shop:builder', 'otherCluster/', undefined, undefined],
    ],
  ])('%s', async (_, name, claims, [user, client, preferred, email]) => {
    gateway.upstream.requests.length = 0;
    expect(await call(await issuers[name].sign(claims))).toBe(200);
    const { headers = {} } = gateway.upstream.requests[0] ?? {};
    expect([
      headers['x-forwarded-user'],
      headers['x-forwarded-client-id'],
      headers['x-forwarded-preferred-username'],
      headers['x-forwarded-email'],
      headers['x-forwarded-scope'],
    ]).toEqual([user, client, preferred, email, 'files:read']);
  });
});

describe('refused', () => {
  test.each<[string, IssuerShape, Claims, number]>([
    ['an ID token of Keycloak', 'keycloak', { aud: 'cli', typ: 'ID', at_hash: 'x' }, 401],
    // The client that signs users in and the API have the same id.
    ['an ID token of Keycloak for the API', 'keycloak', { typ: 'ID' }, 401],
    ['an ID token of Entra ID for the API', 'entra', { nonce: 'n' }, 401],
    ['an ID token of Okta for the API', 'okta', { at_hash: 'x' }, 401],
    ['an ID token of the hybrid flow for the API', 'okta', { c_hash: 'x' }, 401],
    ['an ID token that is marked as in Cognito', 'okta', { token_use: 'id' }, 401],
    ['a token of Keycloak without an audience mapper', 'keycloak', { aud: 'account' }, 401],
    ['a user of Keycloak without the role', 'keycloak', { realm_access: { roles: ['offline_access'] } }, 403],
    [
      'a role of another client of Keycloak',
      'keycloak',
      { realm_access: undefined, resource_access: { other: { roles: ['files-reader'] } } },
      403,
    ],
    ['a token of Entra ID for Microsoft Graph', 'entra', { aud: '00000003-0000-0000-c000-000000000000' }, 401],
    // All tenants of Entra ID share their keys.
    [
      'another tenant of Entra ID',
      'entra',
      {
        iss: 'https://login.microsoftonline.com/9b8a3f2e-1d0c-4c5e-9b1a-2a7b1c308f0d/v2.0',
        tid: '9b8a3f2e-1d0c-4c5e-9b1a-2a7b1c308f0d',
      },
      401,
    ],
    [
      'a version 1 token under the issuer of version 2',
      'entraV1',
      { iss: 'https://login.microsoftonline.com/8f0d2a7b-1c30-4c5e-9b1a-3f2e1d0c9b8a/v2.0' },
      401,
    ],
    [
      'a version 1 issuer without its slash',
      'entraV1',
      { iss: 'https://sts.windows.net/8f0d2a7b-1c30-4c5e-9b1a-3f2e1d0c9b8a' },
      401,
    ],
    ['a user of Entra ID without the scope', 'entraV1', { scp: 'User.Read' }, 403],
    ['a longer name of a scope', 'entraV1', { scp: 'Files.Read.All' }, 403],
    [
      'a token of the organization server of Okta',
      'okta',
      { iss: 'https://example.okta.com', aud: 'https://example.okta.com' },
      401,
    ],
    [
      'another owner at GitHub',
      'github',
      { sub: 'repo:evil/shop:ref:refs/heads/main', repository_owner: 'evil', repository_owner_id: '66' },
      401,
    ],
    ['the owner of a name that was registered again', 'github', { repository_owner_id: '67' }, 401],
    [
      'another group at GitLab',
      'gitlab',
      { sub: 'project_path:evil/api:ref_type:branch:ref:main', namespace_id: '8' },
      401,
    ],
    [
      'a service account token for the Kubernetes API',
      'cluster',
      { aud: ['https://kubernetes.default.svc.cluster.local'] },
      401,
    ],
  ])('%s', async (_, name, claims, status) => {
    gateway.upstream.requests.length = 0;
    expect(await call(await issuers[name].sign(claims))).toBe(status);
    expect(gateway.upstream.requests).toEqual([]);
  });

  test.each<[string, number, string]>([
    ['aud', 401, 'token_not_authentic: claim_missing aud (issuer keycloak)'],
    ['sub', 401, 'token_not_authentic: claim_missing sub (issuer keycloak)'],
    ['realm_access', 403, 'insufficient_scope: files:read'],
  ])('a lightweight token of Keycloak without %s', async (claim, status, reason) => {
    const token = await issuers.keycloak.sign({ ...LIGHTWEIGHT, [claim]: undefined });
    const reply = await gateway.api('/files/1', token);
    expect(reply.status).toBe(status);
    const line = await until('the request is logged', () =>
      gateway.log.find(({ event, request_id: id }) => event === 'request' && id === reply.headers['x-request-id']),
    );
    expect(line['reason']).toBe(reason);
  });

  test('a refresh token of Keycloak, which it signs with its own secret', async () => {
    const token = await issuers.keycloak.sign({
      typ: 'Refresh',
      aud: 'https://keycloak.example.test/realms/shop',
    });
    const [, payload] = token.split('.');
    const input = `${Buffer.from('{"alg":"HS512","typ":"JWT","kid":"k1"}').toString('base64url')}.${payload}`;
    expect(await call(`${input}.${createHmac('sha512', 'secret').update(input).digest('base64url')}`)).toBe(401);
  });

  test('a service account token of another cluster with the same subject, on a route of the first', async () => {
    const { issuer } = issuers.cluster.settings;
    expect(await call(await issuers.cluster.sign(), '/cluster/1')).toBe(200);
    expect(await call(await issuers.otherCluster.sign(), '/cluster/1')).toBe(401);
    expect(await call(await issuers.otherCluster.sign({ iss: issuer }), '/cluster/1')).toBe(401);
  });
});
