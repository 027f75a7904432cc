import type { Settings } from '../config/schema.ts';
import { readSettingFile } from '../lib/read-file.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';
import { StartError } from '../lib/start-error.ts';
import { createClientAssertions } from '../tokens/client-assertions.ts';
import type { IssuerKeys } from '../tokens/trusted-issuers/issuer-keys.ts';
import type { IssuerKey } from '../tokens/trusted-issuers/key-set.ts';
import { type IssuerKeysRegistry, parseFixedKeySet } from './trusted-issuers.ts';

type Integration = Settings['integrations'][number];

/** As for trusted issuers, seconds. */
const FETCHING = { refreshInterval: 600, cooldown: 30, maxStaleness: 3_600, timeout: 5 };

/** The keys of clients that use `private_key_jwt`. Throws a `StartError` if a file cannot be used. */
export async function openClientKeys(
  { integrations }: Settings,
  registry: IssuerKeysRegistry,
  scope: ResourceScope,
): Promise<ReadonlyMap<string, IssuerKeys>> {
  const sources = await Promise.all(
    integrations.map(async (integration, index) => {
      const { clientId, jwksUri } = integration;
      const setting = `integrations[${index}]`;
      const fixed = await readFixedKeys(setting, integration);
      if (fixed === undefined && jwksUri === undefined) return [];
      const source = {
        ...FETCHING,
        name: `client ${clientId}`,
        issuer: clientId,
        keySet: fixed?.text,
        ca: readSettingFile(`${setting}.jwksCa`, integration.jwksCa),
        certificate: undefined,
        key: undefined,
        ...(jwksUri !== undefined && { jwksUri }),
      };
      return [{ clientId, source, fixedKeys: fixed?.keys }];
    }),
  );
  return new Map(
    sources.flat().map(({ clientId, source, fixedKeys }) => [clientId, registry.open(source, fixedKeys, scope)]),
  );
}

async function readFixedKeys(
  setting: string,
  { jwks }: Integration,
): Promise<{ readonly text: string; readonly keys: readonly IssuerKey[] } | undefined> {
  if (jwks === undefined) return undefined;
  const name = `${setting}.jwks`;
  const text = typeof jwks === 'string' ? jwks : JSON.stringify(jwks);
  if (/"(?:d|k)"\s*:/.test(text)) throw new StartError([`${name}: contains a private key; keep only the public keys`]);
  return { text, keys: await parseFixedKeySet(name, text) };
}

export const createAssertionVerifier = ({ publicUrl, service }: Settings, keys: ReadonlyMap<string, IssuerKeys>) =>
  createClientAssertions({
    keys,
    audiences: new Set([
      publicUrl,
      // RFC 7523 §3: libraries name the issuer, the token endpoint or the endpoint that they call.
      ...service.paths.flatMap((path) =>
        ['', ...['token', 'par', 'revoke', 'introspect', 'device_authorization'].map((name) => `/oauth2/${name}`)].map(
          (endpoint) => `${publicUrl}${path}${endpoint}`,
        ),
      ),
    ]),
  });
