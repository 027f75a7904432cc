import type { Person } from '../domain/person.ts';
import { nameOfIntegration } from '../grants/desk.ts';
import { grantsHeldBy, heldGrant, isAwaited, revokeHeld } from '../grants/held.ts';
import { queryOf } from '../http/query.ts';
import type { Fields } from './form.ts';
import { grantsPage, revokePage } from './grant-views.ts';
import { missingPage } from './notices.ts';
import { noticePage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

/** What a person has approved, and its end. Nothing of anybody else's is shown, nor whether it exists. */
type Who = { readonly person: Person } | { readonly instead: Reply };

async function whoLooks(room: Room, { call, session }: Visit): Promise<Who> {
  if (!room.look.myGrants) return { instead: { page: missingPage(room) } };
  const { identity, since: _since, shownAs: _shownAs, ended: _ended, ...rest } = session;
  if (identity === undefined) return { instead: { go: '/sign-in', session: { ...session, goal: 'grants' } } };
  const person = await room.desk.people.byIdentity(identity);
  call.note({ identity });
  if (person !== undefined && !person.disabled) return { person };
  return { instead: { go: '/sign-in', session: room.sessions.renew({ ...rest, goal: 'grants' }) } };
}

export async function showGrants(room: Room, visit: Visit): Promise<Reply> {
  const who = await whoLooks(room, visit);
  if ('instead' in who) return who.instead;
  const { revoked, ...session } = visit.session;
  const after = cursorIn(new URLSearchParams(queryOf(visit.call.request)).get('after'));
  const held = await grantsHeldBy(room.desk, who.person.identity, after);
  const { request, ended } = session;
  const awaits =
    request !== undefined &&
    ended === 'approved' &&
    (await isAwaited(room.desk, who.person.identity, request.id));
  const page = grantsPage(room, {
    grants: held.grants,
    person: session.shownAs ?? who.person.displayName,
    first: after === undefined,
    signOut: room.form(session, '/sign-out'),
    ...(revoked !== undefined && { revoked }),
    ...(awaits && { awaited: nameOfIntegration(room.desk, request.clientId) }),
    ...(held.next !== undefined && { next: held.next }),
  });
  return revoked === undefined ? { page } : { page, session };
}

/** One of them, and the question whether to revoke it. */
export async function showGrant(room: Room, visit: Visit): Promise<Reply> {
  const who = await whoLooks(room, visit);
  if ('instead' in who) return who.instead;
  const asked = new URLSearchParams(queryOf(visit.call.request)).get('id');
  const held = await heldGrant(room.desk, who.person.identity, idIn(asked));
  if (!held.ok) return { page: notThere(room) };
  return { page: revokePage(room, held.value, room.form(visit.session, '/revoke', held.value.id)) };
}

export async function takeRevoke(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const who = await whoLooks(room, visit);
  if ('instead' in who) return who.instead;
  const revoked = await revokeHeld(room.desk, who.person.identity, idIn(fields.get('grant')));
  if (!revoked.ok) return { page: notThere(room) };
  const { clientId, id } = revoked.value;
  visit.call.note({ clientId, grantId: id });
  const name = nameOfIntegration(room.desk, clientId);
  return { go: '/grants', session: { ...visit.session, revoked: name.slice(0, 80) } };
}

const notThere = (room: Room) =>
  noticePage(room.words.revoke.missing, {
    status: 404,
    link: { href: room.at('/grants'), text: room.words.revoke.back },
  });

const idIn = (text: string | null | undefined): string =>
  text !== null && text !== undefined && /^[\w-]{1,128}$/.test(text) ? text : '-';

/** Where a page of the list begins, as a store may have said it. */
const cursorIn = (text: string | null): string | undefined =>
  text !== null && /^[\w .+-]{1,200}$/.test(text) ? text : undefined;
