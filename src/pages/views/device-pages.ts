import { formatUserCode, MAX_DEVICE_NAME_LENGTH } from '../../domain/device-request.ts';
import type { Epoch } from '../../domain/grant.ts';
import { localize } from '../../domain/language.ts';
import type { Refusal } from '../../domain/refusal.ts';
import { formatScope, parseScope, type Scope } from '../../domain/scope.ts';
import { getIntegrationName } from '../../grants/deps.ts';
import type { DeviceApprovalRequest } from '../../grants/device-grant.ts';
import type { OpenIdProvider } from '../../identity/openid-provider.ts';
import { getFormSubject, type PageDeps, type PagePath, type PageRequest } from '../page-handler.ts';
import type { Session } from '../session.ts';
import { html, type Markup, sanitizeText } from './html.ts';
import type { Page } from './layout.ts';
import { fillIn, type Messages } from './messages/languages.ts';
import { describeScope } from './scope-text.ts';

/** The field of the CSRF token. */
export const FORM_TOKEN = 'form_token';

/** `subject`: the grant; forms about a device request take it from the session. */
export function renderForm(
  deps: PageDeps,
  session: Session,
  path: PagePath,
  content: Markup,
  subject = getFormSubject(deps, session, path),
): Markup {
  const { sessions, urlFor } = deps;
  const token = sessions.createFormToken(session, path, subject);
  return html`<form method="post" action="${urlFor(path)}"><input type="hidden" name="${FORM_TOKEN}" value="${token}">${content}</form>`;
}

export const renderSignOut = (deps: PageDeps, session: Session, displayName: string, label: string): Markup =>
  html`<div class="who">
<span>${deps.messages.signedInAs}${renderName(displayName)}</span>
${renderForm(deps, session, '/sign-out', html`<button class="link" type="submit">${label}</button>`)}
</div>`;

export const renderAlert = (text: string): Markup => html`<p class="note bad" role="alert" id="problem">${text}</p>`;

/** `bdi` isolates the direction of a name from the text around it. */
export const renderName = (text: string): Markup => html`<strong><bdi>${sanitizeText(text)}</bdi></strong>`;

const renderProgress = (messages: Messages, current: number): Markup =>
  html`<p class="step"><span class="bar" aria-hidden="true">${[1, 2, 3].map((step) => html`<i${step <= current && html` class="on"`}></i>`)}</span>${fillIn(messages.step, current, 3)}</p>`;

const renderMyGrantsLink = ({ messages, urlFor }: PageDeps): Markup =>
  html`<a class="quiet" href="${urlFor('/grants')}">${messages.grants.title}</a>`;

export function codePage(
  deps: PageDeps,
  session: Session,
  { typed, prefilled, problem }: { typed: string; prefilled?: boolean; problem?: string },
): Page {
  const { messages } = deps;
  const { code } = messages;
  const input = html`
<label for="user_code">${code.label}</label>
<input class="code" type="text" id="user_code" name="user_code" value="${typed}" required maxlength="24" autocomplete="off" autocapitalize="characters" autocorrect="off" spellcheck="false" inputmode="text" enterkeyhint="next" aria-describedby="${problem === undefined ? '' : 'problem '}code-hint"${problem !== undefined && html` aria-invalid="true"`}>
<p class="hint" id="code-hint">${code.hint}</p>
<button type="submit">${messages.next}</button>
`;
  return {
    status: problem === undefined ? 200 : 400,
    title: problem === undefined ? code.title : fillIn(messages.errorTitle, code.title),
    body: html`${renderProgress(messages, 1)}
<h1>${code.title}</h1>
<p>${prefilled === true ? code.leadPrefilled : code.lead}</p>
${problem !== undefined && renderAlert(problem)}
${renderForm(deps, session, '', input)}
${deps.theme.myGrants && html`<p class="hint">${renderMyGrantsLink(deps)}</p>`}`,
  };
}

interface SignInState {
  readonly problem?: string;
  readonly isFieldError?: boolean;
  readonly userName?: string;
}

const SIGN_IN_LEADS = { device: 'lead', grants: 'leadGrants', code: 'leadCode' } as const;

export function signInPage(deps: PageDeps, { context, session }: PageRequest, state: SignInState = {}): Page {
  const { messages } = deps;
  const { signIn } = messages;
  const { problem } = state;
  const isDeviceFlow = session.goal === undefined && deps.transaction === undefined;
  const lead = deps.transaction === undefined ? SIGN_IN_LEADS[session.goal ?? 'device'] : 'lead';
  const hasPassword = deps.grantDeps.users.supportsPasswords;
  const methods = [
    hasPassword && renderForm(deps, session, '/sign-in', renderPasswordFields(messages, state)),
    ...[...deps.providers.values()].map((provider) => {
      const button = html`<input type="hidden" name="provider" value="${provider.name}">
<button class="${hasPassword ? 'second' : ''}" type="submit">${fillIn(signIn.with, getProviderTitle(messages, provider))}</button>`;
      return renderForm(deps, session, '/openid', button);
    }),
    deps.getCertificate(context) !== undefined &&
      renderForm(
        deps,
        session,
        '/certificate',
        html`
<button class="second" type="submit" aria-describedby="certificate-hint">${signIn.certificate}</button>
<p class="hint" id="certificate-hint">${signIn.certificateHint}</p>
`,
      ),
  ].filter((method) => method !== false);
  return {
    status: problem === undefined ? 200 : 403,
    title: problem === undefined ? signIn.title : fillIn(messages.errorTitle, signIn.title),
    body: html`${isDeviceFlow && renderProgress(messages, 2)}
<h1>${signIn.title}</h1>
<p>${signIn[lead]}</p>
${problem !== undefined && renderAlert(problem)}
${methods.length === 0 ? html`<p class="note">${signIn.none}</p>` : methods.map((method, index) => html`${index === 1 && html`<p class="or">${signIn.or}</p>`}${method}\n`)}
${isDeviceFlow && html`<p class="hint"><a class="quiet" href="${deps.urlFor('')}">${messages.enterAnotherCode}</a></p>`}`,
  };
}

export const getProviderTitle = ({ language }: Messages, { title }: OpenIdProvider): string =>
  sanitizeText(localize(title, language), 60);

/** After a failed attempt the user name is kept and the password field has the focus. */
function renderPasswordFields({ signIn }: Messages, { isFieldError, userName = '' }: SignInState): Markup {
  const described = isFieldError === true && html` aria-describedby="problem" aria-invalid="true"`;
  const autofocus = userName !== '' && html` autofocus`;
  return html`
<label for="user_name">${signIn.userName}</label>
<input type="text" id="user_name" name="user_name" value="${userName}" required maxlength="256" autocomplete="username" autocapitalize="none" autocorrect="off" spellcheck="false" enterkeyhint="next"${described}>
<label for="password">${signIn.password}</label>
<input type="password" id="password" name="password" required maxlength="1024" autocomplete="current-password" enterkeyhint="go"${described}${autofocus}>
<button type="submit">${signIn.title}</button>
`;
}

interface ReviewView {
  readonly request: DeviceApprovalRequest;
  readonly code: string;
  readonly displayName: string;
  /** Why this user cannot approve the request. */
  readonly refusal: Refusal | undefined;
  readonly status: number;
}

export function reviewPage(deps: PageDeps, session: Session, view: ReviewView): Page {
  const { messages } = deps;
  const { review } = messages;
  const { request, refusal } = view;
  const now = deps.grantDeps.now();
  const refusalText = refusal && describeRefusal(deps, refusal);
  const title = refusalText === undefined ? review.title : messages.notAllowed.title;
  const renderButton = (path: PagePath, button: Markup): Markup => renderForm(deps, session, path, button);
  return {
    status: view.status,
    title,
    body: html`${renderProgress(messages, 3)}
<h1>${title}</h1>
<p>${renderName(getIntegrationName(deps.grantDeps, request.clientId))}${review.requestsAccess}</p>
${refusalText !== undefined && renderAlert(refusalText)}
<section class="compare" aria-labelledby="compare">
<h2 id="compare">${review.codeLabel}</h2>
<p class="value">${formatUserCode(view.code)}</p>
<p class="hint">${review.codeHint}</p>
</section>
${refusalText === undefined && html`<p class="note">${review.warning}</p>`}
${renderScope(deps, request.scope)}
<dl>
${renderDeviceName(review, request)}<div><dt>${review.requestedAt}</dt><dd>${messages.formatAgo(now - request.askedAt)} ${renderTime(deps, request.askedAt)}</dd></div>
<div><dt>${review.from}</dt><dd><bdi>${sanitizeText(request.askedFrom, 60)}</bdi></dd></div>
<div><dt>${messages.expires}</dt><dd>${messages.formatIn(request.expires - now)} ${renderTime(deps, request.expires)}</dd></div>
</dl>
<div class="choice">
${refusalText === undefined && renderButton('/approve', html`<button type="submit">${review.approve}</button>`)}
${renderButton('/deny', html`<button class="second" type="submit">${review.deny}</button>`)}
</div>
${renderSignOut(deps, session, view.displayName, review.notYou)}`,
  };
}

export const renderScope = ({ messages, theme }: PageDeps, scope: Scope): Markup => html`<h2>${messages.review.may}</h2>
<ul>
${describeScope(scope, messages, theme.permissions).map((sentence) => html`<li>${sentence}</li>\n`)}</ul>
<details><summary>${messages.review.technical}</summary><code>${formatScope(scope)}</code></details>`;

/** Anyone can send any name with a device request: it identifies nothing. */
function renderDeviceName({ device, deviceHint }: Messages['review'], request: DeviceApprovalRequest) {
  const name = sanitizeText(request.deviceName ?? '', MAX_DEVICE_NAME_LENGTH);
  if (name === '') return undefined;
  return html`<div><dt>${device}</dt><dd><bdi>${name}</bdi><small>${deviceHint}</small></dd></div>\n`;
}

export function describeRefusal({ messages, theme }: PageDeps, refusal: Refusal): string {
  const { notAllowed } = messages;
  const { reason } = refusal;
  if (reason === 'scope_exceeds_access' || reason === 'scope_exceeds_integration') {
    const excess = parseScope(refusal.excess);
    const text = excess.ok
      ? describeScope(excess.value, messages, theme.permissions).join(messages.separator)
      : sanitizeText(refusal.excess, 200);
    return fillIn(notAllowed.scope, text);
  }
  if (reason === 'identity_disabled') return notAllowed.disabled;
  if (reason === 'client_unknown' || reason === 'device_flow_disabled' || reason === 'target_invalid')
    return messages.withdrawn.lead;
  return notAllowed.integration;
}

const RESULT_ICONS = {
  approved: html`<svg class="mark good" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="m7.5 12.5 3 3 6-7"/></svg>`,
  denied: html`<svg class="mark quiet" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="M7 12h10"/></svg>`,
};

export function resultPage(
  deps: PageDeps,
  session: Session,
  view: { ended: 'approved' | 'denied'; integrationName: string },
): Page {
  const { messages, theme } = deps;
  const text = messages[view.ended];
  const isSignedIn = session.identity !== undefined;
  const signOut = html`<button class="second" type="submit">${messages.signOut}</button>`;
  return {
    status: 200,
    title: text.title,
    body: html`${RESULT_ICONS[view.ended]}
<h1>${text.title}</h1>
<p>${renderName(view.integrationName)}${text.lead}</p>
<p>${text.close}</p>
<p><a class="quiet" href="${deps.urlFor('')}">${messages.enterAnotherCode}</a>${theme.myGrants && isSignedIn && html`<br>${renderMyGrantsLink(deps)}`}</p>
${isSignedIn && renderForm(deps, session, '/sign-out', signOut)}`,
  };
}

/** Redirects without a script, with a link as fallback. */
export function redirectPage({ next }: Messages, { title, lead }: { title: string; lead: string }, url: string): Page {
  return {
    status: 200,
    title,
    redirectTo: url,
    body: html`<h1>${title}</h1>
<p>${lead}</p>
<a class="button" href="${url}">${next}</a>`,
  };
}

const formatIso = (time: Epoch): string => `${new Date(time * 1_000).toISOString().slice(0, 19)}Z`;

/** In the configured time zone and in UTC: without a script, the time zone of the reader is unknown. */
function renderTime({ messages, theme: { timeZone } }: PageDeps, time: Epoch): Markup {
  const iso = formatIso(time);
  const local = messages.formatTime(time * 1_000, timeZone);
  const universal = html`<time datetime="${iso}">${iso.slice(11, 16)} UTC</time>`;
  const isUniversal = local.startsWith(iso.slice(11, 16));
  return html`<small>${!isUniversal && html`<time datetime="${iso}">${local}</time>, `}${universal}</small>`;
}

export const renderDate = ({ messages, theme }: PageDeps, time: Epoch): Markup =>
  html`<small><time datetime="${formatIso(time)}">${messages.formatDate(time * 1_000, theme.timeZone)}</time></small>`;
