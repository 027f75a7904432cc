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

export type IssuerShape = 'cluster' | 'otherCluster' | 'github' | 'gitlab' | 'keycloak' | 'entra' | 'okta';

const SHAPES: Readonly<
  Record<IssuerShape, { readonly issuer: string; readonly claims: Claims; readonly settings?: Claims }>
> = {
  cluster: {
    issuer: 'https://kubernetes.default.svc.cluster.local',
    claims: {
      aud: ['gatehouse'],
      sub: 'system:serviceaccount:shop:builder',
      'kubernetes.io': {
        namespace: 'shop',
        pod: { name: 'builder-0', uid: '1c8c1e8e-7a0c-4b21-9f6f-5d1c7a1f9a10' },
        serviceaccount: { name: 'builder', uid: '7d1f9a10-7a0c-4b21-9f6f-5d1c1c8c1e8e' },
      },
    },
  },
  otherCluster: {
    issuer: 'https://oidc.eks.example.test/id/B7',
    claims: { aud: ['gatehouse'], sub: 'system:serviceaccount:shop:builder' },
  },
  github: {
    issuer: 'https://token.actions.githubusercontent.com',
    claims: {
      aud: 'gatehouse',
      sub: 'repo:octo-org/shop:ref:refs/heads/main',
      repository: 'octo-org/shop',
      repository_id: '74',
      repository_owner: 'octo-org',
      ref: 'refs/heads/main',
      event_name: 'push',
      job_workflow_ref: 'octo-org/shop/.github/workflows/deploy.yml@refs/heads/main',
      runner_environment: 'github-hosted',
    },
  },
  gitlab: {
    issuer: 'https://gitlab.example.test',
    claims: {
      aud: 'gatehouse',
      sub: 'project_path:shop/api:ref_type:branch:ref:main',
      project_path: 'shop/api',
      project_id: '22',
      ref: 'main',
      ref_protected: 'true',
      pipeline_source: 'push',
    },
  },
  keycloak: {
    issuer: 'https://keycloak.example.test/realms/shop',
    claims: {
      aud: ['gatehouse', 'account'],
      sub: '2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a',
      typ: 'Bearer',
      azp: 'cli',
      preferred_username: 'carol',
      email: 'carol@example.test',
      email_verified: true,
      realm_access: { roles: ['offline_access', 'files-reader'] },
      scope: 'openid profile',
    },
  },
  entra: {
    issuer: 'https://login.microsoftonline.com/8f0d2a7b-1c30-4c5e-9b1a-3f2e1d0c9b8a/v2.0',
    claims: {
      aud: '6e74172b-be56-4843-9ff4-e66a39bb12e3',
      sub: 'pairwise-for-this-app',
      oid: '3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d',
      tid: '8f0d2a7b-1c30-4c5e-9b1a-3f2e1d0c9b8a',
      azp: '1d0c9b8a-3f2e-4c5e-9b1a-2a7b1c308f0d',
      ver: '2.0',
      roles: ['Files.Read'],
    },
    settings: { audience: '6e74172b-be56-4843-9ff4-e66a39bb12e3', claims: { identity: 'oid' } },
  },
  okta: {
    issuer: 'https://example.okta.com/oauth2/default',
    claims: { aud: 'gatehouse', sub: 'dave@example.test', cid: '0oa1', scp: ['files'], ver: 1 },
    settings: { claims: { clientId: ['cid'] } },
  },
};

export const createShapedIssuers = async (): Promise<Readonly<Record<IssuerShape, ShapedIssuer>>> =>
  Object.fromEntries(
    await Promise.all(
      Object.entries(SHAPES).map(async ([name, { issuer, claims, settings }]) => {
        // All have the same `kid`, so that only the issuer distinguishes their keys.
        const key = await createForeignKey(name === 'okta' ? 'ES256' : 'RS256', 'k1');
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
              header,
            );
          },
        };
        return [name, shaped];
      }),
    ),
  ) as Record<IssuerShape, ShapedIssuer>;

/** Writes the key sets that the settings name. */
export const writeKeySets = (folder: string, issuers: Readonly<Record<string, ShapedIssuer>>): void => {
  for (const { name, key } of Object.values(issuers))
    writeFileSync(join(folder, `${name}.json`), formatKeySet(key));
};

export const toIssuerSettings = (issuers: Readonly<Record<string, ShapedIssuer>>) =>
  Object.fromEntries(Object.values(issuers).map(({ name, settings }) => [name, settings]));
