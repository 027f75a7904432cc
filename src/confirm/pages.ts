import type { GrantDesk } from '../grants/desk.ts';
import type { Call } from '../http/call.ts';
import { limitName } from '../http/rate-limit.ts';
import { errorFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { approve, deny, showEnd, showReview } from './decide.ts';
import { showCode, takeCode } from './enter-code.ts';
import { type Fields, readForm } from './form.ts';
import type { ConfirmMemory } from './guess-limit.ts';
import { createSender } from './layout.ts';
import {
  expiredPage,
  failurePage,
  faultPage,
  missingPage,
  refusedPage,
  tooManyPage,
  unreadablePage,
  wrongMethodPage,
} from './notices.ts';
import { createSessions } from './session.ts';
import { showSignIn, signOut, takeCertificate, takePassword } from './sign-in.ts';
import { FORM_TOKEN } from './views.ts';
import { aboutRequest, type ConfirmRates, type Place, type Reply, type Room, type Visit } from './visit.ts';
import { english, type Words } from './words.ts';

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
  readonly publicUrl: string;
  readonly rates: ConfirmRates;
  readonly memory: ConfirmMemory;
  /** Seconds. */
  readonly sessionLifetime: number;
  readonly bodyTimeout: number;
  /** The browser's certificate, DER. Default: the one of the connection; behind a front proxy it comes otherwise. */
  readonly certificateOf?: (call: Call) => Uint8Array | undefined;
  readonly brand?: string;
  readonly words?: Words;
}

export interface ConfirmPages {
  /** `rest` is what follows the base path, without the query. */
  handle(call: Call, rest: string): Promise<void>;
}

interface Step {
  readonly show?: (room: Room, visit: Visit) => Promise<Reply>;
  readonly take?: (room: Room, visit: Visit, fields: Fields) => Promise<Reply>;
  /** The page a person is on when this step is asked for. */
  readonly back: Place;
}

const STEPS: Readonly<Record<Place, Step>> = {
  '': { show: showCode, take: takeCode, back: '' },
  '/sign-in': { show: showSignIn, take: takePassword, back: '/sign-in' },
  '/certificate': { take: takeCertificate, back: '/sign-in' },
  '/review': { show: showReview, back: '/review' },
  '/approve': { take: approve, back: '/review' },
  '/deny': { take: deny, back: '/review' },
  '/sign-out': { take: signOut, back: '/review' },
  '/done': { show: showEnd, back: '/done' },
};

export function createConfirmPages(deps: ConfirmDeps): ConfirmPages {
  const { desk, basePath, publicUrl, rates, memory, words = english, brand = 'gatehouse' } = deps;
  const { origin } = new URL(publicUrl);
  const sessions = createSessions({
    sealer: desk.sealer,
    now: desk.now,
    lifetime: deps.sessionLifetime,
    publicUrl,
  });
  const at = (place: Place): string => basePath + place;
  const room: Room = {
    desk,
    memory,
    rates,
    sessions,
    words,
    certificateOf: deps.certificateOf ?? ((call) => call.certificate()),
    at,
    form: (session, place) => ({
      action: at(place),
      token: sessions.formToken(session, place, aboutRequest(session, place)),
    }),
  };
  const sender = createSender(words, brand);

  const answer = async (call: Call, place: Place | undefined): Promise<Reply> => {
    const from = limitName(call.clientAddress);
    const wait = await rates.page.take(from);
    if (wait > 0) return { page: tooManyPage(room, wait) };
    if (place === undefined) return { page: missingPage(room) };
    const { show, take } = STEPS[place];
    const { method } = call.request;

    if (show !== undefined && (method === 'GET' || method === 'HEAD')) {
      const session = sessions.read(call.request.headers.cookie);
      if (session !== undefined) return show(room, { call, session, from });
      if (place === '') return show(room, { call, session: sessions.begin(), from });
      return { page: expiredPage(room) };
    }
    if (take === undefined || method !== 'POST')
      return {
        page: wrongMethodPage(room, [show && 'GET, HEAD', take && 'POST'].filter(Boolean).join(', ')),
      };

    const sent = await readForm(call.request, origin, deps.bodyTimeout);
    if (sent.kind === 'foreign') return { page: refusedPage(room) };
    if (sent.kind === 'unreadable') return { page: unreadablePage(room, sent.status) };
    const session = sessions.read(call.request.headers.cookie);
    if (session === undefined) return { page: expiredPage(room) };
    const token = sent.fields.get(FORM_TOKEN) ?? '';
    if (!sessions.isFormToken(token, session, place, aboutRequest(session, place)))
      return { page: refusedPage(room) };
    return take(room, { call, session, from }, sent.fields);
  };

  return {
    async handle(call, rest) {
      const place = placeOf(rest);
      try {
        const reply = await answer(call, place);
        const cookie = reply.session && sessions.cookie(reply.session);
        if ('go' in reply) sender.go(call, at(reply.go), cookie);
        else sender.page(call, reply.page, cookie);
      } catch (error) {
        const back = place === undefined ? '' : STEPS[place].back;
        desk.log.error('page_failed', { request: call.id, ...errorFields(error) });
        call.note({ reason: error instanceof Fault ? error.code : 'failure' });
        sender.page(
          call,
          error instanceof Fault ? faultPage(room, error, back) : failurePage(room, call.id, back),
        );
      }
    },
  };
}

/** Path words compare without case. */
function placeOf(rest: string): Place | undefined {
  const path = rest === '/' ? '' : rest.toLowerCase();
  return Object.hasOwn(STEPS, path) ? (path as Place) : undefined;
}
