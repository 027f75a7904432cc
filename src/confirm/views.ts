import { showUserCode } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Refusal } from '../domain/refusal.ts';
import { parseScope } from '../domain/scope.ts';
import type { DeviceQuestion } from '../grants/device-decision.ts';
import { html, type Markup, plain } from './html.ts';
import type { Page } from './layout.ts';
import type { Look } from './look.ts';
import { scopeInTerms, scopeInWords } from './scope-words.ts';
import type { Words } from './words.ts';

/** A form of ours: where it goes, and the token that proves it is ours. */
export interface Form {
  readonly action: string;
  readonly token: string;
}

export const FORM_TOKEN = 'form_token';

export const openForm = (form: Form): Markup =>
  html`<form method="post" action="${form.action}"><input type="hidden" name="${FORM_TOKEN}" value="${form.token}">`;

const alert = (text: string): Markup => html`<p class="note bad" role="alert" id="problem">${text}</p>`;

/** Names stand apart from the text around them, whichever way they are written. */
export const name = (text: string): Markup => html`<strong><bdi>${plain(text)}</bdi></strong>`;

/** How far they have come: for the eye a bar, for everybody the words. */
const step = (words: Words, at: number): Markup =>
  html`<p class="step"><span class="bar" aria-hidden="true">${[1, 2, 3].map((one) => html`<i${one <= at && html` class="on"`}></i>`)}</span>${words.step(at, 3)}</p>`;

export function codePage(
  words: Words,
  view: {
    form: Form;
    typed: string;
    prefilled: boolean;
    problem?: string;
    status?: number;
    /** Where to see what was approved. */
    mine?: string;
  },
): Page {
  const { code } = words;
  const { form, typed, problem } = view;
  return {
    status: view.status ?? 200,
    title: problem === undefined ? code.title : words.errorTitle(code.title),
    body: html`${step(words, 1)}
<h1>${code.title}</h1>
<p>${view.prefilled ? code.leadPrefilled : code.lead}</p>
${problem !== undefined && alert(problem)}
${openForm(form)}
<label for="user_code">${code.label}</label>
<input class="code" type="text" id="user_code" name="user_code" value="${typed}" required maxlength="24" autocomplete="off" autocapitalize="characters" autocorrect="off" spellcheck="false" inputmode="text" enterkeyhint="next" aria-describedby="${problem === undefined ? '' : 'problem '}code-hint"${problem !== undefined && INVALID}>
<p class="hint" id="code-hint">${code.hint}</p>
<button type="submit">${code.next}</button>
</form>
${view.mine !== undefined && html`<p class="hint"><a class="quiet" href="${view.mine}">${words.grants.mine}</a></p>`}`,
  };
}

const INVALID = html` aria-invalid="true"`;

export interface SignInView {
  readonly lead: string;
  /** On the way to a decision about a device. */
  readonly isStep: boolean;
  readonly another: string;
  readonly password?: Form;
  readonly certificate?: Form;
  readonly providers: readonly { readonly form: Form; readonly name: string; readonly title: string }[];
  readonly problem?: string;
  readonly inFields?: boolean;
  readonly userName?: string;
}

export function signInPage(words: Words, view: SignInView): Page {
  const { signIn } = words;
  const { problem } = view;
  const ways = [
    view.password !== undefined && passwordForm(words, view, view.password),
    ...view.providers.map(
      ({ form, name: provider, title }) =>
        html`${openForm(form)}<input type="hidden" name="provider" value="${provider}">
<button class="${view.password === undefined ? '' : 'second'}" type="submit">${signIn.with(title)}</button></form>`,
    ),
    view.certificate !== undefined &&
      html`${openForm(view.certificate)}
<button class="second" type="submit" aria-describedby="certificate-hint">${signIn.certificate}</button>
<p class="hint" id="certificate-hint">${signIn.certificateHint}</p>
</form>`,
  ].filter((way) => way !== false);
  return {
    status: problem === undefined ? 200 : 403,
    title: problem === undefined ? signIn.title : words.errorTitle(signIn.title),
    body: html`${view.isStep && step(words, 2)}
<h1>${signIn.title}</h1>
<p>${view.lead}</p>
${problem !== undefined && alert(problem)}
${ways.length === 0 ? html`<p class="note">${signIn.none}</p>` : ways.map((way, at) => html`${at === 1 && html`<p class="or">${signIn.or}</p>`}${way}\n`)}
${view.isStep && html`<p class="hint"><a class="quiet" href="${view.another}">${signIn.otherCode}</a></p>`}`,
  };
}

/** After a mistake the name stands there still, and the way leads to the password. */
function passwordForm({ signIn }: Words, { inFields, userName = '' }: SignInView, form: Form): Markup {
  const described = inFields === true && html` aria-describedby="problem" aria-invalid="true"`;
  const again = userName !== '' && AUTOFOCUS;
  return html`${openForm(form)}
<label for="user_name">${signIn.userName}</label>
<input type="text" id="user_name" name="user_name" value="${userName}" required maxlength="256" autocomplete="username" autocapitalize="none" autocorrect="off" spellcheck="false" enterkeyhint="next"${described}>
<label for="password">${signIn.password}</label>
<input type="password" id="password" name="password" required maxlength="1024" autocomplete="current-password" enterkeyhint="go"${described}${again}>
<button type="submit">${signIn.next}</button>
</form>`;
}

const AUTOFOCUS = html` autofocus`;

export interface Review {
  readonly question: DeviceQuestion;
  readonly code: string;
  readonly person: string;
  readonly now: Epoch;
  readonly look: Pick<Look, 'permissions'>;
  /** Why this person cannot say yes. */
  readonly refusal?: Refusal;
  readonly approve: Form;
  readonly deny: Form;
  readonly signOut: Form;
  readonly status?: number;
}

export function reviewPage(words: Words, view: Review): Page {
  const { review } = words;
  const { question, now, refusal } = view;
  const barred = refusal === undefined ? undefined : whyNot(words, refusal, view.look);
  const title = barred === undefined ? review.title : words.notAllowed.title;
  return {
    status: view.status ?? 200,
    title,
    body: html`${step(words, 3)}
<h1>${title}</h1>
<p>${name(question.integrationName)}${review.asks}</p>
${barred !== undefined && alert(barred)}
<section class="compare" aria-labelledby="compare">
<h2 id="compare">${review.codeLabel}</h2>
<p class="value">${showUserCode(view.code)}</p>
<p class="hint">${review.codeHint}</p>
</section>
<h2>${review.may}</h2>
<ul>
${scopeInWords(question.scope, words, view.look.permissions).map((sentence) => html`<li>${sentence}</li>\n`)}</ul>
<details><summary>${review.technical}</summary><code>${scopeInTerms(question.scope)}</code></details>
<dl>
<div><dt>${review.asked}</dt><dd>${words.ago(words.minutes(now - question.askedAt))} (${clock(question.askedAt)})</dd></div>
<div><dt>${review.from}</dt><dd><bdi>${plain(question.askedFrom, 60)}</bdi></dd></div>
<div><dt>${review.open}</dt><dd>${words.minutes(question.expires - now)} (${review.until(timeOf(question.expires))})</dd></div>
</dl>
${barred === undefined && html`<p class="note">${review.warning}</p>`}
<div class="choice">
${barred === undefined && html`${openForm(view.approve)}<button type="submit">${review.approve}</button></form>`}
${openForm(view.deny)}<button class="second" type="submit">${review.deny}</button></form>
</div>
<div class="who">
<span>${review.signedInAs}${name(view.person)}</span>
${openForm(view.signOut)}<button class="link" type="submit">${review.notYou}</button></form>
</div>`,
  };
}

function whyNot(words: Words, refusal: Refusal, look: Review['look']): string {
  const { notAllowed } = words;
  const { reason } = refusal;
  if (reason === 'scope_exceeds_access' || reason === 'scope_exceeds_integration')
    return notAllowed.scope(inPlainWords(words, refusal.excess, look));
  if (reason === 'identity_disabled') return notAllowed.disabled;
  if (reason === 'client_unknown' || reason === 'device_flow_off') return notAllowed.withdrawn;
  return notAllowed.integration;
}

function inPlainWords(words: Words, scope: string, { permissions }: Review['look']): string {
  const parsed = parseScope(scope);
  return parsed.ok ? scopeInWords(parsed.value, words, permissions).join('; ') : plain(scope, 200);
}

const CHECK = html`<svg class="mark good" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="m7.5 12.5 3 3 6-7"/></svg>`;
const STOP = html`<svg class="mark quiet" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="M7 12h10"/></svg>`;

const noticeMark = (kind: 'quiet' | 'warn'): Markup =>
  html`<svg class="mark ${kind}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="M12 7.5v5.5M12 16.4v.1"/></svg>`;

export function endPage(
  words: Words,
  view: {
    ended: 'approved' | 'denied';
    integrationName: string;
    another: string;
    mine?: string;
    signOut?: Form;
  },
): Page {
  const said = words[view.ended];
  return {
    status: 200,
    title: said.title,
    body: html`${view.ended === 'approved' ? CHECK : STOP}
<h1>${said.title}</h1>
<p>${name(view.integrationName)}${said.lead}</p>
<p>${said.close}</p>
<p><a class="quiet" href="${view.another}">${words.another}</a>${
      view.mine !== undefined && html`<br><a class="quiet" href="${view.mine}">${words.grants.mine}</a>`
    }</p>
${
  view.signOut !== undefined &&
  html`${openForm(view.signOut)}<button class="second" type="submit">${words.signOut}</button></form>`
}`,
  };
}

/** A page that leads on by itself, without a script; and by a link, where a browser does not. */
export function movingPage(view: {
  readonly title: string;
  readonly lead: string;
  readonly next: string;
  readonly to: string;
}): Page {
  return {
    status: 200,
    title: view.title,
    leadsTo: view.to,
    body: html`<h1>${view.title}</h1>
<p>${view.lead}</p>
<a class="button" href="${view.to}">${view.next}</a>`,
  };
}

/** A page that only says something, and where to go from here. */
export function noticePage(
  said: { readonly title: string; readonly lead: string; readonly small?: string },
  rest: { status: number; link: { href: string; text: string }; retryAfter?: number; allow?: string },
): Page {
  const { link, ...answer } = rest;
  return {
    ...answer,
    title: said.title,
    body: html`${noticeMark(answer.status === 429 || answer.status >= 500 ? 'warn' : 'quiet')}
<h1>${said.title}</h1>
<p>${said.lead}</p>
${said.small !== undefined && html`<p class="soft">${said.small}</p>`}
<a class="button second" href="${link.href}">${link.text}</a>`,
  };
}

/** Without a script a page cannot know the reader's time zone: it tells which one it means. */
const iso = (time: Epoch): string => `${new Date(time * 1_000).toISOString().slice(0, 19)}Z`;
const clock = (time: Epoch): Markup => html`<time datetime="${iso(time)}">${timeOf(time)}</time>`;
const timeOf = (time: Epoch): string => `${iso(time).slice(11, 16)} UTC`;

/** A day, for times long past or to come. */
export const whenOf = (words: Words, time: Epoch): Markup =>
  html`<time datetime="${iso(time)}">${words.date(time * 1_000)}</time>`;
