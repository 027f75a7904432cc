import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { createForeignKey, type ForeignKey, formatKeySet, signForeign } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { type IntrospectionServer, startIntrospectionServer } from '../support/introspection-server.ts';
import { createOcspAuthority, startOcspServer } from '../support/ocsp-server.ts';
import { createCa, createCrl, type IssuedCertificate, issue } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

export const CLIENT_SECRET = 'ghc_secret-of-the-billing-service-0123456789-abcdef';
export const FILES_API = 'https://files.example.test';
const CLOSED_PORT = 'http://127.0.0.1:1';

type Claims = Readonly<Record<string, unknown>>;

/** Client certificates, by what is wrong with them. */
export type CertificateName =
  | 'good'
  | 'revokedByCrl'
  | 'withoutFetchedCrl'
  | 'revokedByOcsp'
  | 'unknownToOcsp'
  | 'withoutOcspResponse'
  | 'dns'
  | 'twoDnsNames'
  | 'spiffe'
  | 'otherTrustDomain'
  | 'notSpiffe'
  | 'otherCa';

/** A gateway with every feature of identities: issuers, introspection, exchange, client authentication, certificates, DPoP, quotas. */
export interface IdentityGateway {
  readonly gateway: TestGateway;
  readonly corp: ForeignIssuerServer;
  readonly clientKey: ForeignKey;
  readonly certificates: Readonly<Record<CertificateName, IssuedCertificate>>;
  /** A token of `partner`, which no route lists. */
  signPartner(claims?: Claims, header?: Claims): Promise<string>;
  /** A token of the issuer whose keys were never reachable. */
  signUnreachable(claims?: Claims): Promise<string>;
  /** An opaque token that the issuer reports as active. */
  issueOpaque(claims?: Claims): string;
  close(): Promise<void>;
}

export async function startIdentityGateway(): Promise<IdentityGateway> {
  const [corp, unreachable, introspection, partnerKey, clientKey, pki] = await Promise.all([
    startForeignIssuer(),
    startForeignIssuer(),
    startIntrospectionServer(),
    createForeignKey('ES256', 'k1'),
    createForeignKey('ES256', 'signer'),
    createMachinePki(),
  ]);
  unreachable.isUp = false;
  const gateway = await startGateway(
    (settings) => ({
      ...settings,
      trustedProxies: ['127.0.0.1'],
      dpop: { enabled: true },
      certificates: createCertificateSettings(settings, pki.ocspUrl),
      directories: { ...settings.directories, machines: MACHINES },
      trustedIssuers: createIssuerSettings(corp, unreachable, introspection),
      integrations: [...(settings.integrations ?? []), ...INTEGRATIONS],
      routes: [...ROUTES],
    }),
    (folder) => {
      const files = {
        ...pki.files,
        'partner.json': formatKeySet(partnerKey),
        'client.json': formatKeySet(clientKey),
      };
      for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
    },
  );
  const { alice } = gateway.users;
  const now = (): number => Math.floor(gateway.clock.now());
  let opaqueTokens = 0;
  return {
    gateway,
    corp,
    clientKey,
    certificates: { ...pki.certificates, good: alice },
    signPartner: (claims = {}, header = {}) =>
      signForeign(partnerKey, { ...createClaims(now()), iss: PARTNER, ...claims }, header),
    signUnreachable: (claims = {}) => unreachable.sign(claims),
    issueOpaque(claims = {}) {
      opaqueTokens += 1;
      const token = `op_${createHash('sha256').update(String(opaqueTokens)).digest('base64url')}`;
      introspection.active.set(token, {
        ...createClaims(now()),
        iss: corp.url,
        token_type: 'Bearer',
        ...claims,
      });
      return token;
    },
    async close() {
      await gateway.close();
      await pki.close();
      for (const server of [corp, unreachable, introspection]) server.close();
    },
  };
}

export const PARTNER = 'https://partner.example.test';

const createClaims = (now: number): Claims => ({
  aud: 'files-api',
  sub: 'f3c1',
  azp: 'cli',
  client_id: 'cli',
  scope: 'files.read',
  iat: now - 1,
  exp: now + 300,
  jti: crypto.randomUUID(),
});

const ROUTES: NonNullable<SettingsInput['routes']> = [
  { path: '/files/**', requires: 'files:read', issuers: ['own', 'corp', 'offline', 'noIntrospection'] },
  { path: '/own/**', requires: 'files:read' },
  { path: '/corp/**', requires: 'any-token', issuers: ['corp'] },
  { path: '/cli/**', requires: 'any-token', issuers: ['corp'], clients: ['corp/cli'] },
  { path: '/admin/**', requires: 'admin:manage', issuers: ['own', 'corp'] },
  { path: '/api/**', requires: 'files:read', issuers: ['own', 'corp'], audience: FILES_API },
  { path: '/strict/**', requires: 'any-token', issuers: ['strict'] },
  { path: '/limited/**', requires: 'any-token', issuers: ['own', 'corp'], rate: '1/h' },
  { path: '/per-client/**', requires: 'any-token', rate: [{ limit: '1/h', per: 'client' }] },
  { path: '/per-route/**', requires: 'any-token', rate: [{ limit: '1/h', per: 'route' }, '9/h'] },
  { path: '/open/**', public: true, rate: '1/h' },
];

const INTEGRATIONS: NonNullable<SettingsInput['integrations']> = [
  {
    clientId: 'jobs',
    scope: 'files:read',
    exchange: [
      { issuer: 'corp', subject: 'f3c1' },
      { issuer: 'corp', subject: 'once', once: true },
      { issuer: 'offline', subject: 'f3c1' },
    ],
  },
  {
    clientId: 'billing',
    scope: 'files:read',
    grants: ['client'],
    clientSecretHashes: [hashClientSecret(CLIENT_SECRET)],
    audience: [FILES_API],
  },
  { clientId: 'signing', scope: 'files:read', grants: ['client'], jwksFile: 'client.json' },
  { clientId: 'proving', scope: 'files:read', access: [{ groups: ['operators'] }], dpop: 'required' },
  { clientId: 'machines', scope: 'files:read', access: [{ groups: ['operators', 'machines'] }] },
];

const MACHINES: NonNullable<SettingsInput['directories']>[string] = {
  label: 'machine',
  users: [
    { id: '0a0b0c0d', name: 'billing', dnsName: 'billing.example.test', groups: ['machines'] },
    { id: '0a0b0c0e', name: 'workload', uri: 'spiffe://a.test/billing', groups: ['machines'] },
  ],
};

const createIssuerSettings = (
  corp: ForeignIssuerServer,
  offline: ForeignIssuerServer,
  introspection: IntrospectionServer,
): NonNullable<SettingsInput['trustedIssuers']> => {
  const common = { audience: 'files-api', scopes: { 'files.read': 'files:read' } };
  const credentials = { clientId: 'gatehouse', clientSecret: 'a secret' };
  return {
    corp: {
      ...common,
      issuer: corp.url,
      audience: ['files-api', FILES_API],
      cooldown: '1h',
      introspection: { url: introspection.url, tokenPrefix: 'op_', ...credentials },
      logout: { audience: 'gatehouse-client' },
    },
    partner: { ...common, issuer: PARTNER, jwksFile: 'partner.json' },
    strict: {
      ...common,
      issuer: `${PARTNER}/strict`,
      jwksFile: 'partner.json',
      tokenType: 'at+jwt',
      requiredClaims: { tenant: '42' },
    },
    offline: { ...common, issuer: offline.url, logout: { audience: 'gatehouse-client' } },
    noIntrospection: {
      ...common,
      issuer: `${PARTNER}/opaque`,
      jwksFile: 'partner.json',
      introspection: { url: `${CLOSED_PORT}/introspect`, tokenPrefix: 'no_', ...credentials },
    },
  };
};

const createCertificateSettings = (
  { certificates }: SettingsInput,
  ocspUrl: string,
): NonNullable<SettingsInput['certificates']> => ({
  ...certificates,
  issuers: [
    'ca.pem',
    'crl-ca.pem',
    { file: 'fetched-crl-ca.pem', name: 'fetched' },
    { file: 'ocsp-ca.pem', ocsp: { url: ocspUrl, timeout: '60s' } },
    { file: 'closed-ocsp-ca.pem', ocsp: { url: `${CLOSED_PORT}/` } },
    { file: 'dns-ca.pem', identityFrom: 'dnsName', directory: 'machines' },
    { file: 'spiffe-ca.pem', identityFrom: 'uri', trustDomain: 'a.test', directory: 'machines' },
  ],
  crls: ['revoked.crl', { url: `${CLOSED_PORT}/ca.crl`, issuer: 'fetched' }],
});

const CA_NAMES = ['crl', 'fetched-crl', 'ocsp', 'closed-ocsp', 'dns', 'spiffe', 'other'] as const;

async function createMachinePki() {
  const authorities = Object.fromEntries(
    await Promise.all(CA_NAMES.map(async (name) => [name, await createCa({ name: `CN=${name}` })] as const)),
  ) as Record<(typeof CA_NAMES)[number], IssuedCertificate>;
  const { crl, 'fetched-crl': fetched, ocsp, 'closed-ocsp': closed, dns, spiffe, other } = authorities;
  const alice = { commonName: 'alice' };
  const certificates = {
    revokedByCrl: await issue(crl, alice),
    withoutFetchedCrl: await issue(fetched, alice),
    revokedByOcsp: await issue(ocsp, alice),
    unknownToOcsp: await issue(ocsp, alice),
    withoutOcspResponse: await issue(closed, alice),
    dns: await issue(dns, { dnsNames: ['billing.example.test'] }),
    twoDnsNames: await issue(dns, { dnsNames: ['billing.example.test', 'alice'] }),
    spiffe: await issue(spiffe, { uris: ['spiffe://a.test/billing'] }),
    otherTrustDomain: await issue(spiffe, { uris: ['spiffe://b.test/billing'] }),
    notSpiffe: await issue(spiffe, { uris: ['https://a.test/billing'] }),
    otherCa: await issue(other, alice),
  };
  const authority = await createOcspAuthority(ocsp);
  authority.setIndex([[certificates.revokedByOcsp, 'revoked']]);
  const server = await startOcspServer(authority);
  return {
    certificates,
    ocspUrl: server.url,
    files: {
      ...Object.fromEntries(Object.entries(authorities).map(([name, { pem }]) => [`${name}-ca.pem`, pem])),
      'revoked.crl': (await createCrl(crl, { revoked: [certificates.revokedByCrl] })).pem,
    },
    async close() {
      await server.stop();
      authority.remove();
    },
  };
}
