import { readUserCode, showUserCode } from '../domain/device-request.ts';
import { findQuestion } from '../grants/device-decision.ts';
import type { Call } from '../http/call.ts';
import { queryOf } from '../http/query.ts';
import type { RateLimit } from '../http/rate-limit.ts';
import type { Fields } from './form.ts';
import { MAX_WRONG_CODES } from './guess-limit.ts';
import { plain } from './html.ts';
import { endedPage, tooManyPage } from './notices.ts';
import type { Session } from './session.ts';
import { codePage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

/** The first page. A link may bring the code along; it is only written into the field. */
export async function showCode(room: Room, { call, session }: Visit): Promise<Reply> {
  const locked = await lockedFor(room, session);
  if (locked > 0) return { page: tooManyPage(room, locked) };
  const fresh = session.identity === undefined ? room.sessions.extend(session) : session;
  const code = codeInLink(call);
  const page = codePage(room.words, {
    form: room.form(fresh, ''),
    typed: code === undefined ? '' : showUserCode(code),
    prefilled: code !== undefined,
    ...(room.look.myGrants && { mine: room.at('/grants') }),
  });
  return { page, session: fresh };
}

function codeInLink({ request }: Call): string | undefined {
  const given = new URLSearchParams(queryOf(request)).getAll('user_code');
  return given.length === 1 ? readUserCode(given[0] ?? '') : undefined;
}

/** A typed code. Wrong ones are counted for the session, for the address and for everybody together. */
export async function takeCode(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const typed = fields.get('user_code') ?? '';
  if (typed.trim() === '') return codeAgain(room, visit.session, '', room.words.code.missing);

  // Who has nothing left stands in nobody's way: the line below is for those who may be right.
  const known = knownWait(room, visit);
  if (known > 0) return { page: tooManyPage(room, known) };

  return room.memory.codeTurns.take('codes', async () => {
    const guess = await reserveGuess(room, visit);
    if ('wait' in guess) {
      const { clientAddress: address } = visit.call;
      room.desk.log.audit('locked_out', { what: 'code', from: address, seconds: guess.wait });
      return { page: tooManyPage(room, guess.wait) };
    }
    let isWrong = false;
    try {
      const found = await findQuestion(room.desk, typed);
      if (found.ok) {
        const { requestId, clientId } = found.value;
        const { ended: _before, goal: _goal, ...session } = visit.session;
        const code = readUserCode(typed) ?? '';
        visit.call.note({ clientId });
        return {
          go: session.identity === undefined ? '/sign-in' : '/review',
          session: { ...session, request: { id: requestId, clientId, code } },
        };
      }
      const { reason } = found.refusal;
      isWrong = reason === 'device_code_unknown' || reason === 'device_code_expired';
      // One answer for a wrong shape, an unknown code and an old one.
      if (isWrong) return codeAgain(room, await countWrong(room, visit), typed, room.words.code.wrong);
      return { page: endedPage(room, found.refusal) };
    } finally {
      // Who was right, or was told nothing because we failed, has not guessed.
      if (!isWrong) await guess.giveBack();
    }
  });
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

function knownWait(room: Room, { session, from }: Visit): number {
  const own = room.rates.codeGuesses.peek(from);
  const all = room.rates.allCodeGuesses.peek('all');
  if (own > 0 || all === 0) return own;
  return session.wrongCodes > 0 ? all : room.memory.newcomers.peek('all');
}

type Reserved = { readonly wait: number } | { readonly giveBack: () => Promise<void> };

/** A guess is paid for before the code is looked up: otherwise many at once, here and elsewhere, would be one. */
async function reserveGuess(room: Room, { session, from }: Visit): Promise<Reserved> {
  const { codeGuesses, allCodeGuesses } = room.rates;
  const { newcomers } = room.memory;
  const own = (await lockedFor(room, session)) || (await codeGuesses.take(from));
  if (own > 0) return { wait: own };
  const paidFrom = (everybody: RateLimit): Reserved => ({
    async giveBack() {
      await codeGuesses.giveBack(from);
      await everybody.giveBack('all');
    },
  });
  const wait = await allCodeGuesses.take('all');
  if (wait === 0) return paidFrom(allCodeGuesses);
  await codeGuesses.giveBack(from);
  if ((await wrongCodesOf(room, session)) > 0 || !(await codeGuesses.isFresh(from))) return { wait };
  const late = (await newcomers.take('all')) || (await codeGuesses.take(from));
  return late > 0 ? { wait: late } : paidFrom(newcomers);
}

async function countWrong(room: Room, { call, session }: Visit): Promise<Session> {
  const wrongCodes = (await wrongCodesOf(room, session)) + 1;
  await room.memory.addWrongCodes(session.id, 1, session.expires - room.desk.now());
  call.note({ reason: 'device_code_unknown' });
  room.desk.log.audit('code_guess_failed', { from: call.clientAddress, tries: wrongCodes });
  return { ...session, wrongCodes };
}
