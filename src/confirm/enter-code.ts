import { readUserCode, showUserCode } from '../domain/device-request.ts';
import { findQuestion } from '../grants/device-decision.ts';
import type { Fields } from './form.ts';
import { MAX_WRONG_CODES } from './guess-limit.ts';
import { plain } from './html.ts';
import { endedPage, tooManyPage } from './notices.ts';
import type { Session } from './session.ts';
import { codePage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

/** The first page. A link may bring the code along; it is only written into the field. */
export async function showCode(room: Room, { call, session }: Visit): Promise<Reply> {
  const locked = lockedFor(room, session);
  if (locked > 0) return { page: tooManyPage(room, locked) };
  const fresh = session.identity === undefined ? room.sessions.extend(session) : session;
  const code = codeInLink(call.request.url ?? '');
  const page = codePage(room.words, {
    form: room.form(fresh, ''),
    typed: code === undefined ? '' : showUserCode(code),
    prefilled: code !== undefined,
  });
  return { page, session: fresh };
}

function codeInLink(url: string): string | undefined {
  const at = url.indexOf('?');
  const given = at < 0 ? [] : new URLSearchParams(url.slice(at + 1)).getAll('user_code');
  return given.length === 1 ? readUserCode(given[0] ?? '') : undefined;
}

/** A typed code. Wrong ones are counted for the session, for the address and for everybody together. */
export async function takeCode(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const typed = fields.get('user_code') ?? '';
  if (typed.trim() === '') return codeAgain(room, visit.session, '', room.words.code.missing);
  const wait = waitToGuess(room, visit);
  if (wait > 0) return { page: tooManyPage(room, wait) };

  return room.memory.codeTurns.take('codes', async () => {
    // Those before us in the line may have used up what was left.
    const waitNow = waitToGuess(room, visit);
    if (waitNow > 0) return { page: tooManyPage(room, waitNow) };
    const found = await findQuestion(room.desk, typed);
    if (found.ok) {
      const { requestId, clientId } = found.value;
      const { ended: _before, ...session } = visit.session;
      const code = readUserCode(typed) ?? '';
      visit.call.note({ clientId });
      return {
        go: session.identity === undefined ? '/sign-in' : '/review',
        session: { ...session, request: { id: requestId, clientId, code } },
      };
    }
    const { reason } = found.refusal;
    // One answer for a wrong shape, an unknown code and an old one.
    if (reason === 'device_code_unknown' || reason === 'device_code_expired')
      return codeAgain(room, countWrong(room, visit), typed, room.words.code.wrong);
    return { page: endedPage(room, found.refusal) };
  });
}

function codeAgain(room: Room, session: Session, typed: string, problem: string): Reply {
  const form = room.form(session, '');
  const page = codePage(room.words, {
    form,
    typed: plain(typed, 24),
    prefilled: false,
    problem,
    status: 400,
  });
  return { page, session };
}

/** A cookie from before does not set the count back: the larger of cookie and memory counts. */
export const wrongCodesOf = (room: Room, session: Session): number =>
  Math.max(session.wrongCodes, room.memory.wrongCodes(session.id));

const lockedFor = (room: Room, session: Session): number =>
  wrongCodesOf(room, session) < MAX_WRONG_CODES ? 0 : Math.max(1, session.expires - room.desk.now());

function waitToGuess(room: Room, { session, from }: Visit): number {
  const own = lockedFor(room, session) || room.rates.codeGuesses.peek(from);
  const all = room.rates.allCodeGuesses.peek('all');
  if (own > 0 || all === 0) return own;
  return isNewcomer(room, session, from) ? room.memory.newcomers.peek('all') : all;
}

const isNewcomer = (room: Room, session: Session, from: string): boolean =>
  wrongCodesOf(room, session) === 0 && room.rates.codeGuesses.isFresh(from);

function countWrong(room: Room, { call, session, from }: Visit): Session {
  const wrongCodes = wrongCodesOf(room, session) + 1;
  room.memory.setWrongCodes(session.id, wrongCodes);
  room.rates.codeGuesses.take(from);
  if (room.rates.allCodeGuesses.take('all') > 0) room.memory.newcomers.take('all');
  call.note({ reason: 'device_code_unknown' });
  room.desk.log.audit('code_guess_failed', { from: call.clientAddress, tries: wrongCodes });
  return { ...session, wrongCodes };
}
