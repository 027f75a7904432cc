import type { Refusal, RefusalReason } from '../domain/refusal.ts';
import type { Fault, FaultCode } from '../ports/fault.ts';
import type { Page } from './layout.ts';
import { noticePage } from './views.ts';
import type { Place, Room } from './visit.ts';

type Said = Pick<Room, 'words' | 'at'>;

const startAgain = ({ words, at }: Said) => ({ href: at(''), text: words.startAgain });

/** What has become of a request that can no longer be decided, for somebody who has shown its code. */
const ENDS = {
  device_code_unknown: { said: 'gone', status: 410 },
  device_code_expired: { said: 'ranOut', status: 410 },
  device_code_spent: { said: 'spent', status: 409 },
  device_denied: { said: 'alreadyDenied', status: 409 },
  device_closed: { said: 'closed', status: 409 },
} as const satisfies Partial<Record<RefusalReason, { said: keyof Room['words']; status: number }>>;

const hasEnd = (reason: RefusalReason): reason is keyof typeof ENDS => Object.hasOwn(ENDS, reason);

export function endedPage(room: Said, { reason }: Refusal): Page {
  // Anything else: the integration was taken away, or its device flow, since the device asked.
  const { said, status } = hasEnd(reason) ? ENDS[reason] : ({ said: 'withdrawn', status: 409 } as const);
  return noticePage(room.words[said], { status, link: startAgain(room) });
}

/** `signIn`: where to sign in, if that helps. */
export function tooManyPage({ words, at }: Said, seconds: number, signIn?: string): Page {
  const { tooMany, tryAgain, minutes } = words;
  const wait = minutes(seconds);
  return noticePage(
    { title: tooMany.title, lead: signIn === undefined ? tooMany.lead(wait) : tooMany.leadSignIn(wait) },
    {
      status: 429,
      retryAfter: seconds,
      link:
        signIn === undefined ? { href: at(''), text: tryAgain } : { href: signIn, text: words.signIn.title },
    },
  );
}

export const expiredPage = (room: Said): Page =>
  noticePage(room.words.expired, { status: 403, link: startAgain(room) });

export const refusedPage = (room: Said): Page =>
  noticePage(room.words.refused, { status: 403, link: startAgain(room) });

export const unreadablePage = (room: Said, status: number): Page =>
  noticePage(room.words.unreadable, { status, link: startAgain(room) });

export const missingPage = (room: Said): Page =>
  noticePage(room.words.missingPage, { status: 404, link: startAgain(room) });

/** The pages are on another host. RFC 9110 §15.5.20. */
export const misdirectedPage = (room: Said, pages: string): Page =>
  noticePage(room.words.missingPage, { status: 421, link: { href: pages, text: room.words.startAgain } });

export const wrongMethodPage = (room: Said, allow: string): Page =>
  noticePage(room.words.wrongMethod, { status: 405, allow, link: startAgain(room) });

const FAULTS: Partial<Record<FaultCode, 'busy' | 'directoryAway'>> = {
  overloaded: 'busy',
  directory_unavailable: 'directoryAway',
};

/** Our own failure. It is never told as the person's mistake, and the way back leads to the page they were on. */
export const faultPage = (room: Said, fault: Fault, back: Place): Page =>
  noticePage(room.words[FAULTS[fault.code] ?? 'away'], {
    status: 503,
    retryAfter: fault.retryAfter,
    link: { href: room.at(back), text: room.words.tryAgain },
  });

export const failurePage = (room: Said, callId: string, back: Place): Page =>
  noticePage(
    { ...room.words.failed, small: room.words.failed.reference(callId) },
    { status: 500, link: { href: room.at(back), text: room.words.tryAgain } },
  );
