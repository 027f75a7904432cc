import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createForeignKey, type ForeignKey, formatKeySet, signForeign } from './foreign-issuer.ts';
import type { SettingsChange } from './test-gateway.ts';

/** An OpenID provider over HTTP on this machine, whose keys and availability a test controls. */
export interface ForeignIssuerServer {
  readonly url: string;
  published: readonly ForeignKey[];
  isUp: boolean;
  /** Requests for its key set. */
  readonly fetches: number;
  sign(claims?: Readonly<Record<string, unknown>>, key?: ForeignKey): Promise<string>;
  close(): void;
}

type IssuerSettings = NonNullable<SettingsInput['trustedIssuers']>[string];

/** Trusts the issuer as `corp`, and accepts its tokens on `/files/**`. */
export const withTrustedIssuer =
  ({ url }: Pick<ForeignIssuerServer, 'url'>, changes: Partial<IssuerSettings> = {}): SettingsChange =>
  (settings) => ({
    ...settings,
    trustedIssuers: {
      ...settings.trustedIssuers,
      corp: {
        issuer: url,
        audience: 'files-api',
        scopes: { 'files.read': 'files:read' },
        ...changes,
      },
    },
    routes: [{ path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] }],
  });

export async function startForeignIssuer(): Promise<ForeignIssuerServer> {
  const key = await createForeignKey('ES256', 'k1');
  let fetches = 0;
  const server = createServer((request, response) => {
    const isKeySet = request.url === '/keys';
    if (isKeySet) fetches += 1;
    if (!issuer.isUp) return void response.writeHead(503).end();
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(
        isKeySet
          ? formatKeySet(...issuer.published)
          : JSON.stringify({ issuer: issuer.url, jwks_uri: `${issuer.url}/keys` }),
      );
  }).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const issuer: ForeignIssuerServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    published: [key],
    isUp: true,
    get fetches() {
      return fetches;
    },
    sign(claims = {}, signingKey = key) {
      const now = Math.floor(Date.now() / 1_000);
      return signForeign(signingKey, {
        iss: issuer.url,
        aud: 'files-api',
        sub: 'f3c1',
        azp: 'cli',
        preferred_username: 'carol',
        scope: 'files.read',
        iat: now - 1,
        exp: now + 300,
        jti: crypto.randomUUID(),
        ...claims,
      });
    },
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
  return issuer;
}
