import type { Refusal } from '../../domain/refusal.ts';
import type { Fault } from '../../ports/fault.ts';
import type { PageDeps, PagePath } from '../page-handler.ts';
import { html, type Markup } from './html.ts';
import type { Page } from './layout.ts';
import { fillIn, type Messages } from './messages/languages.ts';

type NoticeDeps = Pick<PageDeps, 'messages' | 'urlFor' | 'transaction' | 'offersDevice' | 'theme'>;

interface NoticeText {
  readonly title: string;
  readonly lead: string;
  readonly small?: string;
}

interface NoticeOptions {
  readonly status: number;
  /** It is undefined if the user can only return to the app. */
  readonly link: { readonly href: string; readonly text: string } | undefined;
  readonly retryAfter?: number;
  readonly allow?: string;
}

const NOTICE_STATUS = {
  alreadyApproved: 409,
  alreadyDenied: 409,
  badRequest: 400,
  closed: 409,
  codeExpired: 410,
  codeInvalid: 410,
  expired: 403,
  methodNotAllowed: 405,
  notFound: 404,
  rejected: 403,
  withdrawn: 409,
} as const;
type Notice = keyof typeof NOTICE_STATUS;

const renderNoticeIcon = (kind: 'quiet' | 'warn'): Markup =>
  html`<svg class="mark ${kind}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="M12 7.5v5.5M12 16.4v.1"/></svg>`;

/** A page with a message and a link. */
export function renderNotice(text: NoticeText, { link, ...page }: NoticeOptions): Page {
  return {
    ...page,
    title: text.title,
    body: html`${renderNoticeIcon(page.status === 429 || page.status >= 500 ? 'warn' : 'quiet')}
<h1>${text.title}</h1>
<p>${text.lead}</p>
${text.small !== undefined && html`<p class="soft">${text.small}</p>`}
${link !== undefined && html`<a class="button second" href="${link.href}">${link.text}</a>`}`,
  };
}

export function noticePage(
  { messages, urlFor, transaction, offersDevice, theme }: NoticeDeps,
  notice: Notice,
  options: Partial<NoticeOptions> = {},
): Page {
  const hasStartPage = offersDevice || theme.myGrants;
  const link = transaction === undefined && hasStartPage ? { href: urlFor(''), text: messages.startAgain } : undefined;
  return renderNotice(messages[notice], { status: NOTICE_STATUS[notice], link, ...options });
}

const ENDED_NOTICES: Partial<Record<Refusal['reason'], Notice>> = {
  device_code_unknown: 'codeInvalid',
  device_code_expired: 'codeExpired',
  device_code_used: 'alreadyApproved',
  device_denied: 'alreadyDenied',
  device_closed: 'closed',
};

/** For a device request that can no longer be decided. Any other reason: the integration has been removed. */
export const endedPage = (deps: NoticeDeps, { reason }: Pick<Refusal, 'reason'>): Page =>
  noticePage(deps, ENDED_NOTICES[reason] ?? 'withdrawn');

/** For an authorization request that cannot be continued, and whose client is unknown or must not learn of it. */
export const authorizationNotice = (
  { messages: { authorization } }: Pick<PageDeps, 'messages'>,
  notice: keyof Messages['authorization']['notices'],
  status: number,
  detail?: string,
): Page =>
  renderNotice(
    { ...authorization.notices[notice], ...(detail !== undefined && { small: detail }) },
    { status, link: undefined },
  );

/** `signInUrl`: where signing in lifts the limit. */
export function tooManyAttemptsPage(
  { messages, urlFor, transaction }: NoticeDeps,
  seconds: number,
  signInUrl?: string,
): Page {
  const { title, lead, leadSignIn } = messages.tooManyAttempts;
  const wait = messages.formatIn(seconds);
  return renderNotice(
    { title, lead: fillIn(signInUrl === undefined ? lead : leadSignIn, wait) },
    {
      status: 429,
      retryAfter: seconds,
      link:
        signInUrl === undefined
          ? { href: urlFor(transaction === undefined ? '' : '/sign-in'), text: messages.tryAgain }
          : { href: signInUrl, text: messages.signIn.title },
    },
  );
}

const GRANT_PATHS: ReadonlySet<PagePath> = new Set(['/grants', '/grant', '/revoke']);

/** The code of a device and the request of an app remain valid. */
function formatRetry({ messages: { retryLater }, transaction }: NoticeDeps, returnTo: PagePath): string {
  if (transaction !== undefined) return retryLater.authorization;
  return GRANT_PATHS.has(returnTo) ? retryLater.other : retryLater.device;
}

function getFaultText(deps: NoticeDeps, { code }: Fault, retry: string): NoticeText {
  const { overloaded, directoryUnavailable, serviceUnavailable } = deps.messages;
  if (code === 'overloaded') return overloaded;
  const { title, lead } = code === 'directory_unavailable' ? directoryUnavailable : serviceUnavailable;
  return { title, lead: `${lead} ${retry}` };
}

/** The link leads back to the page the user was on. `retry` follows what has happened. */
export const faultPage = (
  deps: NoticeDeps,
  fault: Fault,
  returnTo: PagePath,
  retry = formatRetry(deps, returnTo),
): Page =>
  renderNotice(getFaultText(deps, fault, retry), {
    status: 503,
    retryAfter: fault.retryAfter,
    link: { href: deps.urlFor(returnTo), text: deps.messages.tryAgain },
  });

export const internalErrorPage = (
  { messages: { internalError, tryAgain }, urlFor }: NoticeDeps,
  requestId: string,
  returnTo: PagePath,
): Page =>
  renderNotice(
    { ...internalError, small: fillIn(internalError.reference, requestId) },
    { status: 500, link: { href: urlFor(returnTo), text: tryAgain } },
  );
