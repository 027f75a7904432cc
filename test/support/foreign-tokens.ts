import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createForeignKey, type ForeignKey, formatKeySet, signForeign } from './foreign-issuer.ts';

type Claims = Readonly<Record<string, unknown>>;
type IssuerSettings = NonNullable<SettingsInput['trustedIssuers']>[string];

/** An issuer with its own key and claims of the shape that its product has. */
export interface ShapedIssuer {
  readonly name: string;
  readonly key: ForeignKey;
  readonly settings: IssuerSettings;
  sign(claims?: Claims, header?: Claims, key?: ForeignKey): Promise<string>;
}

export type IssuerShape = 'cluster' | 'otherCluster' | 'github' | 'gitlab' | 'keycloak' | 'entra' | 'entraV1' | 'okta';

interface Shape {
  readonly issuer: string;
  readonly header?: Claims;
  /** Claims that are undefined are omitted: those of `sign` that the product does not write. */
  readonly claims: Claims;
  readonly settings?: Claims;
}

const TENANT = '8f0d2a7b-1c30-4c5e-9b1a-3f2e1d0c9b8a';
const ENTRA_API = '6e74172b-be56-4843-9ff4-e66a39bb12e3';
const ENTRA_CLIENT = '1d0c9b8a-3f2e-4c5e-9b1a-2a7b1c308f0d';

const SHAPES: Readonly<Record<IssuerShape, Shape>> = {
  cluster: {
    issuer: 'https://kubernetes.default.svc.cluster.local',
    // The API server writes no `typ`.
    header: { typ: undefined },
    claims: {
      aud: ['gatehouse'],
      sub: 'system:serviceaccount:shop:builder',
      'kubernetes.io': {
        namespace: 'shop',
        node: { name: 'node-1', uid: '9f6f5d1c-7a0c-4b21-9f6f-5d1c7a1f9a10' },
        pod: { name: 'builder-0', uid: '1c8c1e8e-7a0c-4b21-9f6f-5d1c7a1f9a10' },
        serviceaccount: { name: 'builder', uid: '7d1f9a10-7a0c-4b21-9f6f-5d1c1c8c1e8e' },
        warnafter: 1_900_000_000,
      },
    },
  },
  otherCluster: {
    issuer: 'https://oidc.eks.example.test/id/B7',
    header: { typ: undefined },
    claims: { aud: ['gatehouse'], sub: 'system:serviceaccount:shop:builder' },
  },
  github: {
    issuer: 'https://token.actions.githubusercontent.com',
    header: { x5t: 'eBZ_cn3sXYAd0ch4THBKHIgOwOE' },
    claims: {
      aud: 'gatehouse',
      sub: 'repo:octo-org/shop:ref:refs/heads/main',
      repository: 'octo-org/shop',
      repository_id: '74',
      repository_owner: 'octo-org',
      repository_owner_id: '65',
      repository_visibility: 'private',
      ref: 'refs/heads/main',
      ref_type: 'branch',
      ref_protected: 'true',
      head_ref: '',
      base_ref: '',
      sha: '1f3c6a0d5b7e9c2a4f6e8d0b1c3a5e7f9d2b4c6a',
      event_name: 'push',
      actor: 'octocat',
      actor_id: '12',
      workflow: 'deploy',
      workflow_ref: 'octo-org/shop/.github/workflows/deploy.yml@refs/heads/main',
      workflow_sha: '1f3c6a0d5b7e9c2a4f6e8d0b1c3a5e7f9d2b4c6a',
      job_workflow_ref: 'octo-org/shop/.github/workflows/deploy.yml@refs/heads/main',
      job_workflow_sha: '1f3c6a0d5b7e9c2a4f6e8d0b1c3a5e7f9d2b4c6a',
      run_id: '42',
      run_number: '10',
      run_attempt: '1',
      runner_environment: 'github-hosted',
    },
  },
  gitlab: {
    issuer: 'https://gitlab.example.test',
    claims: {
      aud: 'gatehouse',
      sub: 'project_path:shop/api:ref_type:branch:ref:main',
      namespace_id: '7',
      namespace_path: 'shop',
      project_path: 'shop/api',
      project_id: '22',
      project_visibility: 'private',
      user_id: '1',
      user_login: 'dave',
      user_email: 'dave@example.test',
      user_access_level: 'developer',
      pipeline_id: '455',
      pipeline_source: 'push',
      job_id: '1123',
      ref: 'main',
      ref_type: 'branch',
      ref_path: 'refs/heads/main',
      ref_protected: 'true',
      // A number, unlike the other ids.
      runner_id: 1,
      runner_environment: 'self-hosted',
      sha: '714a629c0b401fdce83e847fc9589983fc6f46bc',
      ci_config_ref_uri: 'gitlab.example.test/shop/api//.gitlab-ci.yml@refs/heads/main',
      ci_config_sha: '714a629c0b401fdce83e847fc9589983fc6f46bc',
    },
  },
  keycloak: {
    issuer: 'https://keycloak.example.test/realms/shop',
    claims: {
      nbf: undefined,
      aud: ['gatehouse', 'account'],
      sub: '2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a',
      typ: 'Bearer',
      azp: 'cli',
      sid: '6c1f0e5a-3d2b-4a1c-8e7f-9b0a1c2d3e4f',
      acr: '1',
      'allowed-origins': ['https://app.example.test'],
      name: 'Carol Example',
      preferred_username: 'carol',
      given_name: 'Carol',
      family_name: 'Example',
      email: 'carol@example.test',
      email_verified: true,
      realm_access: { roles: ['offline_access', 'files-reader'] },
      resource_access: { account: { roles: ['manage-account', 'view-profile'] } },
      scope: 'openid profile email',
    },
  },
  entra: {
    issuer: `https://login.microsoftonline.com/${TENANT}/v2.0`,
    claims: {
      // Entra ID writes `uti` instead.
      jti: undefined,
      aud: ENTRA_API,
      sub: 'pairwise-for-this-app',
      oid: '3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d',
      tid: TENANT,
      azp: ENTRA_CLIENT,
      azpacr: '1',
      aio: 'ASQA2/8bAAAA',
      rh: '1.AQ4A',
      uti: 'fqiBqXLPj0eQa82S',
      ver: '2.0',
      roles: ['Files.Read'],
    },
    settings: { audience: ENTRA_API, claims: { identity: 'oid' } },
  },
  entraV1: {
    issuer: `https://sts.windows.net/${TENANT}/`,
    header: { x5t: 'k1' },
    claims: {
      jti: undefined,
      aud: `api://${ENTRA_API}`,
      sub: 'pairwise-for-this-app',
      oid: '3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d',
      tid: TENANT,
      acr: '1',
      amr: ['pwd', 'mfa'],
      appid: ENTRA_CLIENT,
      appidacr: '0',
      family_name: 'Example',
      given_name: 'Dave',
      ipaddr: '192.0.2.7',
      name: 'Dave Example',
      scp: 'Files.Read User.Read',
      unique_name: 'dave@example.test',
      upn: 'dave@example.test',
      uti: 'fqiBqXLPj0eQa82S',
      ver: '1.0',
    },
    settings: { audience: `api://${ENTRA_API}`, claims: { identity: 'oid', name: 'upn' } },
  },
  okta: {
    issuer: 'https://example.okta.com/oauth2/default',
    header: { typ: undefined },
    claims: {
      nbf: undefined,
      ver: 1,
      aud: 'gatehouse',
      sub: 'dave@example.test',
      uid: '00uid4BxXw6I6TV4m0g3',
      cid: '0oa1',
      scp: ['files', 'openid'],
      auth_time: 1_900_000_000,
    },
    settings: { claims: { clientId: ['cid'] } },
  },
};

export const createShapedIssuers = async (): Promise<Readonly<Record<IssuerShape, ShapedIssuer>>> =>
  Object.fromEntries(
    await Promise.all(
      Object.entries(SHAPES).map(async ([name, { issuer, header: shapeHeader, claims, settings }]) => {
        // All have the same `kid`, so that only the issuer distinguishes their keys.
        const key = await createForeignKey('RS256', 'k1');
        const shaped: ShapedIssuer = {
          name,
          key,
          settings: { issuer, audience: 'gatehouse', jwksFile: `${name}.json`, ...settings },
          sign(more = {}, header = {}, signingKey = key) {
            const now = Math.floor(Date.now() / 1_000);
            const standard = { iss: issuer, iat: now - 1, nbf: now - 1, exp: now + 600 };
            return signForeign(
              signingKey,
              { ...standard, jti: crypto.randomUUID(), ...claims, ...more },
              { ...shapeHeader, ...header },
            );
          },
        };
        return [name, shaped];
      }),
    ),
  ) as Record<IssuerShape, ShapedIssuer>;

/** Writes the key sets that the settings name. */
export const writeKeySets = (folder: string, issuers: Readonly<Record<string, ShapedIssuer>>): void => {
  for (const { name, key } of Object.values(issuers)) writeFileSync(join(folder, `${name}.json`), formatKeySet(key));
};

export const toIssuerSettings = (issuers: Readonly<Record<string, ShapedIssuer>>) =>
  Object.fromEntries(Object.values(issuers).map(({ name, settings }) => [name, settings]));
