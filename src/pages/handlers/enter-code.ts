import { formatUserCode, parseUserCode } from '../../domain/device-request.ts';
import { findApprovalRequest } from '../../grants/device-grant.ts';
import { getQuery } from '../../http/query.ts';
import type { RequestContext } from '../../http/request-context.ts';
import { getNetworks, type RateLimiter } from '../../lib/rate-limiter.ts';
import { MAX_WRONG_CODES } from '../attempt-limits.ts';
import type { FormHandler, PageDeps, PageHandler, PageRequest, PageResponse } from '../page-handler.ts';
import type { Session } from '../session.ts';
import { codePage } from '../views/device-pages.ts';
import { sanitizeText } from '../views/html.ts';
import { endedPage, tooManyAttemptsPage } from '../views/notice-pages.ts';

/** A code from the query, or typed before a sign-in, is filled in but not submitted. */
export const showCodeForm: PageHandler = async (deps, { context, session }) => {
  const lockoutSeconds = await getLockoutSeconds(deps, session);
  if (lockoutSeconds > 0) return { page: tooManyAttemptsPage(deps, lockoutSeconds) };
  const fresh = session.identity === undefined ? deps.sessions.extend(session) : session;
  const linkedCode = readCodeFromQuery(context);
  const code = linkedCode ?? session.typed;
  const hasWrongLink = linkedCode === undefined && readCodes(context).some((value) => value.trim() !== '');
  const page = codePage(deps, fresh, {
    typed: code === undefined ? '' : formatUserCode(code),
    prefilled: code !== undefined && !hasWrongLink,
    ...(hasWrongLink && { problem: deps.messages.code.wrongLink }),
  });
  return {
    page: linkedCode === undefined ? page : { ...page, languageQuery: `user_code=${formatUserCode(linkedCode)}` },
    session: fresh,
  };
};

export function readCodeFromQuery(context: RequestContext): string | undefined {
  const values = readCodes(context);
  return values.length === 1 ? parseUserCode(values[0] ?? '') : undefined;
}

const readCodes = ({ request }: RequestContext): readonly string[] =>
  new URLSearchParams(getQuery(request)).getAll('user_code');

/**
 * Wrong codes count against the session and either the signed-in user or, without a sign-in, the address, its network
 * and a total. When other clients exhaust a shared budget, users can sign in to continue.
 */
export const submitCode: FormHandler = async (deps, pageRequest, fields) => {
  const typed = fields.get('user_code') ?? '';
  if (typed.trim() === '') return renderCodeError(deps, pageRequest.session, '', deps.messages.code.missing);

  // Refuse from memory where possible, without a lookup in the store.
  const knownWait = Math.max(0, ...selectBudgets(deps, pageRequest).map(([limit, key]) => limit.peek(key)));
  if (knownWait > 0) return respondTooManyGuesses(deps, pageRequest, typed, knownWait);

  return deps.attemptLimits.codeMutex.runExclusive(pageRequest.session.id, async () => {
    const lockoutSeconds = await getLockoutSeconds(deps, pageRequest.session);
    if (lockoutSeconds > 0) {
      auditLockout(deps, pageRequest, lockoutSeconds);
      return { page: tooManyAttemptsPage(deps, lockoutSeconds) };
    }
    const reservation = await reserveGuess(selectBudgets(deps, pageRequest));
    if ('wait' in reservation) {
      auditLockout(deps, pageRequest, reservation.wait);
      return respondTooManyGuesses(deps, pageRequest, typed, reservation.wait);
    }
    let isWrong = false;
    try {
      const approval = await findApprovalRequest(deps.grantDeps, typed);
      if (approval.ok) {
        const { id, clientId } = approval.value;
        const { ended: _ended, goal: _goal, typed: _typed, ...session } = pageRequest.session;
        const code = parseUserCode(typed) ?? '';
        pageRequest.context.note({ clientId });
        return {
          redirect: session.identity === undefined ? '/sign-in' : '/review',
          session: { ...session, request: { id, clientId, code } },
        };
      }
      const { reason } = approval.refusal;
      isWrong = reason === 'device_code_unknown' || reason === 'device_code_expired';
      if (!isWrong) return { page: endedPage(deps, approval.refusal) };
      // Malformed, unknown and expired codes get the same response.
      const session = await recordWrongCode(deps, pageRequest);
      return renderCodeError(deps, session, typed, deps.messages.code.wrong);
    } finally {
      // Correct codes and faults of gatehouse don't count.
      if (!isWrong) await reservation.refund();
    }
  });
};

/** Signed-in users have a budget of their own, so the page offers a sign-in; the code is filled in again afterwards. */
function respondTooManyGuesses(deps: PageDeps, { session }: PageRequest, typed: string, wait: number): PageResponse {
  if (session.identity !== undefined) return { page: tooManyAttemptsPage(deps, wait) };
  const { typed: _typed, ...rest } = session;
  const code = parseUserCode(typed);
  return {
    page: tooManyAttemptsPage(deps, wait, deps.urlFor('/sign-in')),
    session: { ...rest, goal: 'code', ...(code !== undefined && { typed: code }) },
  };
}

function auditLockout({ grantDeps }: PageDeps, { context }: PageRequest, seconds: number): void {
  grantDeps.log.audit('locked_out', { what: 'code', from: context.clientAddress, seconds });
}

function renderCodeError(deps: PageDeps, session: Session, typed: string, problem: string): PageResponse {
  return { page: codePage(deps, session, { typed: sanitizeText(typed, 24), problem }), session };
}

/** The larger of both counts: an older cookie does not reset it. */
export const getWrongCodes = async (deps: PageDeps, session: Session): Promise<number> =>
  Math.max(session.wrongCodes, await deps.attemptLimits.getWrongCodes(session.id));

const getLockoutSeconds = async (deps: PageDeps, session: Session): Promise<number> =>
  (await getWrongCodes(deps, session)) < MAX_WRONG_CODES ? 0 : Math.max(1, session.expires - deps.grantDeps.now());

type GuessBudget = readonly [limit: RateLimiter, key: string];

/** From the narrowest to the widest. */
function selectBudgets({ rateLimits }: PageDeps, { context, session, clientKey }: PageRequest): readonly GuessBudget[] {
  const [, network] = getNetworks(context.clientAddress);
  // Some OpenID providers let anyone create accounts, so signed-in users have a network budget too, separate from the one
  // that clients without a sign-in can exhaust.
  if (session.identity !== undefined)
    return [
      [rateLimits.identityCodeGuesses, session.identity],
      [rateLimits.networkCodeGuesses, `signed in ${network}`],
    ];
  return [
    [rateLimits.codeGuesses, clientKey],
    [rateLimits.networkCodeGuesses, network],
    [rateLimits.allCodeGuesses, 'all'],
  ];
}

type GuessReservation = { readonly wait: number } | { readonly refund: () => Promise<void> };

/** Counts the guess before the lookup: otherwise concurrent guesses would pass together. */
async function reserveGuess(budgets: readonly GuessBudget[]): Promise<GuessReservation> {
  const charged: GuessBudget[] = [];
  const refund = async (): Promise<void> => {
    for (const [limit, key] of charged) await limit.refund(key);
  };
  for (const budget of budgets) {
    const [limit, key] = budget;
    const wait = await limit.take(key);
    if (wait > 0) {
      await refund();
      return { wait };
    }
    charged.push(budget);
  }
  return { refund };
}

async function recordWrongCode(deps: PageDeps, { context, session }: PageRequest): Promise<Session> {
  const wrongCodes = (await getWrongCodes(deps, session)) + 1;
  await deps.attemptLimits.addWrongCodes(session.id, 1, session.expires - deps.grantDeps.now());
  context.note({ reason: 'device_code_unknown' });
  deps.grantDeps.log.audit('code_guess_failed', {
    from: context.clientAddress,
    attempts: wrongCodes,
    ...(session.identity !== undefined && { identity: session.identity }),
  });
  return { ...session, wrongCodes };
}
