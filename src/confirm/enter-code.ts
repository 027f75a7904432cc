import { readUserCode, showUserCode } from '../domain/device-request.ts';
import { findQuestion } from '../grants/device-decision.ts';
import type { Call } from '../http/call.ts';
import { queryOf } from '../http/query.ts';
import { networksOf, type RateLimit } from '../http/rate-limit.ts';
import type { Fields } from './form.ts';
import { MAX_WRONG_CODES } from './guess-limit.ts';
import { plain } from './html.ts';
import { endedPage, tooManyPage } from './notices.ts';
import type { Session } from './session.ts';
import { codePage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

/** The first page. A code from a link, or from before a sign-in, is only filled in. */
export async function showCode(room: Room, { call, session }: Visit): Promise<Reply> {
  const locked = await lockedFor(room, session);
  if (locked > 0) return { page: tooManyPage(room, locked) };
  const fresh = session.identity === undefined ? room.sessions.extend(session) : session;
  const code = codeInLink(call) ?? session.typed;
  const page = codePage(room.words, {
    form: room.form(fresh, ''),
    typed: code === undefined ? '' : showUserCode(code),
    prefilled: code !== undefined,
    ...(room.look.myGrants && { mine: room.at('/grants') }),
  });
  return { page, session: fresh };
}

export function codeInLink({ request }: Call): string | undefined {
  const given = new URLSearchParams(queryOf(request)).getAll('user_code');
  return given.length === 1 ? readUserCode(given[0] ?? '') : undefined;
}

/**
 * A typed code. Wrong ones are counted for the session, and for those who typed them: a signed-in person, or an address,
 * its network and all who are not signed in. While others use up what they share, signing in leads on.
 */
export async function takeCode(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const typed = fields.get('user_code') ?? '';
  if (typed.trim() === '') return codeAgain(room, visit.session, '', room.words.code.missing);

  // Refused from memory where possible: guesses without a budget cost no lookup.
  const known = Math.max(0, ...budgetsOf(room, visit).map(([limit, who]) => limit.peek(who)));
  if (known > 0) return tooManyGuesses(room, visit, typed, known);

  return room.memory.codeTurns.take(visit.session.id, async () => {
    const locked = await lockedFor(room, visit.session);
    if (locked > 0) {
      lockedOut(room, visit, locked);
      return { page: tooManyPage(room, locked) };
    }
    const guess = await reserveGuess(budgetsOf(room, visit));
    if ('wait' in guess) {
      lockedOut(room, visit, guess.wait);
      return tooManyGuesses(room, visit, typed, guess.wait);
    }
    let isWrong = false;
    try {
      const found = await findQuestion(room.desk, typed);
      if (found.ok) {
        const { requestId, clientId } = found.value;
        const { ended: _before, goal: _goal, typed: _typed, ...session } = visit.session;
        const code = readUserCode(typed) ?? '';
        visit.call.note({ clientId });
        return {
          go: session.identity === undefined ? '/sign-in' : '/review',
          session: { ...session, request: { id: requestId, clientId, code } },
        };
      }
      const { reason } = found.refusal;
      isWrong = reason === 'device_code_unknown' || reason === 'device_code_expired';
      // The same page for a malformed, an unknown and an expired code.
      if (isWrong) return codeAgain(room, await countWrong(room, visit), typed, room.words.code.wrong);
      return { page: endedPage(room, found.refusal) };
    } finally {
      // A right code, or a failure of ours, is not a guess.
      if (!isWrong) await guess.giveBack();
    }
  });
}

/**
 * Without a budget of their own people share one with every guesser; signed in, they have one. So a sign-in is offered,
 * after which the code is filled in again.
 */
function tooManyGuesses(room: Room, { session }: Visit, typed: string, wait: number): Reply {
  if (session.identity !== undefined) return { page: tooManyPage(room, wait) };
  const { typed: _typed, ...rest } = session;
  const code = readUserCode(typed);
  return {
    page: tooManyPage(room, wait, room.at('/sign-in')),
    session: { ...rest, goal: 'code', ...(code !== undefined && { typed: code }) },
  };
}

function lockedOut({ desk }: Room, { call }: Visit, seconds: number): void {
  desk.log.audit('locked_out', { what: 'code', from: call.clientAddress, seconds });
}

function codeAgain(room: Room, session: Session, typed: string, problem: string): Reply {
  const form = room.form(session, '');
  const page = codePage(room.words, {
    form,
    typed: plain(typed, 24),
    prefilled: false,
    ...(room.look.myGrants && { mine: room.at('/grants') }),
    problem,
    status: 400,
  });
  return { page, session };
}

/** A cookie from before does not set the count back: the larger of cookie and memory counts. */
export const wrongCodesOf = async (room: Room, session: Session): Promise<number> =>
  Math.max(session.wrongCodes, await room.memory.wrongCodes(session.id));

const lockedFor = async (room: Room, session: Session): Promise<number> =>
  (await wrongCodesOf(room, session)) < MAX_WRONG_CODES ? 0 : Math.max(1, session.expires - room.desk.now());

type Budget = readonly [limit: RateLimit, who: string];

/** What a wrong code is counted against, from the narrowest to the widest. */
function budgetsOf({ rates }: Room, { call, session, from }: Visit): readonly Budget[] {
  const [, site] = networksOf(call.clientAddress);
  // Accounts may be free to make, with some OpenID providers. Apart from the network's own: those who are not signed in
  // cannot use it up.
  if (session.identity !== undefined)
    return [
      [rates.identityCodeGuesses, session.identity],
      [rates.networkCodeGuesses, `signed in ${site}`],
    ];
  return [
    [rates.codeGuesses, from],
    [rates.networkCodeGuesses, site],
    [rates.allCodeGuesses, 'all'],
  ];
}

type Reserved = { readonly wait: number } | { readonly giveBack: () => Promise<void> };

/** A guess is counted before the code is looked up: otherwise many at once, here and elsewhere, would count as one. */
async function reserveGuess(budgets: readonly Budget[]): Promise<Reserved> {
  const taken: Budget[] = [];
  const giveBack = async (): Promise<void> => {
    for (const [limit, who] of taken) await limit.giveBack(who);
  };
  for (const budget of budgets) {
    const [limit, who] = budget;
    const wait = await limit.take(who);
    if (wait > 0) {
      await giveBack();
      return { wait };
    }
    taken.push(budget);
  }
  return { giveBack };
}

async function countWrong(room: Room, { call, session }: Visit): Promise<Session> {
  const wrongCodes = (await wrongCodesOf(room, session)) + 1;
  await room.memory.addWrongCodes(session.id, 1, session.expires - room.desk.now());
  call.note({ reason: 'device_code_unknown' });
  room.desk.log.audit('code_guess_failed', {
    from: call.clientAddress,
    tries: wrongCodes,
    ...(session.identity !== undefined && { identity: session.identity }),
  });
  return { ...session, wrongCodes };
}
