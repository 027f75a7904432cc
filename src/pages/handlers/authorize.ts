import type { Refusal } from '../../domain/refusal.ts';
import type { User } from '../../domain/user.ts';
import {
  AUTHORIZATION_PARAMETERS,
  type AuthorizationRequest,
  findClientRedirect,
  formatUriForLog,
  isStillRegistered,
  openPushedRequest,
  readAuthorizationRequest,
} from '../../grants/authorization-request.ts';
import {
  type Approvable,
  approveAuthorization,
  checkApprovable,
  denyAuthorization,
  isDecided,
} from '../../grants/code-grant.ts';
import { describeAuthorizationError } from '../../grants/common-errors.ts';
import { getIntegrationName } from '../../grants/deps.ts';
import { addAssertedGroups } from '../../grants/issue.ts';
import type { TargetContext } from '../../grants/requested-audience.ts';
import { decodeFormFields } from '../../http/form-encoding.ts';
import type { Parameters } from '../../http/parameters.ts';
import { getQuery } from '../../http/query.ts';
import type { RequestContext } from '../../http/request-context.ts';
import { toAuditFields } from '../../http/service-response.ts';
import type { FormFields } from '../form.ts';
import { AUDIENCE_FIELD, type PageDeps, type PageRequest, type PageResponse, SCOPE_FIELD } from '../page-handler.ts';
import { type Session, withoutSignIn } from '../session.ts';
import {
  createTransactionUrls,
  formatAuthorizationResponse,
  isSignInSufficient,
  type Transaction,
} from '../transaction.ts';
import { authorizationPage } from '../views/authorization-pages.ts';
import { redirectPage } from '../views/device-pages.ts';
import { fillIn } from '../views/messages/languages.ts';
import { authorizationNotice, noticePage } from '../views/notice-pages.ts';

export interface AuthorizationContext extends TargetContext {
  /** Paths that clients may append to the public URL to form the issuer (RFC 8414 §3.1). */
  readonly isIssuerPath: (path: string) => boolean;
}

/** The query parameter of the authorization endpoints of such issuers. */
export const ISSUER_PATH_PARAMETER = 'issuer_path';

interface Query extends Parameters {
  /** Names that occur more than once. */
  readonly repeated: ReadonlySet<string>;
}

/** Returns undefined if it is not form-encoded. */
function readQuery({ request }: RequestContext): Query | undefined {
  const values = new Map<string, string>();
  const repeated = new Set<string>();
  for (const field of decodeFormFields(getQuery(request))) {
    if (field === undefined) return undefined;
    const [name, value] = field;
    if (values.has(name)) repeated.add(name);
    values.set(name, value);
  }
  return {
    encoding: 'form',
    repeated,
    // No value of a repeated parameter can be trusted.
    get: (name) => (repeated.has(name) ? undefined : values.get(name) || undefined),
  };
}

/**
 * The authorization endpoint (RFC 6749 §3.1). It changes no state. Nothing is sent to a redirect URI before client and redirect URI
 * were found valid. A valid request continues on the pages, through a page of this origin: with a redirect, the browser would
 * not send the `Strict` session cookie.
 */
export async function startAuthorization(
  deps: PageDeps,
  context: RequestContext,
  authorization: AuthorizationContext,
): Promise<PageResponse> {
  const query = readQuery(context);
  if (query === undefined) return invalidRequest(deps, context, MALFORMED_QUERY);
  const issuerPath = query.get(ISSUER_PATH_PARAMETER) ?? '';
  const issuer = `${authorization.publicUrl}${authorization.isIssuerPath(issuerPath) ? issuerPath : ''}`;
  const requestUri = query.get('request_uri');
  if (requestUri !== undefined || query.repeated.has('request_uri')) {
    const pushed = openPushedRequest(deps.grantDeps, requestUri ?? '', query.get('client_id'));
    if (pushed === undefined) {
      logRefusal(deps, context, INVALID_REQUEST_URI, query);
      return { page: authorizationNotice(deps, 'expired', 400) };
    }
    return continueOnPages(deps, context, pushed, issuer);
  }

  const found = await findClientRedirect(deps.grantDeps, query);
  if (!found.ok) return invalidRequest(deps, context, found.refusal, query);
  const { redirectUri, integration } = found.value;
  context.note({ clientId: integration.clientId });
  const isRepeated = AUTHORIZATION_PARAMETERS.some((name) => query.repeated.has(name));
  const read = isRepeated
    ? { ok: false as const, refusal: describeRepetition(query) }
    : readAuthorizationRequest(deps.grantDeps, found.value, query, authorization);
  if (read.ok) return continueOnPages(deps, context, read.value, issuer);
  // RFC 9700 §4.11.2: without the user, nothing is sent to a client that no one has registered.
  if (integration.templateId !== undefined) return invalidRequest(deps, context, read.refusal, query);
  logRefusal(deps, context, read.refusal, query);
  const state = query.get('state');
  return {
    location: formatAuthorizationResponse({ redirectUri, state }, issuer, describeAuthorizationError(read.refusal)),
  };
}

/** RFC 8707 §2 allows several resources; an access token here has one audience. */
const describeRepetition = ({ repeated }: Query): Refusal =>
  repeated.has('resource')
    ? { reason: 'target_invalid', target: 'several resources at once' }
    : { reason: 'request_malformed', detail: 'A parameter occurs twice.' };

const INVALID_REQUEST_URI: Refusal = {
  reason: 'request_malformed',
  detail: 'request_uri is forged, has expired, or is of another client.',
};
const MALFORMED_QUERY: Refusal = { reason: 'request_malformed', detail: 'The query is not form-encoded.' };

/** Without text of the request: a link could otherwise show any sentence on these pages. */
const PAGE_DETAILS: Partial<Record<Refusal['reason'], string>> = {
  client_id_missing: 'client_id is missing, or occurs twice.',
  client_unknown: 'client_id does not match an API integration.',
  client_document_invalid: 'The metadata document at client_id cannot be used.',
  grant_type_not_allowed: 'The API integration does not allow authorization codes.',
  redirect_uri_invalid: 'redirect_uri is missing, occurs twice, or is not registered for this client_id.',
  scope_exceeds_integration: 'The API integration does not allow the requested scope.',
  target_invalid: 'resource or audience does not name an API of the API integration.',
};

/** The administrator of gatehouse may have to change the integration. */
const REGISTRATION_REFUSALS: ReadonlySet<Refusal['reason']> = new Set<Refusal['reason']>([
  'client_unknown',
  'client_document_invalid',
  'grant_type_not_allowed',
  'redirect_uri_invalid',
]);

/** As in the configuration. */
const CLIENT_ID = /^[\x21-\x7e]{1,256}$/;

/** What an operator needs to find the mistake of a client: never the query of its redirect URI, its state or a code. */
function logRefusal({ grantDeps }: PageDeps, context: RequestContext, refusal: Refusal, query?: Query): void {
  const { reason } = refusal;
  const clientId = query?.get('client_id');
  const isKnown = clientId !== undefined && grantDeps.integrations.get(clientId) !== undefined;
  context.note({ decision: 'refused', reason, ...(isKnown && { clientId }) });
  if (reason === 'client_document_invalid')
    return grantDeps.log.warn('client_document_refused', {
      request_id: context.id,
      client: refusal.clientId,
      reason: refusal.detail,
    });
  const malformed = clientId === undefined ? '(missing or repeated)' : '(malformed)';
  grantDeps.log.warn('authorization_request_refused', {
    request_id: context.id,
    ...toAuditFields(refusal),
    ...(query !== undefined && {
      client: clientId !== undefined && CLIENT_ID.test(clientId) ? clientId : malformed,
      // A pushed request contains it.
      ...(refusal !== INVALID_REQUEST_URI && { redirect_uri: formatUriForLog(query.get('redirect_uri')) }),
    }),
  });
}

function invalidRequest(deps: PageDeps, context: RequestContext, refusal: Refusal, query?: Query): PageResponse {
  const { reason } = refusal;
  logRefusal(deps, context, refusal, query);
  const notice = REGISTRATION_REFUSALS.has(reason) ? 'notRegistered' : 'invalid';
  const detail = PAGE_DETAILS[reason] ?? describeAuthorizationError(refusal).error_description;
  const requestId = fillIn(deps.messages.authorization.requestId, context.id);
  return { page: authorizationNotice(deps, notice, 400, `${detail} ${requestId}`) };
}

/**
 * OpenID Connect Core §3.1.2.1: the app asked for a new authentication, and the OpenID provider did not confirm one. Nothing is sent
 * to an app that is not registered: the provider may have signed the user in without a page. The configuration may have changed since
 * the user left for the provider.
 */
export function refuseSignIn(deps: PageDeps, { request, issuer }: Transaction): PageResponse {
  const error_description = 'The identity provider did not confirm that the user has authenticated again.';
  const { integrations } = deps.grantDeps;
  const isRegistered = integrations.get(request.clientId)?.templateId === undefined;
  return isRegistered && isStillRegistered(deps.grantDeps, request)
    ? {
        location: formatAuthorizationResponse(request, issuer, {
          error: 'login_required',
          error_description,
        }),
      }
    : { page: authorizationNotice(deps, 'invalid', 403, error_description) };
}

function continueOnPages(
  deps: PageDeps,
  context: RequestContext,
  request: AuthorizationRequest,
  issuer: string,
): PageResponse {
  const { browserCookie, messages } = deps;
  const { id: browser, cookie } = browserCookie.renew(context.request.headers['cookie']);
  const urlFor = createTransactionUrls(deps.grantDeps.sealer, deps.urlFor, { request, browser, issuer });
  context.note({ clientId: request.clientId });
  return {
    page: redirectPage(messages, messages.authorization.redirecting, urlFor('/sign-in')),
    cookies: [cookie],
  };
}

type FoundUser = { readonly user: User } | { readonly response: PageResponse };

/** A user who is no longer in the directory must sign in again. */
export async function findSignedInUser({ grantDeps, sessions }: PageDeps, session: Session): Promise<FoundUser> {
  const user = await grantDeps.users.findByIdentity(session.identity ?? '');
  return user === undefined
    ? { response: { redirect: '/sign-in', session: sessions.renew(withoutSignIn(session)) } }
    : { user: addAssertedGroups(grantDeps, user, session.assertedGroups) };
}

const requireUser = async (deps: PageDeps, transaction: Transaction, session: Session): Promise<FoundUser> =>
  isSignInSufficient(transaction, session) ? findSignedInUser(deps, session) : { response: { redirect: '/sign-in' } };

export async function showAuthorization(
  deps: PageDeps,
  pageRequest: PageRequest,
  transaction: Transaction,
): Promise<PageResponse> {
  const found = await requireUser(deps, transaction, pageRequest.session);
  if ('response' in found) return found.response;
  if (await isDecided(deps.grantDeps, transaction.request)) return { page: authorizationNotice(deps, 'decided', 409) };
  return renderAuthorization(deps, pageRequest, transaction, found.user);
}

function renderAuthorization(
  deps: PageDeps,
  { context, session }: PageRequest,
  transaction: Transaction,
  user: User,
  status = 200,
): PageResponse {
  const { request } = transaction;
  const approvable = checkApprovable(deps.grantDeps, request, user);
  context.note({
    identity: user.identity,
    clientId: request.clientId,
    ...(!approvable.ok && { reason: approvable.refusal.reason }),
  });
  const integration = deps.grantDeps.integrations.get(request.clientId);
  const hasSeveralAudiences = (integration?.audience?.length ?? 0) > 1;
  const page = authorizationPage(deps, session, {
    transaction,
    integrationName: getIntegrationName(deps.grantDeps, request.clientId),
    isRegistered: integration?.templateId === undefined,
    hasSeveralAudiences,
    displayName: session.shownAs ?? user.displayName,
    approvable: approvable.ok ? approvable.value : { refusal: approvable.refusal },
    status,
  });
  return { page };
}

const isDisplayed = ({ text, audience }: Approvable, fields: FormFields): boolean =>
  text === fields.get(SCOPE_FIELD) && audience === fields.get(AUDIENCE_FIELD);

export async function decideAuthorization(
  deps: PageDeps,
  pageRequest: PageRequest,
  transaction: Transaction,
  ended: 'approved' | 'denied',
  fields: FormFields,
): Promise<PageResponse> {
  const { session, context } = pageRequest;
  if (session.identity === undefined) return { page: noticePage(deps, 'rejected') };
  const found = await requireUser(deps, transaction, session);
  if ('response' in found) return found.response;
  const { user } = found;
  const { request, issuer } = transaction;
  context.note({ identity: user.identity, clientId: request.clientId });
  const respond = (parameters: Readonly<Record<string, string>>): PageResponse => ({
    location: formatAuthorizationResponse(request, issuer, parameters),
  });
  const decided: PageResponse = { page: authorizationNotice(deps, 'decided', 409) };
  if (ended === 'denied')
    return (await denyAuthorization(deps.grantDeps, request, user))
      ? respond({ error: 'access_denied', error_description: 'The user denied the request.' })
      : decided;
  const approvable = checkApprovable(deps.grantDeps, request, user);
  // The page explains why the user may not approve, or displays what the request has become.
  if (!approvable.ok || !isDisplayed(approvable.value, fields))
    return renderAuthorization(deps, pageRequest, transaction, user, 403);
  const code = await approveAuthorization(deps.grantDeps, request, user, session);
  if (!code.ok) return renderAuthorization(deps, pageRequest, transaction, user, 403);
  return code.value === undefined ? decided : respond({ code: code.value });
}
