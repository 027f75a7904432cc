import * as z from 'zod';
import type { Epoch } from '../domain/grant.ts';
import type { Integration } from '../domain/integration.ts';
import { matchesRedirectUri } from '../domain/redirect-uri.ts';
import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import { findExcess, formatScope, narrowScope, parseScope } from '../domain/scope.ts';
import type { Parameters } from '../http/parameters.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { redactStart } from '../lib/redact.ts';
import type { GrantDeps } from './deps.ts';
import { getIssueTime, randomGrantId } from './issue.ts';
import { readRequestedAudience, type TargetContext } from './requested-audience.ts';

/** A valid authorization request (RFC 6749 §4.1.1), before the user has decided. */
export const AuthorizationRequest = z.strictObject({
  /** The id of the decision about it. */
  id: z.string().length(22),
  clientId: z.string(),
  redirectUri: z.string(),
  /** RFC 7636 §4.2, S256. */
  challenge: z.string().length(43),
  state: z.string().exactOptional(),
  /** If omitted, everything that the integration and the user allow. */
  scope: z.string().exactOptional(),
  /** If omitted, the default of the integration is used. */
  audience: z.string().exactOptional(),
  /** RFC 9449 §10: the thumbprint of the DPoP key. */
  proofKey: z.string().length(43).exactOptional(),
  /** What a client that is not registered calls itself. */
  claimedName: z.string().exactOptional(),
  /** A sign-in up to this second does not suffice, unless it was for this request. */
  signedInAfter: z.number().exactOptional(),
  /** The user must have authenticated since this time, also at an OpenID provider. */
  authenticatedSince: z.number().exactOptional(),
  /** For an OpenID provider: as requested, without `consent`. */
  prompt: z.string().exactOptional(),
  askedAt: z.number(),
  expires: z.number(),
});
export type AuthorizationRequest = Readonly<z.output<typeof AuthorizationRequest>>;

/** What is read from a request; all others are ignored (RFC 6749 §3.1). */
export const AUTHORIZATION_PARAMETERS = [
  'client_id',
  'response_type',
  'redirect_uri',
  'scope',
  'state',
  'code_challenge',
  'code_challenge_method',
  'response_mode',
  'resource',
  'audience',
  'prompt',
  'max_age',
  'dpop_jkt',
  'request',
  'request_uri',
] as const;

/** Seconds in which the user can decide. */
const REQUEST_LIFETIME = 600;
/** Seconds from a pushed request to the redirect (RFC 9126 §2.2). */
export const PUSHED_LIFETIME = 90;
/** As JSON: it must fit into a URL and, during an OpenID sign-in, into a cookie. */
const MAX_LENGTH = 1_900;

type ClientDeps = Pick<GrantDeps, 'integrations'>;

export const hasCodeGrant = ({ grants, redirectUris = [], documentHosts = [], templateId }: Integration): boolean =>
  grants.has('code') && (templateId !== undefined || redirectUris.length > 0 || documentHosts.length > 0);

export function getCodeIntegration({ integrations }: ClientDeps, clientId: string): Outcome<Integration> {
  const integration = integrations.get(clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId });
  return hasCodeGrant(integration) ? ok(integration) : refused({ reason: 'grant_type_not_allowed', grantType: 'code' });
}

interface ClientRedirect {
  readonly integration: Integration;
  readonly redirectUri: string;
  readonly claimedName?: string;
}

/** Nothing may be sent to a redirect URI before this has succeeded. */
export async function findClientRedirect(
  deps: Pick<GrantDeps, 'integrations' | 'clientDocuments'>,
  parameters: Parameters,
): Promise<Outcome<ClientRedirect>> {
  const clientId = parameters.get('client_id');
  if (clientId === undefined) return refused({ reason: 'client_id_missing' });
  const found = getCodeIntegration(deps, clientId);
  if (!found.ok) return found;
  const client = await readClient(deps, found.value);
  if (!client.ok) return client;
  const { redirectUris, claimedName } = client.value;
  const redirectUri = parameters.get('redirect_uri');
  const isRegistered =
    redirectUri !== undefined && redirectUris.some((registered) => matchesRedirectUri(registered, redirectUri));
  return isRegistered
    ? ok({ integration: found.value, redirectUri, ...omitUndefined({ claimedName }) })
    : refused({ reason: 'redirect_uri_invalid', redirectUri: formatUriForLog(redirectUri) });
}

const MAX_NAME_LENGTH = 60;

async function readClient(
  { clientDocuments }: Pick<GrantDeps, 'clientDocuments'>,
  { clientId, redirectUris = [], templateId }: Integration,
): Promise<Outcome<{ readonly redirectUris: readonly string[]; readonly claimedName?: string }>> {
  if (templateId === undefined) return ok({ redirectUris });
  const document = await clientDocuments?.read(clientId, templateId);
  if (document === undefined || 'problem' in document)
    return refused({ reason: 'client_document_invalid', clientId, detail: document?.problem ?? '' });
  const { redirectUris: documented, name } = document;
  return ok({ redirectUris: documented, ...omitUndefined({ claimedName: name?.slice(0, MAX_NAME_LENGTH) }) });
}

const STATE = /^[\x20-\x7e]+$/;
const THUMBPRINT = /^[A-Za-z0-9_-]{43}$/;
const PROMPTS: ReadonlySet<string> = new Set(['none', 'login', 'consent', 'select_account']);

/** RFC 6749 §4.1.1, RFC 7636 §4.3, RFC 8707 §2; the parameters that OpenID Connect adds as far as they make sense here. */
export function readAuthorizationRequest(
  deps: Pick<GrantDeps, 'store' | 'now'>,
  { integration, redirectUri, claimedName }: ClientRedirect,
  parameters: Parameters,
  targetContext: TargetContext,
): Outcome<AuthorizationRequest> {
  const state = parameters.get('state');
  if (state !== undefined && !STATE.test(state)) return refuseMalformed('state must be printable ASCII.');
  if (parameters.get('request') !== undefined) return refuseMalformed('Request objects are not supported.');
  const responseType = parameters.get('response_type');
  if (responseType === undefined) return refuseMalformed('response_type is required.');
  if (responseType !== 'code') return refused({ reason: 'response_type_unsupported' });
  if ((parameters.get('response_mode') ?? 'query') !== 'query') return refuseMalformed('response_mode must be query.');
  if (!integration.access.some(({ grants }) => grants === undefined || grants.has('code')))
    return refused({ reason: 'grant_type_not_allowed', grantType: 'code' });

  const challenge = parameters.get('code_challenge');
  if (challenge === undefined) return refuseMalformed('code_challenge is required (PKCE, RFC 7636).');
  // Omitted, it is "plain".
  if (parameters.get('code_challenge_method') !== 'S256') return refuseMalformed('code_challenge_method must be S256.');
  if (!THUMBPRINT.test(challenge)) return refuseMalformed('code_challenge must be 43 characters in base64url.');
  const proofKey = parameters.get('dpop_jkt');
  if (proofKey !== undefined && !THUMBPRINT.test(proofKey))
    return refuseMalformed('dpop_jkt must be 43 characters in base64url.');

  const requestedScope = checkScope(integration, parameters.get('scope'));
  if (!requestedScope.ok) return requestedScope;
  const audience = readRequestedAudience(parameters, integration, targetContext);
  if (!audience.ok) return audience;
  const now = deps.now();
  const signIn = readSignInRequirements(parameters, getIssueTime(deps, now));
  if (!signIn.ok) return signIn;

  const request: AuthorizationRequest = {
    id: randomGrantId(),
    clientId: integration.clientId,
    redirectUri,
    challenge,
    askedAt: Math.floor(now),
    expires: Math.floor(now) + REQUEST_LIFETIME,
    ...omitUndefined({ claimedName, state, scope: requestedScope.value, audience: audience.value, proofKey }),
    ...signIn.value,
  };
  return JSON.stringify(request).length <= MAX_LENGTH
    ? ok(request)
    : refuseMalformed('The request is too long; use a shorter scope or state.');
}

function checkScope(integration: Integration, requested: string | undefined): Outcome<string | undefined> {
  if (requested === undefined) return ok(undefined);
  const scope = parseScope(requested, { allowSpaces: true });
  if (!scope.ok) return scope;
  const excess = findExcess(scope.value, integration.scope);
  if (excess === undefined) return ok(requested);
  const narrowed = integration.partialScope === true && narrowScope(scope.value, [integration.scope]);
  // The shortest form: a list of single permissions can be longer than what was requested, and exceed `MAX_LENGTH`.
  return narrowed !== false && narrowed.size > 0
    ? ok(formatScope(narrowed))
    : refused({ reason: 'scope_exceeds_integration', excess: formatScope(excess) });
}

type SignInRequirements = Pick<AuthorizationRequest, 'signedInAfter' | 'authenticatedSince' | 'prompt'>;

/** OpenID Connect Core §3.1.2.1. Consent is always asked for. */
function readSignInRequirements(parameters: Parameters, now: Epoch): Outcome<SignInRequirements> {
  const prompts = new Set(parameters.get('prompt')?.split(' '));
  if (!prompts.isSubsetOf(PROMPTS)) return refuseMalformed('prompt has an unknown value.');
  if (prompts.has('none')) return refused({ reason: 'interaction_required' });
  const maxAge = parameters.get('max_age');
  if (maxAge !== undefined && !/^[0-9]{1,9}$/.test(maxAge))
    return refuseMalformed('max_age must be a number of seconds.');
  prompts.delete('consent');
  // Providers count in seconds: to some of them, a sign-in of the same second is young enough for max_age=0.
  if (maxAge !== undefined && Number(maxAge) === 0) prompts.add('login');
  const greatestAge = prompts.has('login') ? '0' : maxAge;
  return ok({
    ...(prompts.size > 0 && { signedInAfter: Math.floor(now) }),
    ...(prompts.size > 0 && { prompt: [...prompts].join(' ') }),
    ...(greatestAge !== undefined && { authenticatedSince: Math.floor(now) - Number(greatestAge) }),
  });
}

const REQUEST_URI_PREFIX = 'urn:ietf:params:oauth:request_uri:';
const PUSHED_PURPOSE = 'pushed authorization request';

/** RFC 9126 §2.2. The URI is the request itself, so that nothing is stored before a user decides. */
export function pushAuthorizationRequest(
  { sealer, now }: Pick<GrantDeps, 'sealer' | 'now'>,
  request: AuthorizationRequest,
): { readonly requestUri: string; readonly expiresIn: number } {
  const pushed = { ...request, expires: Math.floor(now()) + PUSHED_LIFETIME };
  return {
    requestUri: `${REQUEST_URI_PREFIX}${sealer.encrypt(PUSHED_PURPOSE, JSON.stringify(pushed))}`,
    expiresIn: PUSHED_LIFETIME,
  };
}

/** Returns undefined if the URI is forged, expired, of another client, or its client is no longer registered (RFC 9126 §4). */
export function openPushedRequest(
  deps: Pick<GrantDeps, 'sealer' | 'now' | 'integrations'>,
  requestUri: string,
  clientId: string | undefined,
): AuthorizationRequest | undefined {
  if (!requestUri.startsWith(REQUEST_URI_PREFIX)) return undefined;
  const pushed = parseAuthorizationRequest(
    deps.sealer.decrypt(PUSHED_PURPOSE, requestUri.slice(REQUEST_URI_PREFIX.length)),
  );
  if (pushed === undefined || pushed.clientId !== clientId || deps.now() >= pushed.expires) return undefined;
  if (!isStillRegistered(deps, pushed)) return undefined;
  return { ...pushed, expires: Math.floor(deps.now()) + REQUEST_LIFETIME };
}

const parseAuthorizationRequest = (text: string | undefined): AuthorizationRequest | undefined =>
  text === undefined ? undefined : AuthorizationRequest.safeParse(JSON.parse(text)).data;

/** The configuration may have changed since the request: nothing is sent to a redirect URI that was removed. */
export function isStillRegistered(
  { integrations }: ClientDeps,
  { clientId, redirectUri }: Pick<AuthorizationRequest, 'clientId' | 'redirectUri'>,
): boolean {
  const integration = integrations.get(clientId);
  return (
    integration !== undefined &&
    hasCodeGrant(integration) &&
    (integration.templateId !== undefined ||
      integration.redirectUris?.some((registered) => matchesRedirectUri(registered, redirectUri)) === true)
  );
}

const MAX_LOGGED_LENGTH = 256;

/** For logs: redacted, bounded, and without user information, query and fragment, which can contain secrets. */
export function formatUriForLog(uri: string | undefined): string {
  if (uri === undefined) return '(missing or repeated)';
  if (!URL.canParse(uri)) return '(not a URL)';
  const { protocol, host, pathname } = new URL(uri);
  return redactStart(`${protocol}${host === '' ? '' : `//${host}`}${pathname}`, MAX_LOGGED_LENGTH);
}
