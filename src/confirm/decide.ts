import type { Person } from '../domain/person.ts';
import type { Refusal } from '../domain/refusal.ts';
import { nameOfIntegration } from '../grants/desk.ts';
import { confirmDevice, denyDevice, mayConfirm, questionOf } from '../grants/device-decision.ts';
import { endedPage, refusedPage } from './notices.ts';
import type { Session } from './session.ts';
import { endPage, reviewPage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

type Request = NonNullable<Session['request']>;

/** Reviewing and deciding need a person who is signed in and whom the directory still knows. */
async function whoDecides(
  room: Room,
  { session }: Visit,
): Promise<{ readonly person: Person; readonly request: Request } | { readonly instead: Reply }> {
  const { request, identity, since: _since, shownAs: _shownAs, goal: _goal, ...rest } = session;
  if (request === undefined) return { instead: { go: '' } };
  if (identity === undefined) return { instead: { go: '/sign-in' } };
  const person = await room.desk.people.byIdentity(identity);
  if (person !== undefined) return { person, request };
  return { instead: { go: '/sign-in', session: room.sessions.renew({ ...rest, request }) } };
}

export async function showReview(room: Room, visit: Visit): Promise<Reply> {
  if (visit.session.ended !== undefined) return { go: '/done' };
  const who = await whoDecides(room, visit);
  return 'instead' in who ? who.instead : review(room, visit, who.person, who.request);
}

async function review(
  room: Room,
  { call, session }: Visit,
  person: Person,
  request: Request,
  status = 200,
): Promise<Reply> {
  const question = await questionOf(room.desk, request.id);
  if (!question.ok) return { page: endedPage(room, question.refusal) };
  const allowed = await mayConfirm(room.desk, question.value, person);
  call.note({
    identity: person.identity,
    clientId: request.clientId,
    ...(!allowed.ok && { reason: allowed.refusal.reason }),
  });
  const page = reviewPage(room.words, {
    question: question.value,
    code: request.code,
    person: session.shownAs ?? person.displayName,
    look: room.look,
    now: room.desk.now(),
    ...(!allowed.ok && { refusal: allowed.refusal }),
    approve: room.form(session, '/approve'),
    deny: room.form(session, '/deny'),
    signOut: room.form(session, '/sign-out'),
    status,
  });
  return { page };
}

export async function approve(room: Room, visit: Visit): Promise<Reply> {
  if (visit.session.identity === undefined) return { page: refusedPage(room) };
  const who = await whoDecides(room, visit);
  if ('instead' in who) return who.instead;
  const { person, request } = who;
  const confirmed = await confirmDevice(room.desk, request.id, person);
  visit.call.note({ identity: person.identity, clientId: request.clientId });
  if (confirmed.ok) return { go: '/done', session: { ...visit.session, ended: 'approved' } };
  // Not allowed, or not any more: the review page says why.
  if (isAboutPerson(confirmed.refusal)) return review(room, visit, person, request, 403);
  return { page: endedPage(room, confirmed.refusal) };
}

export async function deny(room: Room, visit: Visit): Promise<Reply> {
  if (visit.session.identity === undefined) return { page: refusedPage(room) };
  const who = await whoDecides(room, visit);
  if ('instead' in who) return who.instead;
  const { person, request } = who;
  const denied = await denyDevice(room.desk, request.id, person);
  visit.call.note({ identity: person.identity, clientId: request.clientId });
  if (!denied.ok) return { page: endedPage(room, denied.refusal) };
  return { go: '/done', session: { ...visit.session, ended: 'denied' } };
}

export async function showEnd(room: Room, { session }: Visit): Promise<Reply> {
  const { request, ended, identity } = session;
  if (request === undefined || ended === undefined) return { go: '' };
  const page = endPage(room.words, {
    ended,
    integrationName: nameOfIntegration(room.desk, request.clientId),
    another: room.at(''),
    ...(room.look.myGrants && identity !== undefined && { mine: room.at('/grants') }),
    ...(identity !== undefined && { signOut: room.form(session, '/sign-out') }),
  });
  return { page };
}

const ABOUT_PERSON: ReadonlySet<Refusal['reason']> = new Set<Refusal['reason']>([
  'identity_disabled',
  'identity_not_allowed',
  'scope_exceeds_access',
  'scope_exceeds_integration',
]);

const isAboutPerson = (refusal: Refusal): boolean => ABOUT_PERSON.has(refusal.reason);
