import type { Epoch } from '../../domain/grant.ts';
import { type AssertedGroups, createProfile, type Profile, type User } from '../../domain/user.ts';
import { identifyByCertificate } from '../../grants/credential-grants.ts';
import { readApprovalRequest, recordFailedSignIn } from '../../grants/device-grant.ts';
import { certificateFields, describeCertificate, getIssueTime } from '../../grants/issue.ts';
import { normalizeUserNameLoosely } from '../../identity/name-normalization.ts';
import { errorFields, type LogFields } from '../../observability/logger.ts';
import type { PasswordGuard } from '../../ports/directory.ts';
import { Fault } from '../../ports/fault.ts';
import type { FormHandler, PageDeps, PageHandler, PagePath, PageRequest, PageResponse } from '../page-handler.ts';
import { type Session, withoutSignIn } from '../session.ts';
import { isSignInSufficient } from '../transaction.ts';
import { signInPage } from '../views/device-pages.ts';
import { sanitizeText } from '../views/html.ts';
import { endedPage, tooManyAttemptsPage } from '../views/notice-pages.ts';
import { getWrongCodes } from './enter-code.ts';

const MAX_USER_NAME_LENGTH = 256;
const MAX_PASSWORD_LENGTH = 1_024;

export const getNextPath = ({ transaction }: Pick<PageDeps, 'transaction'>, { goal }: Session): PagePath =>
  transaction === undefined ? NEXT_PATHS[goal ?? 'device'] : '/review';

const NEXT_PATHS = { device: '/review', grants: '/grants', code: '' } as const;

/** The device request that the sign-in is for. */
const getDeviceRequest = ({ transaction }: PageDeps, { goal, request }: Session): Session['request'] =>
  goal === undefined && transaction === undefined ? request : undefined;

/** The request that the sign-in is for, in audit events. */
function describeRequest({ transaction }: PageDeps, { request }: Session): LogFields {
  const { id, clientId } = transaction?.request ?? request ?? {};
  return id === undefined ? {} : { request: id, client: clientId };
}

/** The response if there is no device request, or it was decided or has expired before the sign-in. */
export async function checkRequestPending(
  deps: PageDeps,
  { session: { request, goal } }: PageRequest,
): Promise<PageResponse | undefined> {
  if (goal !== undefined || deps.transaction !== undefined) return undefined;
  if (request === undefined) return { redirect: '' };
  const pending = await readApprovalRequest(deps.grantDeps, request.id);
  return pending.ok ? undefined : { page: endedPage(deps, pending.refusal) };
}

export const showSignIn: PageHandler = async (deps, pageRequest) => {
  if (isSignInSufficient(deps.transaction, pageRequest.session))
    return { redirect: getNextPath(deps, pageRequest.session) };
  return (await checkRequestPending(deps, pageRequest)) ?? { page: signInPage(deps, pageRequest) };
};

/** Passwords for one device request are checked sequentially: the fifth wrong one closes the request. */
export const submitPassword: FormHandler = async (deps, pageRequest, fields) => {
  const { grantDeps, attemptLimits, messages } = deps;
  const { session, clientKey, context } = pageRequest;
  const userName = fields.get('user_name') ?? '';
  const password = fields.get('password') ?? '';
  // Users may type a password into the wrong field: keep only a digest.
  const userNameDigest = grantDeps.sealer.digest(
    'sign-in name',
    normalizeUserNameLoosely(userName.slice(0, MAX_USER_NAME_LENGTH)),
  );
  const wait = await attemptLimits.signInsByAddress.take(clientKey);
  if (wait > 0) return lockOut(deps, pageRequest, wait);
  const request = getDeviceRequest(deps, session);

  return attemptLimits.signInMutex.runExclusive(request?.id ?? userNameDigest, async () => {
    const endedResponse = await checkRequestPending(deps, pageRequest);
    if (endedResponse !== undefined) return endedResponse;
    const budget = createPasswordBudget(deps, userNameDigest);
    let user: User | undefined;
    try {
      user = await verifyPassword(deps, userName, password, budget.guard);
    } catch (error) {
      if (budget.getWait() === 0) throw error;
    }
    if (user === undefined && budget.getWait() > 0) return lockOut(deps, pageRequest, budget.getWait());
    if (user !== undefined && !user.disabled) {
      await budget.refund();
      const signedIn = await createSignedInSession(deps, pageRequest, { user, method: 'password' });
      return { redirect: getNextPath(deps, signedIn), session: signedIn };
    }

    context.note({ reason: 'sign_in_failed', ...(request && { clientId: request.clientId }) });
    grantDeps.log.audit('sign_in_failed', {
      ...((deps.transaction !== undefined || session.goal === undefined) && describeRequest(deps, session)),
      from: context.clientAddress,
      ...(user !== undefined && { identity: user.identity, reason: 'identity_disabled' }),
    });
    if (request !== undefined) {
      const outcome = await recordFailedSignIn(grantDeps, request.id);
      if (!outcome.ok) return { page: endedPage(deps, outcome.refusal) };
      if (outcome.value.closed) return { page: endedPage(deps, { reason: 'device_closed' }) };
    }
    const page = signInPage(deps, pageRequest, {
      problem: messages.signIn.wrong,
      isFieldError: true,
      userName: sanitizeText(userName, MAX_USER_NAME_LENGTH),
    });
    return { page };
  });
};

function lockOut(deps: PageDeps, { context }: PageRequest, seconds: number): PageResponse {
  deps.grantDeps.log.audit('locked_out', { what: 'sign-in', from: context.clientAddress, seconds });
  return { page: tooManyAttemptsPage(deps, seconds) };
}

/** Empty passwords never reach a directory: LDAP servers may accept them (RFC 4513 §5.1.2). */
async function verifyPassword(
  deps: PageDeps,
  userName: string,
  password: string,
  guard: PasswordGuard,
): Promise<User | undefined> {
  const isWellFormed =
    userName !== '' &&
    userName.length <= MAX_USER_NAME_LENGTH &&
    password !== '' &&
    password.length <= MAX_PASSWORD_LENGTH;
  return isWellFormed ? deps.grantDeps.users.signIn(userName, password, guard) : undefined;
}

/**
 * Counts the wrong passwords of one sign-in by account, whatever name it was found under. An attempt is charged before the
 * comparison and refunded unless the password was wrong. It counts even if another directory is unreachable or accepts
 * the password: an attacker may control an account there.
 */
function createPasswordBudget({ grantDeps, attemptLimits }: PageDeps, userNameDigest: string) {
  const refunds: (() => Promise<void>)[] = [];
  let wait = 0;
  const guard: PasswordGuard = async ({ directory, id }, verify) => {
    // Unknown names are limited in the same way: the limit must not reveal which names exist.
    const limit = id === undefined ? attemptLimits.failuresByUnknownName : attemptLimits.failuresByAccount;
    const account = grantDeps.sealer.digest('sign-in account', `${directory}\n${id ?? userNameDigest}`);
    const seconds = await limit.take(account);
    wait = Math.max(wait, seconds);
    if (seconds > 0) return undefined;
    const refund = async (): Promise<void> => limit.refund(account);
    try {
      const user = await verify();
      if (user !== undefined) refunds.push(refund);
      return user;
    } catch (error) {
      await refund();
      throw error;
    }
  };
  return {
    guard,
    /** Seconds until an account that was skipped may be tried again; 0 if none was skipped. */
    getWait: () => wait,
    refund: async (): Promise<void> => {
      for (const refund of refunds) await refund();
    },
  };
}

export const submitCertificate: FormHandler = async (deps, pageRequest) => {
  const { grantDeps, attemptLimits, messages } = deps;
  const { context, session, clientKey } = pageRequest;
  const wait = await attemptLimits.signInsByAddress.take(clientKey);
  if (wait > 0) return lockOut(deps, pageRequest, wait);
  const endedResponse = await checkRequestPending(deps, pageRequest);
  if (endedResponse !== undefined) return endedResponse;

  const der = deps.getCertificate(context);
  const identified = await identifyByCertificate(grantDeps, der);
  if (identified.ok) {
    const { user, certificate } = identified.value;
    const signedIn = await createSignedInSession(deps, pageRequest, {
      user,
      method: 'certificate',
      auditFields: { ...certificateFields(certificate), issuer: certificate.issuer },
    });
    return { redirect: getNextPath(deps, signedIn), session: signedIn };
  }
  const { refusal } = identified;
  const { clientId } = deps.transaction?.request ?? session.request ?? {};
  context.note({ reason: refusal.reason, ...(clientId !== undefined && { clientId }) });
  grantDeps.log.audit('sign_in_failed', {
    ...describeRequest(deps, session),
    from: context.clientAddress,
    by: 'certificate',
    reason: refusal.reason,
    ...('identity' in refusal && { identity: refusal.identity }),
    ...describeCertificate(grantDeps, der),
  });
  const problem =
    refusal.reason === 'certificate_missing' ? messages.signIn.certificateMissing : messages.signIn.certificateWrong;
  return { page: signInPage(deps, pageRequest, { problem }) };
};

interface SignIn {
  readonly user: User;
  readonly method: string;
  readonly authenticatedAt?: Epoch;
  readonly shownAs?: string | undefined;
  readonly profile?: Profile | undefined;
  readonly assertedGroups?: AssertedGroups | undefined;
  readonly auditFields?: LogFields;
}

/** Changes the id of the session, against session fixation. */
export async function createSignedInSession(
  deps: PageDeps,
  { context, session }: PageRequest,
  signIn: SignIn,
): Promise<Session> {
  const { user, method, authenticatedAt, shownAs, profile: providerProfile, assertedGroups, auditFields = {} } = signIn;
  const { identity } = user;
  const { ended: _ended, revoked: _revoked, ...rest } = withoutSignIn(session);
  const { name, email } = providerProfile ?? { name: user.userName, email: user.email };
  const profile = createProfile({
    ...(name !== undefined && { name }),
    ...(email !== undefined && { email }),
  });
  const signedInSession: Session = {
    ...deps.sessions.renew(rest),
    identity,
    since: Math.floor(getIssueTime(deps.grantDeps, deps.grantDeps.now())),
    ...(deps.transaction !== undefined && { signedInFor: deps.transaction.request.id }),
    ...(deps.grantDeps.issuedAfter && { issuedAfter: deps.grantDeps.issuedAfter }),
    ...(authenticatedAt !== undefined && { authenticatedAt }),
    ...(shownAs !== undefined && { shownAs: sanitizeText(shownAs) }),
    ...(profile !== undefined && { profile }),
    ...(assertedGroups !== undefined && { assertedGroups }),
  };
  await copyWrongCodes(deps, session, signedInSession);
  context.note({ identity });
  deps.grantDeps.log.audit('sign_in', {
    identity,
    name: profile?.name,
    by: method,
    ...auditFields,
    ...describeRequest(deps, session),
    from: context.clientAddress,
  });
  return signedInSession;
}

export const signOut: FormHandler = async (deps, { context, session }) => {
  const { request, ended, goal, language } = session;
  try {
    await deps.sessions.revoke(session);
  } catch (error) {
    // The cookie is replaced below. Copies are rejected here, and elsewhere once the store is reachable again.
    if (!(error instanceof Fault)) throw error;
    deps.grantDeps.log.error('sign_out_revocation_failed', { request_id: context.id, ...errorFields(error) });
  }
  const newSession: Session = {
    ...deps.sessions.create(await getWrongCodes(deps, session)),
    ...(language !== undefined && { language }),
  };
  await copyWrongCodes(deps, session, newSession);
  if (deps.transaction !== undefined) return { redirect: '/sign-in', session: newSession };
  if (request === undefined || ended !== undefined || goal !== undefined) return { redirect: '', session: newSession };
  return { redirect: '/sign-in', session: { ...newSession, request } };
};

/** A new session id does not reset the count. */
const copyWrongCodes = async (deps: PageDeps, from: Session, to: Session): Promise<void> =>
  deps.attemptLimits.addWrongCodes(to.id, await getWrongCodes(deps, from), to.expires - deps.grantDeps.now());
