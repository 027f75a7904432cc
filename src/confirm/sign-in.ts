import type { Person } from '../domain/person.ts';
import { identify } from '../grants/certificate-grant.ts';
import { failSignIn, questionOf } from '../grants/device-decision.ts';
import { wrongCodesOf } from './enter-code.ts';
import type { Fields } from './form.ts';
import { endedPage, tooManyPage } from './notices.ts';
import type { Session } from './session.ts';
import { signInPage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

const MAX_NAME = 256;
const MAX_PASSWORD = 1_024;

export async function showSignIn(room: Room, visit: Visit): Promise<Reply> {
  const { request, identity } = visit.session;
  if (request === undefined) return { go: '' };
  if (identity !== undefined) return { go: '/review' };
  const question = await questionOf(room.desk, request.id);
  return { page: question.ok ? signInForm(room, visit) : endedPage(room, question.refusal) };
}

const signInForm = (
  room: Room,
  { call, session }: Visit,
  problem: { readonly problem?: string; readonly inFields?: boolean } = {},
) =>
  signInPage(room.words, {
    form: room.form(session, '/sign-in'),
    another: room.at(''),
    ...(room.certificateOf(call) !== undefined && { certificate: room.form(session, '/certificate') }),
    ...problem,
  });

/** User name and password. Passwords for one request are tried one after another: the fifth wrong one closes it. */
export async function takePassword(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const { desk, memory, words } = room;
  const { session, from } = visit;
  const { request } = session;
  if (request === undefined) return { go: '' };
  const userName = fields.get('user_name') ?? '';
  const password = fields.get('password') ?? '';
  // What was typed may be a password in the wrong field, so even memory holds only a digest of it. In the form in
  // which names are compared: another spelling of one name has no budget of its own.
  const named = desk.sealer.digest(
    'sign-in name',
    userName.slice(0, MAX_NAME).normalize('NFC').toLowerCase(),
  );
  const wait = await memory.signInsFrom.take(from);
  if (wait > 0) return { page: tooManyPage(room, wait) };

  return memory.signInTurns.take(request.id, async () => {
    const question = await questionOf(desk, request.id);
    if (!question.ok) return { page: endedPage(room, question.refusal) };
    // Paid before the password is looked at, and given back unless it was wrong.
    const waitAs = await memory.failuresAs.take(named);
    if (waitAs > 0) return { page: tooManyPage(room, waitAs) };
    let person: Person | undefined;
    try {
      person = await signedIn(room, userName, password);
    } catch (error) {
      await memory.failuresAs.giveBack(named);
      throw error;
    }
    if (person !== undefined && !person.disabled) {
      await memory.failuresAs.giveBack(named);
      return enter(room, visit, person, 'password');
    }

    visit.call.note({ reason: 'sign_in_failed', clientId: request.clientId });
    desk.log.audit('sign_in_failed', {
      request: request.id,
      client: request.clientId,
      from: visit.call.clientAddress,
      ...(person !== undefined && { identity: person.identity, reason: 'identity_disabled' }),
    });
    const counted = await failSignIn(desk, request.id);
    if (!counted.ok) return { page: endedPage(room, counted.refusal) };
    if (counted.value.closed) return { page: endedPage(room, { reason: 'device_closed' }) };
    return { page: signInForm(room, visit, { problem: words.signIn.wrong, inFields: true }) };
  });
}

/** An empty password never reaches a directory: some take it for "nobody in particular" and say yes. */
async function signedIn(room: Room, userName: string, password: string): Promise<Person | undefined> {
  const sound =
    userName !== '' && userName.length <= MAX_NAME && password !== '' && password.length <= MAX_PASSWORD;
  return sound ? room.desk.people.signIn(userName, password) : undefined;
}

/** The certificate the browser presented in this connection's handshake. */
export async function takeCertificate(room: Room, visit: Visit): Promise<Reply> {
  const { desk, memory, words } = room;
  const { call, session, from } = visit;
  const { request } = session;
  if (request === undefined) return { go: '' };
  const wait = await memory.signInsFrom.take(from);
  if (wait > 0) return { page: tooManyPage(room, wait) };
  const question = await questionOf(desk, request.id);
  if (!question.ok) return { page: endedPage(room, question.refusal) };

  const known = await identify(desk, room.certificateOf(call));
  if (known.ok) return enter(room, visit, known.value.person, 'certificate');
  const { refusal } = known;
  call.note({ reason: refusal.reason, clientId: request.clientId });
  desk.log.audit('sign_in_failed', {
    request: request.id,
    client: request.clientId,
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
async function enter(room: Room, { call, session }: Visit, person: Person, by: string): Promise<Reply> {
  const { identity } = person;
  const entered: Session = { ...room.sessions.renew(session), identity };
  await carryWrongCodes(room, session, entered);
  call.note({ identity });
  room.desk.log.audit('sign_in', {
    identity,
    by,
    request: session.request?.id,
    client: session.request?.clientId,
    from: call.clientAddress,
  });
  return { go: '/review', session: entered };
}

export async function signOut(room: Room, { session }: Visit): Promise<Reply> {
  const { request, ended } = session;
  const fresh = room.sessions.begin(await wrongCodesOf(room, session));
  await carryWrongCodes(room, session, fresh);
  if (request === undefined || ended !== undefined) return { go: '', session: fresh };
  return { go: '/sign-in', session: { ...fresh, request } };
}

/** Another id does not begin another count. */
const carryWrongCodes = async (room: Room, from: Session, to: Session): Promise<void> =>
  room.memory.addWrongCodes(to.id, await wrongCodesOf(room, from), to.expires - room.desk.now());
