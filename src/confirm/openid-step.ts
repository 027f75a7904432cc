import { z } from 'zod';
import type { Person } from '../domain/person.ts';
import type { Call } from '../http/call.ts';
import { queryOf } from '../http/query.ts';
import type { Sealer } from '../ports/sealer.ts';
import { cookieFlags, cookieValues } from './cookies.ts';
import type { Fields } from './form.ts';
import { expiredPage, refusedPage, tooManyPage } from './notices.ts';
import { parsed, Session, sameText } from './session.ts';
import { enter, nextOf, signInForm, stillOpen, titleOf } from './sign-in.ts';
import { movingPage } from './views.ts';
import type { Reply, Room, Visit } from './visit.ts';

/**
 * The way to an OpenID provider and back. The session's cookie is not sent when another site sends a person here, so
 * what is needed is kept in a second sealed cookie that is: for ten minutes, for one provider, for one answer.
 */
const Journey = z.strictObject({
  provider: z.string(),
  state: z.string(),
  nonce: z.string(),
  verifier: z.string(),
  expires: z.number(),
  session: Session,
});
type Journey = z.output<typeof Journey>;

const PURPOSE = 'openid journey';
const LIFETIME = 600;

export const journeyCookie = (session: string): string => `${session}-openid`;

const journeyEnds = (name: string): string => `${name}=; ${cookieFlags(name, 0, 'Lax')}`;

function writeJourney(sealer: Sealer, name: string, journey: Journey): string {
  return `${name}=${sealer.seal(PURPOSE, JSON.stringify(journey))}; ${cookieFlags(name, LIFETIME, 'Lax')}`;
}

function readJourney(room: Room, call: Call): Journey | undefined {
  const values = cookieValues(call.request.headers.cookie, room.journeyCookie);
  if (values.length !== 1 || values[0] === undefined) return undefined;
  const text = room.desk.sealer.open(PURPOSE, values[0]);
  const journey = text === undefined ? undefined : Journey.safeParse(parsed(text));
  if (journey?.success !== true) return undefined;
  return room.desk.now() < journey.data.expires ? journey.data : undefined;
}

/** The button “Sign in with …”. The answer is a page that leads on: a form may not lead to another site. */
export async function takeProvider(room: Room, visit: Visit, fields: Fields): Promise<Reply> {
  const provider = room.providers.get(fields.get('provider') ?? '');
  if (provider === undefined) return { page: refusedPage(room) };
  const open = await stillOpen(room, visit);
  if (!open.ok) return open.instead;
  const { url, expects } = await provider.begin(room.redirectUri(provider.name));
  const journey: Journey = {
    provider: provider.name,
    ...expects,
    expires: Math.floor(room.desk.now()) + LIFETIME,
    session: visit.session,
  };
  const { leaving } = room.words;
  return {
    page: movingPage({
      title: leaving.title,
      lead: leaving.lead(titleOf(room.words, provider)),
      next: leaving.next,
      to: url,
    }),
    cookies: [writeJourney(room.desk.sealer, room.journeyCookie, journey)],
  };
}

/** The person comes back from the provider. Whatever the answer is, the journey is over. */
export async function returnFrom(room: Room, call: Call, from: string, name: string): Promise<Reply> {
  const reply = await arrive(room, call, from, name);
  return { ...reply, cookies: [journeyEnds(room.journeyCookie)] };
}

async function arrive(room: Room, call: Call, from: string, name: string): Promise<Reply> {
  const journey = readJourney(room, call);
  const provider = room.providers.get(name);
  const query = queryOf(call.request);
  const states = new URLSearchParams(query).getAll('state');
  if (journey === undefined) return { page: expiredPage(room) };
  // Another provider's answer, or an answer to another question than this browser's.
  if (provider === undefined || journey.provider !== name || !sameText(states[0] ?? '', journey.state))
    return { page: refusedPage(room) };
  const wait = await room.memory.signInsFrom.take(from);
  if (wait > 0) return { page: tooManyPage(room, wait) };

  const visit: Visit = { call, session: journey.session, from };
  const open = await stillOpen(room, visit);
  if (!open.ok) return open.instead;
  const { words, desk } = room;
  const answer = await provider.finish(new URL(`${room.redirectUri(name)}?${query}`), journey);
  const failed = (reason: string, problem: string, person?: Person): Reply => {
    call.note({ reason });
    desk.log.audit('sign_in_failed', {
      by: 'openid',
      provider: name,
      from: call.clientAddress,
      reason,
      ...(person !== undefined && { identity: person.identity }),
    });
    return { page: signInForm(room, visit, { problem }) };
  };
  if (answer.kind === 'cancelled') return failed('openid_cancelled', words.signIn.cancelled);
  if (answer.kind === 'refused') {
    desk.log.warn('openid_refused', { request_id: call.id, provider: name, why: answer.why });
    return failed('openid_refused', words.signIn.notAccepted);
  }
  const person = await desk.people.byClaim(provider.directory, answer.claim);
  if (person === undefined) return failed('identity_unknown', words.signIn.unknown);
  if (person.disabled) return failed('identity_disabled', words.signIn.unknown, person);

  const isNameless =
    person.identity.endsWith(`:${person.displayName}`) || person.displayName === answer.claim.value;
  const entered = await enter(room, visit, person, 'openid', isNameless ? answer.shownAs : undefined);
  const { returned } = words;
  // Not a redirect: it would still count as coming from the other site, and the session's cookie would stay behind.
  return {
    session: entered,
    page: movingPage({
      title: returned.title,
      lead: returned.lead,
      next: returned.next,
      to: room.at(nextOf(entered)),
    }),
  };
}
