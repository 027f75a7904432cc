import { inLanguage } from '../domain/language.ts';
import type { Person } from '../domain/person.ts';
import { identify } from '../grants/certificate-grant.ts';
import { failSignIn, questionOf } from '../grants/device-decision.ts';
import { issuingTime } from '../grants/issue.ts';
import { looseUserName } from '../identity/name-forms.ts';
import type { OpenIdProvider } from '../identity/openid.ts';
import { errorFields } from '../observability/logger.ts';
import type { PasswordGuard } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';
import { wrongCodesOf } from './enter-code.ts';
import type { Fields } from './form.ts';
import { plain } from './html.ts';
import type { Page } from './layout.ts';
import { endedPage, tooManyPage } from './notices.ts';
import type { Session } from './session.ts';
import { signInPage } from './views.ts';
import type { Place, Reply, Room, Visit } from './visit.ts';
import type { Words } from './words.ts';

const MAX_NAME = 256;
const MAX_PASSWORD = 1_024;

/** Where a person who has signed in wants to go. */
export const nextOf = ({ goal }: Session): Place => NEXT[goal ?? 'device'];

const NEXT = { device: '/review', grants: '/grants', code: '' } as const satisfies Record<string, Place>;

/** Is what they sign in for still there? A device request may have been decided or have run out meanwhile. */
export async function stillOpen(
  room: Room,
  { session: { request, goal } }: Visit,
): Promise<{ readonly ok: true } | { readonly ok: false; readonly instead: Reply }> {
  if (goal !== undefined) return { ok: true };
  if (request === undefined) return { ok: false, instead: { go: '' } };
  const question = await questionOf(room.desk, request.id);
  return question.ok ? { ok: true } : { ok: false, instead: { page: endedPage(room, question.refusal) } };
}

export async function showSignIn(room: Room, visit: Visit): Promise<Reply> {
  if (visit.session.identity !== undefined) return { go: nextOf(visit.session) };
  const open = await stillOpen(room, visit);
  return open.ok ? { page: signInForm(room, visit) } : open.instead;
}

export function signInForm(
  room: Room,
  { call, session }: Visit,
  said: { readonly problem?: string; readonly inFields?: boolean; readonly userName?: string } = {},
): Page {
  const { words, desk } = room;
  return signInPage(words, {
    lead: words.signIn[LEADS[session.goal ?? 'device']],
    isStep: session.goal === undefined,
    another: room.at(''),
    ...(desk.people.takePasswords && { password: room.form(session, '/sign-in') }),
    ...(room.certificateOf(call) !== undefined && { certificate: room.form(session, '/certificate') }),
    providers: [...room.providers.values()].map((provider) => ({
      form: room.form(session, '/openid'),
      name: provider.name,
      title: titleOf(words, provider),
    })),
    ...said,
  });
}

const LEADS = { device: 'lead', grants: 'leadGrants', code: 'leadCode' } as const;

/** What a provider is called on the pages. */
export const titleOf = ({ language }: Words, { title }: OpenIdProvider): string =>
  plain(inLanguage(title, language), 60);

/** User name and password. Passwords for one request are tried one after another: the fifth wrong one closes it. */
export async function takePassword(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const { desk, memory, words } = room;
  const { session, from, call } = visit;
  const userName = fields.get('user_name') ?? '';
  const password = fields.get('password') ?? '';
  // What was typed may be a password in the wrong field, so even memory holds only a digest of it.
  const named = desk.sealer.digest('sign-in name', looseUserName(userName.slice(0, MAX_NAME)));
  const wait = await memory.signInsFrom.take(from);
  if (wait > 0) return tooMany(room, visit, wait);
  const request = session.goal === undefined ? session.request : undefined;

  return memory.signInTurns.take(request?.id ?? named, async () => {
    const open = await stillOpen(room, visit);
    if (!open.ok) return open.instead;
    const budget = passwordBudget(room, named);
    let person: Person | undefined;
    try {
      person = await signedIn(room, userName, password, budget.guard);
    } catch (error) {
      if (budget.wait() === 0) throw error;
    }
    if (person === undefined && budget.wait() > 0) return tooMany(room, visit, budget.wait());
    if (person !== undefined && !person.disabled) {
      await budget.giveBack();
      const entered = await enter(room, visit, person, 'password');
      return { go: nextOf(entered), session: entered };
    }

    call.note({ reason: 'sign_in_failed', ...(request && { clientId: request.clientId }) });
    desk.log.audit('sign_in_failed', {
      ...(request && { request: request.id, client: request.clientId }),
      from: call.clientAddress,
      ...(person !== undefined && { identity: person.identity, reason: 'identity_disabled' }),
    });
    if (request !== undefined) {
      const counted = await failSignIn(desk, request.id);
      if (!counted.ok) return { page: endedPage(room, counted.refusal) };
      if (counted.value.closed) return { page: endedPage(room, { reason: 'device_closed' }) };
    }
    // The name is shown to whoever has typed it, so that only the password has to be typed again.
    const typed = plain(userName, MAX_NAME);
    return {
      page: signInForm(room, visit, { problem: words.signIn.wrong, inFields: true, userName: typed }),
    };
  });
}

function tooMany(room: Room, { call }: Visit, seconds: number): Reply {
  room.desk.log.audit('locked_out', { what: 'sign-in', from: call.clientAddress, seconds });
  return { page: tooManyPage(room, seconds) };
}

/** An empty password never reaches a directory: some take it for "nobody in particular" and say yes. */
async function signedIn(
  room: Room,
  userName: string,
  password: string,
  guard: PasswordGuard,
): Promise<Person | undefined> {
  const sound =
    userName !== '' && userName.length <= MAX_NAME && password !== '' && password.length <= MAX_PASSWORD;
  return sound ? room.desk.people.signIn(userName, password, guard) : undefined;
}

/**
 * Counts wrong passwords of one sign-in by account, whatever name it was found under. Paid before the password is compared,
 * and given back unless it was compared and wrong: while another directory is unreachable, guesses count all the same. They
 * also count when another directory accepts the password: its accounts, or who runs it, could be the attacker's.
 */
function passwordBudget({ desk, memory }: Room, named: string) {
  const paid: (() => Promise<void>)[] = [];
  let wait = 0;
  const guard: PasswordGuard = async ({ directory, id }, compare) => {
    // A name that no account has is counted in the same way: the limit does not show which names exist.
    const limit = id === undefined ? memory.failuresAsUnknown : memory.failuresAs;
    const account = desk.sealer.digest('sign-in account', `${directory}\n${id ?? named}`);
    const seconds = await limit.take(account);
    wait = Math.max(wait, seconds);
    if (seconds > 0) return undefined;
    const giveBack = async (): Promise<void> => limit.giveBack(account);
    try {
      const person = await compare();
      if (person !== undefined) paid.push(giveBack);
      return person;
    } catch (error) {
      await giveBack();
      throw error;
    }
  };
  return {
    guard,
    /** Seconds until an account that was not compared may be tried again; 0: all were compared. */
    wait: () => wait,
    giveBack: async (): Promise<void> => {
      for (const giveBack of paid) await giveBack();
    },
  };
}

/** The certificate the browser presented in this connection's handshake. */
export async function takeCertificate(room: Room, visit: Visit): Promise<Reply> {
  const { desk, memory, words } = room;
  const { call, session, from } = visit;
  const wait = await memory.signInsFrom.take(from);
  if (wait > 0) return tooMany(room, visit, wait);
  const open = await stillOpen(room, visit);
  if (!open.ok) return open.instead;

  const known = await identify(desk, room.certificateOf(call));
  if (known.ok) {
    const entered = await enter(room, visit, known.value.person, 'certificate');
    return { go: nextOf(entered), session: entered };
  }
  const { refusal } = known;
  const { request } = session;
  call.note({ reason: refusal.reason, ...(request && { clientId: request.clientId }) });
  desk.log.audit('sign_in_failed', {
    ...(request && { request: request.id, client: request.clientId }),
    from: call.clientAddress,
    by: 'certificate',
    reason: refusal.reason,
    ...('identity' in refusal && { identity: refusal.identity }),
  });
  const problem =
    refusal.reason === 'certificate_missing'
      ? words.signIn.certificateMissing
      : words.signIn.certificateWrong;
  return { page: signInForm(room, visit, { problem }) };
}

/** From here on the session has another id: one that was known before the sign-in is worth nothing after it. */
export async function enter(
  room: Room,
  { call, session }: Visit,
  person: Person,
  by: string,
  shownAs?: string,
): Promise<Session> {
  const { identity } = person;
  // Nothing of whoever was signed in before goes on to the next.
  const { shownAs: _shownAs, ended: _ended, revoked: _revoked, ...rest } = session;
  const entered: Session = {
    ...room.sessions.renew(rest),
    identity,
    since: Math.floor(issuingTime(room.desk, room.desk.now())),
    ...(shownAs !== undefined && { shownAs: plain(shownAs) }),
  };
  await carryWrongCodes(room, session, entered);
  call.note({ identity });
  room.desk.log.audit('sign_in', {
    identity,
    by,
    ...(session.request && { request: session.request.id, client: session.request.clientId }),
    from: call.clientAddress,
  });
  return entered;
}

export async function signOut(room: Room, { call, session }: Visit): Promise<Reply> {
  const { request, ended, goal, language } = session;
  try {
    await room.sessions.end(session);
  } catch (error) {
    // The browser forgets its cookie now; a copy of it is denied here already, and elsewhere when the store is back.
    if (!(error instanceof Fault)) throw error;
    room.desk.log.error('sign_out_not_announced', { request_id: call.id, ...errorFields(error) });
  }
  const fresh: Session = {
    ...room.sessions.begin(await wrongCodesOf(room, session)),
    ...(language !== undefined && { language }),
  };
  await carryWrongCodes(room, session, fresh);
  if (request === undefined || ended !== undefined || goal !== undefined) return { go: '', session: fresh };
  return { go: '/sign-in', session: { ...fresh, request } };
}

/** Another id does not begin another count. */
const carryWrongCodes = async (room: Room, from: Session, to: Session): Promise<void> =>
  room.memory.addWrongCodes(to.id, await wrongCodesOf(room, from), to.expires - room.desk.now());
