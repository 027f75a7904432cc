import { showUserCode } from '../domain/device-request.ts';
import { LANGUAGES, type Language } from '../domain/language.ts';
import type { GrantDesk } from '../grants/desk.ts';
import type { Call } from '../http/call.ts';
import { queryOf } from '../http/query.ts';
import { limitName } from '../http/rate-limit.ts';
import type { OpenIdProvider } from '../identity/openid.ts';
import { errorFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { approve, deny, showEnd, showReview } from './decide.ts';
import { codeInLink, showCode, takeCode } from './enter-code.ts';
import { isNavigation } from './fetch-metadata.ts';
import { type Fields, readForm } from './form.ts';
import type { ConfirmMemory } from './guess-limit.ts';
import { isLanguage, preferred, WORDS } from './languages.ts';
import { createSender } from './layout.ts';
import { createLook, type Look } from './look.ts';
import { showGrant, showGrants, takeRevoke } from './my-grants.ts';
import {
  expiredPage,
  failurePage,
  faultPage,
  misdirectedPage,
  missingPage,
  refusedPage,
  tooManyPage,
  unreadablePage,
  wrongMethodPage,
} from './notices.ts';
import { journeyCookie, returnFrom, takeProvider } from './openid-step.ts';
import { createSessions, type Session, sessionCookie } from './session.ts';
import { showSignIn, signOut, takeCertificate, takePassword } from './sign-in.ts';
import { FORM_TOKEN } from './views.ts';
import { aboutOf, type ConfirmRates, type Place, type Reply, type Room, type Visit } from './visit.ts';

/**
 * The pages on which a person says yes or no to a device: enter the code, sign in, review, decide.
 *
 * They work without a script. A GET never changes anything; every form carries a token that belongs to its
 * session, its kind and its device request, and after each form that did something the browser is sent on by
 * GET. Made anew for each configuration; `rates` and `memory` outlive it.
 */
export interface ConfirmDeps {
  readonly desk: GrantDesk;
  /** Where the pages are, such as `/authsvc/device`. */
  readonly basePath: string;
  /** Origin of the pages. */
  readonly url: string;
  readonly rates: ConfirmRates;
  readonly memory: ConfirmMemory;
  /** Seconds. */
  readonly sessionLifetime: number;
  readonly bodyTimeout: number;
  /** The browser's certificate, DER. Default: the one of the connection; behind a front proxy it comes otherwise. */
  readonly certificateOf?: (call: Call) => Uint8Array | undefined;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isAmbiguous?: (call: Call) => boolean;
  readonly look?: Look;
  readonly providers?: readonly OpenIdProvider[];
}

export interface ConfirmPages {
  /** `rest` is what follows the base path, without the query. */
  handle(call: Call, rest: string): Promise<void>;
  /**
   * Refuses a request on another host than the pages' own. `redirects`: it is the host of the API, where the addresses
   * that people type or have kept lead to the pages. On an unknown host a redirect could come back without end.
   */
  refuseElsewhere(call: Call, rest: string, redirects: boolean): void;
}

interface Step {
  readonly show?: (room: Room, visit: Visit) => Promise<Reply>;
  readonly take?: (room: Room, visit: Visit, fields: Fields) => Promise<Reply>;
  /** The page a person is on when this step is asked for. */
  readonly back: Place;
  /** A walk may begin here. */
  readonly begins?: true;
}

const STEPS: Readonly<Record<Place, Step>> = {
  '': { show: showCode, take: takeCode, back: '', begins: true },
  '/sign-in': { show: showSignIn, take: takePassword, back: '/sign-in' },
  '/certificate': { take: takeCertificate, back: '/sign-in' },
  '/openid': { take: takeProvider, back: '/sign-in' },
  '/review': { show: showReview, back: '/review' },
  '/approve': { take: approve, back: '/review' },
  '/deny': { take: deny, back: '/review' },
  '/sign-out': { take: signOut, back: '' },
  '/done': { show: showEnd, back: '/done' },
  '/grants': { show: showGrants, back: '/grants', begins: true },
  '/grant': { show: showGrant, back: '/grants' },
  '/revoke': { take: takeRevoke, back: '/grants' },
};

export function createConfirmPages(deps: ConfirmDeps): ConfirmPages {
  const { desk, basePath, url, rates, memory, look = createLook() } = deps;
  const { origin } = new URL(url);
  const sessions = createSessions({
    sealer: desk.sealer,
    now: desk.now,
    lifetime: deps.sessionLifetime,
    publicUrl: url,
    revocations: desk.store.revocations,
  });
  const at = (place: Place): string => basePath + place;
  const roomIn = (language: Language): Room => ({
    desk,
    memory,
    rates,
    sessions,
    words: WORDS[language],
    look,
    providers: new Map(deps.providers?.map((provider) => [provider.name, provider])),
    journeyCookie: journeyCookie(sessionCookie(url)),
    certificateOf: deps.certificateOf ?? ((call) => call.certificate()),
    at,
    redirectUri: (provider) => `${url}${at('/openid')}/${provider}`,
    form: (session, place, about) => ({
      action: at(place),
      token: sessions.formToken(session, place, about ?? aboutOf(session, place)),
    }),
  });
  const rooms = Object.fromEntries(LANGUAGES.map((language) => [language, roomIn(language)])) as Readonly<
    Record<Language, Room>
  >;
  const sender = createSender(look);

  const answer = async (room: Room, arrival: Arrival): Promise<Reply> => {
    const { call, place, session } = arrival;
    const from = limitName(call.clientAddress);
    const wait = await rates.page.take(from);
    if (wait > 0) return { page: tooManyPage(room, wait) };
    if (!isNavigation(call.request.headers)) {
      call.note({ reason: 'not_a_navigation' });
      return { page: refusedPage(room) };
    }
    if (deps.isAmbiguous?.(call) === true) return { page: unreadablePage(room, 400) };
    if (place === undefined) return { page: missingPage(room) };
    const { method } = call.request;
    if (typeof place === 'object')
      return method === 'GET'
        ? returnFrom(room, call, from, place.provider)
        : { page: wrongMethodPage(room, 'GET') };

    const { show, take, begins } = STEPS[place];
    if (show !== undefined && (method === 'GET' || method === 'HEAD')) {
      if (session !== undefined) return show(room, { call, session, from });
      if (begins !== true) return { page: expiredPage(room) };
      return show(room, { call, session: inLanguageOf(sessions.begin(), arrival), from });
    }
    if (take === undefined || method !== 'POST')
      return {
        page: wrongMethodPage(room, [show && 'GET, HEAD', take && 'POST'].filter(Boolean).join(', ')),
      };

    const sent = await readForm(call.request, origin, deps.bodyTimeout);
    if (sent.kind === 'foreign') return { page: refusedPage(room) };
    if (sent.kind === 'unreadable') return { page: unreadablePage(room, sent.status) };
    if (session === undefined) return { page: expiredPage(room) };
    const token = sent.fields.get(FORM_TOKEN) ?? '';
    if (!sessions.isFormToken(token, session, place, aboutOf(session, place, sent.fields)))
      return { page: refusedPage(room) };
    return take(room, { call, session, from }, sent.fields);
  };

  return {
    refuseElsewhere(call, rest, redirects) {
      const place = placeOf(rest);
      const { method, headers } = call.request;
      const begins = typeof place === 'string' && STEPS[place].begins === true;
      call.note({ reason: 'not_the_host_of_the_pages' });
      if (redirects && begins && (method === 'GET' || method === 'HEAD')) {
        const code = codeInLink(call);
        const query = code === undefined ? '' : `?user_code=${showUserCode(code)}`;
        return sender.go(call, `${url}${at(place)}${query}`);
      }
      const room = rooms[preferred(headers['accept-language']) ?? look.language];
      sender.page(call, misdirectedPage(room, url + at('')), { words: room.words, here: url + at('') });
    },
    async handle(call, rest) {
      const place = placeOf(rest);
      const back = place === undefined ? '' : typeof place === 'object' ? '/sign-in' : STEPS[place].back;
      const asked = languageIn(call);
      let room = rooms[asked ?? preferred(call.request.headers['accept-language']) ?? look.language];
      const where = () => ({ words: room.words, here: at(back) });
      try {
        const read = sessions.read(call.request.headers.cookie);
        room = rooms[asked ?? read?.language ?? room.words.language];
        const session = read && asked !== undefined ? { ...read, language: asked } : read;
        const reply = await answer(room, { call, place, session, asked });
        const kept = reply.session ?? (asked === undefined ? undefined : session);
        const cookies = [...(kept === undefined ? [] : [sessions.cookie(kept)]), ...(reply.cookies ?? [])];
        if ('go' in reply) sender.go(call, at(reply.go), cookies);
        else sender.page(call, reply.page, where(), cookies);
      } catch (error) {
        desk.log.error('page_failed', { request_id: call.id, ...errorFields(error) });
        call.note({ reason: error instanceof Fault ? error.code : 'failure' });
        sender.page(
          call,
          error instanceof Fault ? faultPage(room, error, back) : failurePage(room, call.id, back),
          where(),
        );
      }
    },
  };
}

/** A page of ours, or the address to which one provider sends people back. */
type Asked = Place | { readonly provider: string } | undefined;

interface Arrival {
  readonly call: Call;
  readonly place: Asked;
  readonly session: Session | undefined;
  /** The language that was chosen just now. */
  readonly asked: Language | undefined;
}

const inLanguageOf = (session: Session, { asked }: Arrival): Session =>
  asked === undefined ? session : { ...session, language: asked };

/** Path words compare without case. */
function placeOf(rest: string): Asked {
  const path = rest === '/' ? '' : rest.toLowerCase();
  if (Object.hasOwn(STEPS, path)) return path as Place;
  const provider = /^\/openid\/([a-z0-9-]+)$/.exec(path)?.[1];
  return provider === undefined ? undefined : { provider };
}

function languageIn({ request }: Call): Language | undefined {
  const asked = new URLSearchParams(queryOf(request)).get('language');
  return isLanguage(asked) ? asked : undefined;
}
