import { setTimeout as pause } from 'node:timers/promises';
import type { Dispatcher, RequestInfo, RequestInit, Response } from 'undici';
import { type DevicePrompt, deviceGrant } from './device.ts';
import { ServiceRefusal, SignInNeeded, TemporaryTrouble } from './errors.ts';
import { grantFrom, isFresh, isToken, type KeptGrant } from './grant.ts';
import { memoryKeep, type TokenKeep } from './keep.ts';
import { type Answer, baseOf, type ServiceOptions, type TokenService, tokenService } from './service.ts';

export interface ClientOptions extends ServiceOptions {
  readonly clientId: string;
  readonly scope: string;
  /** Where the grant is kept; left out, in memory. */
  readonly keep?: TokenKeep;
  /** Without a certificate a person must say yes: shows them the code. Left out, only `login` with its own may ask. */
  readonly onDevice?: (prompt: DevicePrompt) => void | Promise<void>;
  /** Further origins that get the token, such as https://files.example.test; that of `url` always does. */
  readonly origins?: readonly string[];
  /** Seconds since 1970. */
  readonly now?: () => number;
}

export interface LoginTerms {
  readonly onDevice?: (prompt: DevicePrompt) => void | Promise<void>;
  readonly signal?: AbortSignal;
}

/** Obtains a token, keeps it, renews it ahead of its end, and sends it where it belongs. */
export interface Client {
  /** An access token that is good for a while yet (or for `validFor` seconds). */
  token(terms?: { readonly validFor?: number }): Promise<string>;
  /** Another token than this one, which an API has refused. */
  renew(refused: string): Promise<string>;
  /** As `fetch`, with the token; renewed and sent once more when it is refused. Only to the origins it belongs to. */
  fetch(input: RequestInfo, init?: RequestInit): Promise<Response>;
  /** A new grant, whatever is kept; the one before is ended. */
  login(terms?: LoginTerms): Promise<KeptGrant>;
  /** What the service says about the token. */
  whoami(): Promise<Answer>;
  /** Ends the grant at the service and forgets it. False: there was none. */
  logout(): Promise<boolean>;
  /** Forgets the grant without a word to the service. */
  forget(): Promise<void>;
  readonly grant: () => Promise<KeptGrant | undefined>;
  /** May this origin see the token? */
  readonly isOwn: (origin: string) => boolean;
  /** Connects to the client's origins, with its CA and certificate; to no others. */
  dispatcher(): Promise<Dispatcher>;
  close(): Promise<void>;
}

const systemClock = (): number => Date.now() / 1_000;

export function createClient(options: ClientOptions): Client {
  const { clientId, scope, now = systemClock } = options;
  const service = tokenService(options);
  const keep = ofThis(options.keep ?? memoryKeep(), { service: service.base, clientId, scope });
  const own = new Set([service.url, ...(options.origins ?? [])].map((given) => baseOf(given).origin));
  const terms = { service, clientId, scope, now };

  /** A grant without asking anybody; undefined where a person is needed. */
  const byCertificate = async (): Promise<KeptGrant | undefined> => {
    if (options.certificate === undefined) return undefined;
    const at = now();
    const answer = await service.post('Authorize/Certificate', { client_id: clientId, scope });
    return grantFrom(answer, { service: service.base, clientId, scope, at });
  };

  const login = async ({ onDevice = options.onDevice, signal }: LoginTerms = {}): Promise<KeptGrant> => {
    // Outside the lock: a person takes minutes, and others go on with what is kept meanwhile.
    const next = (await byCertificate()) ?? (await byDevice(onDevice, signal));
    const before = await keep.exclusively(async (kept, put) => {
      await put(next);
      return kept;
    });
    // What is not kept any more should not be worth anything; that it lives on is no reason to fail.
    if (before !== undefined) await revoke(service, before).catch(() => undefined);
    return next;
  };

  const byDevice = async (
    show: ClientOptions['onDevice'],
    signal: AbortSignal | undefined,
  ): Promise<KeptGrant> => {
    if (show === undefined)
      throw new SignInNeeded('there is no grant, and nobody to confirm one; sign in first');
    return deviceGrant(service, { clientId, scope, show, now, signal });
  };

  /** Undefined: there is nothing to renew, and a person is needed. */
  const renewKept = (isGood: (kept: KeptGrant) => boolean): Promise<string | undefined> =>
    keep.exclusively(async (kept, put) => {
      if (kept !== undefined && isGood(kept)) return kept.accessToken;
      const next = (kept && (await refresh(terms, kept, isGood))) ?? (await byCertificate());
      if (next === kept && next !== undefined) return next.accessToken;
      await put(next);
      return next?.accessToken;
    });

  let renewing: Promise<string | undefined> | undefined;
  const good = async (isGood: (kept: KeptGrant) => boolean): Promise<string> => {
    const kept = await keep.read();
    if (kept !== undefined && isGood(kept)) return kept.accessToken;
    renewing ??= renewKept(isGood).finally(() => {
      renewing = undefined;
    });
    return (await renewing) ?? (await login()).accessToken;
  };

  const client: Client = {
    token: ({ validFor } = {}) => good((kept) => isFresh(kept, now(), validFor)),
    renew: (refused) => good((kept) => kept.accessToken !== refused && isFresh(kept, now(), 0)),
    fetch: async (input, init) => (await import('./fetch.ts')).callApi(client, input, init),
    login,
    whoami: async () => service.get('Authorize/Verify', await client.token()),
    logout: () =>
      keep.exclusively(async (kept, put) => {
        if (kept === undefined) return false;
        await revoke(service, kept);
        await put(undefined);
        return true;
      }),
    forget: () => keep.exclusively((_, put) => put(undefined)),
    grant: () => keep.read(),
    isOwn: (origin) => own.has(origin),
    dispatcher: async () => guarded(await service.agent(), (origin) => own.has(origin)),
    close: () => service.close(),
  };
  return client;
}

type Owner = Pick<KeptGrant, 'service' | 'clientId' | 'scope'>;

/** A grant of another service, client or scope in the same place is neither used nor sent, nor one that is no token. */
function ofThis(keep: TokenKeep, owner: Owner): TokenKeep {
  const mine = (kept: KeptGrant | undefined): KeptGrant | undefined =>
    kept?.service === owner.service &&
    kept.clientId === owner.clientId &&
    kept.scope === owner.scope &&
    isToken(kept.accessToken) &&
    isToken(kept.refreshToken)
      ? kept
      : undefined;
  return {
    read: async () => mine(await keep.read()),
    exclusively: (work) => keep.exclusively((kept, put) => work(mine(kept), put)),
  };
}

/** Also when a redirect leads elsewhere: neither token nor certificate is shown to strangers. */
const guarded = (dispatcher: Dispatcher, isOwn: (origin: string) => boolean): Dispatcher =>
  dispatcher.compose((dispatch) => (options, handler) => {
    const origin = new URL(options.origin ?? '').origin;
    if (!isOwn(origin)) throw new TypeError(`${origin} is not one of the client's origins`);
    return dispatch(options, handler);
  });

async function revoke(service: TokenService, { accessToken }: KeptGrant): Promise<void> {
  try {
    await service.get('Revoke/Token', accessToken);
  } catch (error) {
    // Not known there any more: what was wanted.
    if (!(error instanceof ServiceRefusal && error.code === 'invalid_token')) throw error;
  }
}

interface RefreshTerms {
  readonly service: TokenService;
  readonly clientId: string;
  readonly scope: string;
  readonly now: () => number;
}

const TRIES = 3;
/** All tries together within the ten seconds in which a lost answer is given again. */
const TRY_MS = 2_500;

/** The next pair; the same grant when its token may still be used; undefined when the grant has ended. */
async function refresh(
  { service, clientId, scope, now }: RefreshTerms,
  kept: KeptGrant,
  isGood: (kept: KeptGrant) => boolean,
): Promise<KeptGrant | undefined> {
  if (now() >= kept.until) return undefined;
  for (let tries = 1; ; tries += 1) {
    const at = now();
    try {
      const body = { client_id: clientId, refresh_token: kept.refreshToken };
      const answer = await service.post('Authorize/Token', body, TRY_MS);
      return grantFrom(answer, { service: service.base, clientId, scope, at }, kept);
    } catch (error) {
      if (error instanceof ServiceRefusal && error.code === 'invalid_grant') return undefined;
      if (!(error instanceof TemporaryTrouble)) throw error;
      if (tries < TRIES) {
        await pause(Math.min(error.retryAfter ?? tries * 0.2, 1) * 1_000);
        continue;
      }
      // Renewed ahead of its end, so there is time: the old one will do until the service is back.
      const usable = { ...kept, obtained: kept.expires };
      if (isGood(usable)) return kept;
      throw error;
    }
  }
}
