import { setTimeout as pause } from 'node:timers/promises';
import type { Dispatcher, RequestInfo, RequestInit, Response } from 'undici';
import { type CredentialStore, memoryCredentialStore } from './credential-store.ts';
import { requestDeviceGrant, type ShowPrompt } from './device.ts';
import { LoginRequiredError, OAuthError, ServiceUnavailableError } from './errors.ts';
import { exchangeToken, type GrantContext, isFresh, isToken, requestGrant, type StoredGrant } from './grant.ts';
import {
  createTokenService,
  parseBaseUrl,
  type ServiceOptions,
  type ServiceResponse,
  type TokenService,
} from './service.ts';

export interface ClientOptions extends ServiceOptions {
  readonly clientId: string;
  readonly scope: string;
  /**
   * Reads a token of an issuer that gatehouse trusts, such as `serviceAccountToken()`. It is exchanged for an access
   * token, and read again for each one, because Kubernetes renews it.
   */
  readonly subjectToken?: (() => string | Promise<string>) | undefined;
  /** Where the grant is stored. Default: in memory. */
  readonly store?: CredentialStore;
  /** Shows the user code for device authorization. Without it, only `login` with its own `onDevice` can start it. */
  readonly onDevice?: ShowPrompt;
  /** The user recognizes this device by its name on the confirmation page. */
  readonly deviceName?: string | undefined;
  /** Further origins that receive the token, such as https://files.example.test. The origin of `url` always does. */
  readonly origins?: readonly string[];
  /** Seconds since 1970. */
  readonly now?: () => number;
}

export interface LoginOptions {
  readonly onDevice?: ShowPrompt;
  readonly signal?: AbortSignal;
}

/** Obtains, stores and renews a token, and sends it to the allowed origins. */
export interface Client {
  /** Returns an access token that is valid for a while, or for `validFor` seconds. */
  token(options?: { readonly validFor?: number }): Promise<string>;
  /** Returns another token than this one, which an API has rejected. */
  renew(rejectedToken: string): Promise<string>;
  /**
   * Calls `fetch` with the token, for the allowed origins only. If it is rejected, sends the request with a renewed
   * one.
   */
  fetch(input: RequestInfo, init?: RequestInit): Promise<Response>;
  /** Obtains a new grant and revokes the stored one. */
  login(options?: LoginOptions): Promise<StoredGrant>;
  /** Returns the response of Authorize/Verify. */
  whoami(): Promise<ServiceResponse>;
  /** Returns the response of the introspection endpoint about the token of this client. */
  introspect(): Promise<ServiceResponse>;
  /** Revokes and deletes the grant. Returns false if there was none. */
  logout(): Promise<boolean>;
  /** Deletes the stored grant without revoking it. */
  forget(): Promise<void>;
  readonly grant: () => Promise<StoredGrant | undefined>;
  readonly isAllowedOrigin: (origin: string) => boolean;
  /** Returns a dispatcher for the allowed origins, with the CA and the certificate of the client. */
  dispatcher(): Promise<Dispatcher>;
  close(): Promise<void>;
}

const systemClock = (): number => Date.now() / 1_000;

export function createClient(options: ClientOptions): Client {
  const { clientId, scope, now = systemClock } = options;
  const service = createTokenService(options);
  const store = restrictToOwner(options.store ?? memoryCredentialStore(), { service: service.base, clientId, scope });
  const allowedOrigins = new Set([service.url, ...(options.origins ?? [])].map((url) => parseBaseUrl(url).origin));
  const { login, getToken } = createGrantSource({ service, clientId, scope, now }, store, options);
  const client: Client = {
    token: ({ validFor } = {}) => getToken((stored) => isFresh(stored, now(), validFor)),
    renew: (rejectedToken) => getToken((stored) => stored.accessToken !== rejectedToken && isFresh(stored, now(), 0)),
    fetch: async (input, init) => (await import('./fetch.ts')).fetchWithToken(client, input, init),
    login,
    whoami: async () => service.get('Authorize/Verify', await client.token()),
    introspect: async () => {
      const token = await client.token();
      return service.postForm('oauth2/introspect', { token }, token);
    },
    logout: () =>
      store.withLock(async (stored, save) => {
        if (stored === undefined) return false;
        await revoke(service, stored);
        await save(undefined);
        return true;
      }),
    forget: () => store.withLock((_, save) => save(undefined)),
    grant: () => store.read(),
    isAllowedOrigin: (origin) => allowedOrigins.has(origin),
    dispatcher: async () => restrictToOrigins(await service.agent(), (origin) => allowedOrigins.has(origin)),
    close: () => service.close(),
  };
  return client;
}

type IsUsable = (stored: StoredGrant) => boolean;

/** Obtains grants, and renews the stored one. */
function createGrantSource(
  context: GrantContext,
  store: CredentialStore,
  options: Pick<ClientOptions, 'certificate' | 'onDevice' | 'subjectToken' | 'deviceName'>,
) {
  /** Returns undefined without a certificate and a subject token: then a user has to confirm. */
  const loginWithoutUser = async (): Promise<StoredGrant | undefined> => {
    const { certificate, subjectToken } = options;
    if (subjectToken !== undefined) return exchangeToken(context, await subjectToken());
    return certificate && requestGrant(context, 'Authorize/Certificate', { scope: context.scope });
  };

  const loginByDevice = async (
    showPrompt: ShowPrompt | undefined,
    signal: AbortSignal | undefined,
  ): Promise<StoredGrant> => {
    if (showPrompt === undefined) throw new LoginRequiredError('there is no grant; sign in first');
    return requestDeviceGrant(context, showPrompt, options.deviceName, signal);
  };

  const login = async ({ onDevice = options.onDevice, signal }: LoginOptions = {}): Promise<StoredGrant> => {
    // Outside the lock: a user takes minutes, in which other processes use the stored grant.
    const grant = (await loginWithoutUser()) ?? (await loginByDevice(onDevice, signal));
    const previous = await store.withLock(async (stored, save) => {
      await save(grant);
      return stored;
    });
    // The new grant is valid even if the old one cannot be revoked.
    if (previous !== undefined) await revoke(context.service, previous).catch(() => undefined);
    return grant;
  };

  /** Returns undefined if there is nothing to renew: then a user has to confirm. */
  const renewStored = (isUsable: IsUsable): Promise<string | undefined> =>
    store.withLock(async (stored, save) => {
      if (stored !== undefined && isUsable(stored)) return stored.accessToken;
      const next = (stored && (await refresh(context, stored, isUsable))) ?? (await loginWithoutUser());
      if (next === stored && next !== undefined) return next.accessToken;
      await save(next);
      return next?.accessToken;
    });

  let pendingRenewal: Promise<string | undefined> | undefined;
  const getToken = async (isUsable: IsUsable): Promise<string> => {
    const stored = await store.read();
    if (stored !== undefined && isUsable(stored)) return stored.accessToken;
    pendingRenewal ??= renewStored(isUsable).finally(() => {
      pendingRenewal = undefined;
    });
    return (await pendingRenewal) ?? (await login()).accessToken;
  };
  return { login, getToken };
}

type Owner = Pick<StoredGrant, 'service' | 'clientId' | 'scope'>;

/** Neither uses nor sends a malformed grant, or one of another service, client or scope. */
function restrictToOwner(store: CredentialStore, owner: Owner): CredentialStore {
  const filterOwn = (stored: StoredGrant | undefined): StoredGrant | undefined =>
    stored?.service === owner.service &&
    stored.clientId === owner.clientId &&
    stored.scope === owner.scope &&
    isToken(stored.accessToken) &&
    (stored.refreshToken === undefined || isToken(stored.refreshToken))
      ? stored
      : undefined;
  return {
    read: async () => filterOwn(await store.read()),
    withLock: (work) => store.withLock((stored, save) => work(filterOwn(stored), save)),
  };
}

/** Sends neither token nor certificate to other origins, even after a redirect. */
const restrictToOrigins = (dispatcher: Dispatcher, isAllowedOrigin: (origin: string) => boolean): Dispatcher =>
  dispatcher.compose((dispatch) => (options, handler) => {
    const origin = new URL(options.origin ?? '').origin;
    if (!isAllowedOrigin(origin)) throw new TypeError(`${origin} is not one of the client's origins`);
    return dispatch(options, handler);
  });

async function revoke(service: TokenService, { accessToken }: StoredGrant): Promise<void> {
  try {
    await service.get('Revoke/Token', accessToken);
  } catch (error) {
    // It was revoked already.
    if (!(error instanceof OAuthError && error.code === 'invalid_token')) throw error;
  }
}

const MAX_ATTEMPTS = 3;
/** All attempts together take less than the ten seconds in which a lost response is repeated. */
const ATTEMPT_TIMEOUT_MS = 2_500;

/**
 * Returns the next grant, or the same one while its token is usable and the service is unavailable. Returns undefined
 * if the grant has ended.
 */
async function refresh(
  context: GrantContext,
  stored: StoredGrant,
  isUsable: IsUsable,
): Promise<StoredGrant | undefined> {
  const { refreshToken } = stored;
  if (refreshToken === undefined || context.now() >= stored.until) return undefined;
  for (let attempt = 1; ; attempt += 1) {
    try {
      const parameters = { refresh_token: refreshToken };
      const options = { previous: stored, timeoutMs: ATTEMPT_TIMEOUT_MS };
      return await requestGrant(context, 'Authorize/Token', parameters, options);
    } catch (error) {
      if (error instanceof OAuthError && error.code === 'invalid_grant') return undefined;
      if (!(error instanceof ServiceUnavailableError)) throw error;
      if (attempt < MAX_ATTEMPTS) {
        await pause(Math.min(error.retryAfter ?? attempt * 0.2, 1) * 1_000);
        continue;
      }
      // The token is renewed before it expires, so it can be used until the service is available.
      const assumedFresh = { ...stored, obtained: stored.expires };
      if (isUsable(assumedFresh)) return stored;
      throw error;
    }
  }
}
