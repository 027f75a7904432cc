import { readFileSync } from 'node:fs';
import type { Settings } from '../config/schema.ts';
import { createHttpClient, type HttpClient } from '../lib/http-client.ts';
import type { RateLimiter } from '../lib/rate-limiter.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { type OpenedResource, type ResourceScope, SharedResources } from '../lib/shared-resources.ts';
import { StartError } from '../lib/start-error.ts';
import {
  boundText,
  type IntrospectionStatus,
  type IssuerState,
  type IssuerStatus,
} from '../observability/gateway-status.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { createClientAssertions } from '../tokens/client-assertions.ts';
import { SIGNATURE_ALGORITHMS, type SignatureAlgorithm } from '../tokens/jwt.ts';
import { TOKEN_CACHE_SIZE } from '../tokens/token-cache.ts';
import { createScopeMapping } from '../tokens/trusted-issuers/claim-mapping.ts';
import { fetchKeys } from '../tokens/trusted-issuers/fetch-keys.ts';
import { TokenIntrospection } from '../tokens/trusted-issuers/introspection.ts';
import { IssuerKeys, type IssuerKeysOptions } from '../tokens/trusted-issuers/issuer-keys.ts';
import { type IssuerKey, parseKeySet } from '../tokens/trusted-issuers/key-set.ts';
import { TrustedIssuer } from '../tokens/trusted-issuers/trusted-issuer.ts';
import { TrustedIssuers } from '../tokens/trusted-issuers/trusted-issuers.ts';

type IssuerSettings = Settings['trustedIssuers'][string];

/** How the keys of an issuer are fetched. A change of any of these fetches them again. */
interface KeySource
  extends Pick<
    IssuerSettings,
    'issuer' | 'jwksUri' | 'refreshInterval' | 'cooldown' | 'maxStaleness' | 'timeout' | 'bearerTokenFile'
  > {
  readonly name: string;
  /** Omitted: all that are supported. */
  readonly algorithms?: readonly SignatureAlgorithm[];
  readonly keySet: string | undefined;
  readonly ca: string | undefined;
  readonly certificate: string | undefined;
  readonly key: string | undefined;
}

/** As `IssuerKeys` decides whether to use the keys: old ones are used unless they cannot be fetched. */
function getIssuerState(age: number | undefined, isFailing: boolean, maxStaleness: number): IssuerState {
  if (!isFailing) return age === undefined ? 'waiting' : 'available';
  return age === undefined || age > maxStaleness ? 'unavailable' : 'failing';
}

/**
 * The keys of all trusted issuers. They survive a reload; if what they are fetched with has changed, the last ones are used
 * until they have been fetched again.
 */
export class IssuerKeysRegistry extends SharedResources<IssuerKeys> {
  readonly log: Logger;
  readonly #metrics: Pick<Metrics, 'counter'>;
  readonly #now: () => number;
  readonly #sources = new WeakMap<IssuerKeys, KeySource>();
  /** Describes the issuers whose last fetch failed. */
  readonly #failures = new WeakMap<IssuerKeys, NonNullable<IssuerStatus['failure']>>();
  /** One for each open `TokenIntrospection`. */
  readonly #introspection = new Set<{ name: string; failure: IntrospectionStatus['failure'] }>();

  /** `now`: in seconds since 1970. */
  constructor(log: Logger, metrics: Pick<Metrics, 'counter'>, now: () => number) {
    super();
    this.log = log;
    this.#metrics = metrics;
    this.#now = now;
  }

  /** Keys in files are not listed. */
  listStatus(): readonly IssuerStatus[] {
    const statuses = this.list().flatMap((keys) => {
      const source = this.#sources.get(keys);
      return source === undefined || source.keySet !== undefined ? [] : [this.#getStatus(keys, source)];
    });
    // During a reload, the later entry of a name is the one in use.
    return [...new Map(statuses.map((status) => [status.name, status])).values()];
  }

  listIntrospection(): readonly IntrospectionStatus[] {
    // During a reload, the later entry of a name is the one in use.
    return [...new Map(this.#introspection.values().map((status) => [status.name, { ...status }])).values()];
  }

  /** Returns the function for `onStateChange`. */
  trackIntrospection(name: string, { resources, onActivate }: ResourceScope) {
    const status = { name, failure: undefined as IntrospectionStatus['failure'] };
    onActivate(() => this.#introspection.add(status));
    resources.defer(() => void this.#introspection.delete(status));
    return (error: Error | undefined): void => {
      status.failure = error && { since: this.#now(), error: boundText(error.message) };
      if (error === undefined) this.log.info('introspection_recovered', { issuer: name });
      else this.log.warn('introspection_failed', { issuer: name, ...errorFields(error), stack: undefined });
    };
  }

  #getStatus(keys: IssuerKeys, { maxStaleness }: KeySource): IssuerStatus {
    const { name, age } = keys;
    const failure = this.#failures.get(keys);
    const fetchedAt = age === undefined ? undefined : this.#now() - age;
    return { name, state: getIssuerState(age, failure !== undefined, maxStaleness), fetchedAt, failure };
  }

  #recordAttempt(keys: IssuerKeys, error: Error | undefined): void {
    if (error === undefined) return void this.#failures.delete(keys);
    const since = this.#failures.get(keys)?.since ?? this.#now();
    this.#failures.set(keys, { since, error: boundText(error.message) });
  }

  /** `fixedKeys`: they are not fetched. */
  open(source: KeySource, fixedKeys: readonly IssuerKey[] | undefined, scope: ResourceScope): IssuerKeys {
    return this.share(JSON.stringify(source), () => this.#open(source, fixedKeys), scope);
  }

  /** An entry with the same keys. Those of another issuer or URL, or in a file, are not the same. */
  #findPrevious({ name, issuer, jwksUri }: KeySource): IssuerKeys | undefined {
    return this.list().findLast((keys) => {
      const source = this.#sources.get(keys);
      return (
        source?.keySet === undefined && source?.name === name && source.issuer === issuer && source.jwksUri === jwksUri
      );
    });
  }

  #open(source: KeySource, fixedKeys: readonly IssuerKey[] | undefined): OpenedResource<IssuerKeys> {
    const { name } = source;
    const fetcher = createKeyFetcher(source);
    const count = (result: 'success' | 'failure') =>
      this.#metrics.counter('gatehouse_issuer_key_fetches_total', name, result);
    const previous = fixedKeys === undefined ? this.#findPrevious(source) : undefined;
    const options: IssuerKeysOptions = {
      name,
      fetch: async () => fixedKeys ?? fetcher.fetch(),
      algorithms: source.algorithms,
      refreshInterval: source.refreshInterval,
      cooldown: source.cooldown,
      maxStaleness: fixedKeys === undefined ? source.maxStaleness : Number.POSITIVE_INFINITY,
      onAttempt: (error) => {
        this.#recordAttempt(keys, error);
        if (fixedKeys === undefined) count(error === undefined ? 'success' : 'failure').value += 1;
      },
      onStateChange: (error) => {
        if (error === undefined) this.log.info('issuer_available', { issuer: name });
        else this.log.warn('issuer_unavailable', { issuer: name, ...errorFields(error), stack: undefined });
      },
      onUsabilityChange: (isUsable) => {
        if (isUsable) this.log.info('issuer_keys_usable', { issuer: name });
        else
          this.log.warn('issuer_keys_unusable', {
            issuer: name,
            algorithms: source.algorithms ?? SIGNATURE_ALGORITHMS,
            note: 'its key set has no key for these algorithms: everything that it signs is refused',
          });
      },
    };
    const keys = new IssuerKeys(options, previous);
    this.#sources.set(keys, source);
    const previousFailure = previous && this.#failures.get(previous);
    if (previousFailure !== undefined) this.#failures.set(keys, previousFailure);
    // Open streams are checked against them as soon as the configuration is in use.
    if (fixedKeys !== undefined) void keys.start();
    return {
      resource: keys,
      start() {
        if (fixedKeys !== undefined) return;
        for (const result of ['success', 'failure'] as const) count(result);
        // Start-up does not wait for an issuer.
        void keys.start();
      },
      async close() {
        keys.close();
        await fetcher.close();
      },
    };
  }
}

/** Undefined where none is configured. Throws a `StartError` if a file of an issuer cannot be used. An unreachable issuer is not an error. */
export async function openTrustedIssuers(
  { trustedIssuers }: Settings,
  registry: IssuerKeysRegistry,
  tokenGuesses: RateLimiter,
  scope: ResourceScope,
): Promise<TrustedIssuers | undefined> {
  const sources = await Promise.all(
    Object.entries(trustedIssuers).map(async ([name, settings]) => {
      const source = readKeySource(name, settings);
      const file = `trustedIssuers.${name}.jwksFile: ${settings.jwksFile}`;
      const fixedKeys = source.keySet === undefined ? undefined : await parseFixedKeySet(file, source.keySet);
      return { settings, source, fixedKeys };
    }),
  );
  if (sources.length === 0) return undefined;
  return new TrustedIssuers(
    sources.map(({ settings, source, fixedKeys }) =>
      createTrustedIssuer(
        source.name,
        settings,
        registry.open(source, fixedKeys, scope),
        openIntrospection(source, settings, registry, tokenGuesses, scope),
      ),
    ),
  );
}

/** Undefined where opaque tokens of the issuer are not accepted. */
function openIntrospection(
  source: KeySource,
  { introspection }: IssuerSettings,
  registry: IssuerKeysRegistry,
  guesses: RateLimiter,
  scope: ResourceScope,
): TokenIntrospection | undefined {
  if (introspection === undefined) return undefined;
  const { name } = source;
  const httpClient = createSourceClient(source, 32);
  scope.resources.defer(() => httpClient.destroy());
  return new TokenIntrospection({
    ...introspection,
    name,
    clientSecret: introspection.clientSecret ?? '',
    cacheSize: TOKEN_CACHE_SIZE,
    httpClient,
    guesses,
    onStateChange: registry.trackIntrospection(name, scope),
  });
}

const createSourceClient = ({ timeout, ca, certificate, key }: KeySource, maxConnections: number): HttpClient =>
  createHttpClient({
    timeoutMs: timeout * 1_000,
    ca,
    certificate: certificate === undefined || key === undefined ? undefined : { cert: certificate, key },
    maxConnections,
  });

/** Fetches the keys of an issuer. */
export function createKeyFetcher(source: KeySource) {
  const { issuer, jwksUri, certificate, bearerTokenFile } = source;
  const httpClient = createSourceClient(source, 2);
  const anonymousHttpClient =
    certificate === undefined ? httpClient : createSourceClient({ ...source, certificate: undefined }, 2);
  const readBearerToken =
    bearerTokenFile === undefined ? undefined : () => readFileSync(bearerTokenFile, 'utf8').trim();
  return {
    fetch: () => fetchKeys({ issuer, jwksUri, httpClient, anonymousHttpClient, readBearerToken }),
    close: () => Promise.all([...new Set([httpClient, anonymousHttpClient])].map((client) => client.destroy())),
  };
}

/** Throws a `StartError` if a file cannot be read. */
export function readKeySource(name: string, settings: IssuerSettings): KeySource {
  const { issuer, jwksUri, refreshInterval, cooldown, maxStaleness, timeout, bearerTokenFile, algorithms } = settings;
  const read = (setting: 'jwksFile' | 'ca' | 'certificate' | 'key'): string | undefined =>
    readSettingFile(`trustedIssuers.${name}.${setting}`, settings[setting]);
  return {
    name,
    issuer,
    algorithms,
    refreshInterval,
    cooldown,
    maxStaleness,
    timeout,
    ...(jwksUri !== undefined && { jwksUri }),
    ...(bearerTokenFile !== undefined && { bearerTokenFile }),
    keySet: read('jwksFile'),
    ca: read('ca'),
    certificate: read('certificate'),
    key: read('key'),
  };
}

/** Throws a `StartError` that names the setting. */
async function parseFixedKeySet(setting: string, text: string): Promise<readonly IssuerKey[]> {
  try {
    const keys = await parseKeySet(text);
    if (keys.length === 0) throw new Error('it has no key that verifies signatures');
    return keys;
  } catch (error) {
    throw new StartError([`${setting}: ${(error as Error).message}`], { cause: error });
  }
}

const TOKEN_TYPES = {
  'at+jwt': ['at+jwt'],
  JWT: ['jwt', undefined],
  any: ['at+jwt', 'jwt', undefined],
} as const;

function createTrustedIssuer(
  name: string,
  settings: IssuerSettings,
  keys: IssuerKeys,
  introspection: TokenIntrospection | undefined,
): TrustedIssuer {
  return new TrustedIssuer({
    ...settings,
    name,
    tokenTypes: new Set(TOKEN_TYPES[settings.tokenType]),
    requiredClaims: new Map(
      Object.entries(settings.requiredClaims).map(([claim, value]) => [claim, value === true ? undefined : value]),
    ),
    label: settings.label ?? name,
    claims: { ...settings.claims, trustsEmail: settings.trustEmail },
    scope: createScopeMapping(settings.scopes, settings.scope),
    keys,
    introspection: introspection && {
      client: introspection,
      tokenPrefix: settings.introspection?.tokenPrefix,
    },
  });
}

type Integration = Settings['integrations'][number];

/** In seconds, and the same as for trusted issuers. */
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
