import { hash, randomBytes } from 'node:crypto';
import { type Integration, isConfidential } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { getRateLimitKey, type RateLimiter } from '../lib/rate-limiter.ts';
import { MAX_SKEW_SECONDS, TRANSIENT_NOTE_PREFIX } from '../ports/store.ts';
import type { ClientAssertionVerifier } from '../tokens/client-assertions.ts';
import type { GrantDeps } from './deps.ts';

const CLIENT_AUTH_METHODS = ['client_secret_basic', 'client_secret_post', 'private_key_jwt'] as const;
type ClientAuthMethod = (typeof CLIENT_AUTH_METHODS)[number];

/** What a request presented. `clientId` is undefined if only the assertion names it. */
export type ClientCredential =
  | { readonly method: 'none'; readonly clientId: string }
  | {
      readonly method: 'client_secret_basic' | 'client_secret_post';
      readonly clientId: string;
      readonly secret: string;
    }
  | { readonly method: 'private_key_jwt'; readonly clientId: string | undefined; readonly assertion: string };

export interface AuthenticatedClient {
  readonly clientId: string;
  /** False for a public client, which only states its id. */
  readonly isAuthenticated: boolean;
}

interface ClientAuthDeps {
  readonly grantDeps: Pick<GrantDeps, 'integrations' | 'store' | 'now' | 'log'>;
  readonly assertions: ClientAssertionVerifier;
  /** Failed attempts, by client address and by client. */
  readonly guesses: { readonly byAddress: RateLimiter; readonly byClient: RateLimiter };
}

const HASH_PREFIX = 'sha256:';

/** Client secrets are random, so a fast hash suffices: they cannot be guessed, and a request costs no CPU time. */
export const hashClientSecret = (secret: string): string => `${HASH_PREFIX}${hash('sha256', secret, 'base64url')}`;

/** Compared where there is none, so that the response time reveals nothing. */
const DECOY_HASH = hashClientSecret(randomBytes(32).toString('base64url'));

const isSecretOf = ({ secretHashes = [] }: Pick<Integration, 'secretHashes'>, secret: string): boolean => {
  const presented = hashClientSecret(secret);
  // All are compared, whichever matches.
  return [DECOY_HASH, ...secretHashes].map((known) => isEqualConstantTime(known, presented)).includes(true);
};

/**
 * Authenticates the client of a request (RFC 6749 §2.3). With `required`, a client that has credentials must present one:
 * otherwise it could be used as a public client by omitting it.
 */
export async function authenticateClient(
  deps: ClientAuthDeps,
  credential: ClientCredential,
  { address, required }: { readonly address: string; readonly required: boolean },
): Promise<Outcome<AuthenticatedClient>> {
  const { integrations } = deps.grantDeps;
  if (credential.method === 'none') {
    const { clientId } = credential;
    const integration = integrations.get(clientId);
    return required && integration !== undefined && isConfidential(integration)
      ? refused({ reason: 'client_authentication_required', clientId })
      : ok({ clientId, isAuthenticated: false });
  }
  const clientId = credential.clientId ?? readAssertedClient(deps, credential) ?? '';
  const integration = integrations.get(clientId);
  if (integration !== undefined && !hasCredential(integration, credential.method))
    return refused({ reason: 'client_authentication_unsupported' });

  const { guesses } = deps;
  const addressKey = getRateLimitKey(address);
  const addressWait = guesses.byAddress.peek(addressKey);
  if (addressWait > 0) return refused({ reason: 'too_many_requests', retryAfter: addressWait });
  const failure = await findFailure(deps, integration, clientId, credential);
  if (failure === undefined) return ok({ clientId, isAuthenticated: true });
  await guesses.byAddress.take(addressKey);
  // Invented names must not evict the counts of clients. Only failures are limited, so that guessing does not lock a client out.
  const clientWait = integration === undefined ? 0 : await guesses.byClient.take(clientId);
  if (clientWait > 0) return refused({ reason: 'too_many_requests', retryAfter: clientWait });
  return refused({
    reason: 'client_authentication_failed',
    clientId,
    method: credential.method,
    detail: failure,
  });
}

const readAssertedClient = ({ assertions }: ClientAuthDeps, credential: ClientCredential): string | undefined =>
  credential.method === 'private_key_jwt' ? assertions.readClient(credential.assertion) : undefined;

const hasCredential = (integration: Integration, method: ClientAuthMethod): boolean =>
  method === 'private_key_jwt'
    ? integration.hasKeys === true
    : integration.secretHashes !== undefined && integration.secretHashes.length > 0;

/** Returns undefined if the client is authenticated. */
async function findFailure(
  { grantDeps, assertions }: ClientAuthDeps,
  integration: Integration | undefined,
  clientId: string,
  credential: Exclude<ClientCredential, { method: 'none' }>,
): Promise<string | undefined> {
  if (credential.method !== 'private_key_jwt') {
    const isSecret = isSecretOf(integration ?? {}, credential.secret);
    return isSecret && integration !== undefined ? undefined : 'wrong secret';
  }
  if (integration === undefined) return 'unknown client';
  const now = grantDeps.now();
  const checked = await assertions.verify(clientId, credential.assertion, now);
  if (!checked.ok) return checked.detail;
  // Only authentic assertions are recorded, and only for the short time in which they are valid at any replica.
  const id = hash('sha256', `${clientId} ${checked.tokenId}`, 'base64url');
  const created = await grantDeps.store.notes.create(
    `${TRANSIENT_NOTE_PREFIX}assertion-${id}`,
    {},
    Math.ceil(checked.expires) + MAX_SKEW_SECONDS + 1,
  );
  if (created === 'created') return undefined;
  grantDeps.log.audit('client_assertion_replayed', { client: clientId });
  return 'replayed';
}
