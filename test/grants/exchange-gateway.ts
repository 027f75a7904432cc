import type { SettingsInput } from '../../src/config/schema.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import {
  createShapedIssuers,
  type IssuerShape,
  type ShapedIssuer,
  toIssuerSettings,
  writeKeySets,
} from '../support/foreign-tokens.ts';
import { createOAuthClient, type OAuthClient } from '../support/oauth-client.ts';
import { withIntegration } from '../support/reconfigure.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';

export type Exchange = NonNullable<NonNullable<SettingsInput['integrations']>[number]['exchange']>;

export const ENTRIES: Exchange = [
  { issuer: 'cluster', subject: 'system:serviceaccount:shop:*', scope: 'files:read' },
  {
    issuer: 'github',
    subject: 'repo:octo-org/shop:**',
    claims: { repository_id: '74', ref: 'refs/heads/*' },
  },
  { issuer: 'gitlab', subject: 'project_path:shop/api:**', claims: { ref_protected: 'true' } },
  { issuer: 'keycloak', subject: '*', claims: { '/realm_access/roles': 'files-reader' } },
  { issuer: 'entra', subject: '3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d' },
  { issuer: 'entraV1', subject: '3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d' },
  { issuer: 'okta', subject: 'dave@example.test' },
  { issuer: 'live', subject: 'f3c1' },
];

/** A gateway whose integration `jobs` exchanges tokens of every shape of issuer, and of `live`, whose keys are fetched. */
export interface ExchangeGateway {
  readonly gateway: TestGateway;
  readonly oauth: OAuthClient;
  readonly issuers: Readonly<Record<IssuerShape, ShapedIssuer>>;
  readonly live: ForeignIssuerServer;
  /** Token exchange (RFC 8693). */
  readonly exchange: OAuthClient['exchange'];
  /** JWT bearer (RFC 7523 §2.1). */
  readonly bear: OAuthClient['bearJwt'];
  readonly close: () => Promise<void>;
}

export async function startExchangeGateway(): Promise<ExchangeGateway> {
  const [issuers, live] = await Promise.all([createShapedIssuers(), startForeignIssuer()]);
  const gateway = await startGateway(
    (settings) => ({
      ...settings,
      introspection: { access: [{ groups: ['operators'] }] },
      trustedIssuers: {
        ...toIssuerSettings(issuers),
        live: { issuer: live.url, audience: 'files-api', label: 'live' },
      },
      integrations: [
        ...(settings.integrations ?? []),
        { clientId: 'jobs', name: 'Jobs', scope: 'files:read;reports:write', exchange: ENTRIES },
      ],
    }),
    (folder) => writeKeySets(folder, issuers),
  );
  const oauth = createOAuthClient(gateway);
  return {
    gateway,
    oauth,
    issuers,
    live,
    exchange: oauth.exchange,
    bear: oauth.bearJwt,
    async close() {
      await gateway.close();
      live.close();
    },
  };
}

export const withExchange = (entries: Exchange): SettingsChange => withIntegration('jobs', { exchange: entries });
