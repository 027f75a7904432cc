import { showUserCode } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Refusal } from '../domain/refusal.ts';
import type { DeviceQuestion } from '../grants/device-decision.ts';
import { html, type Markup, plain } from './html.ts';
import type { Page } from './layout.ts';
import { scopeInTerms, scopeInWords } from './scope-words.ts';
import type { Words } from './words.ts';

/** A form of ours: where it goes, and the token that proves it is ours. */
export interface Form {
  readonly action: string;
  readonly token: string;
}

export const FORM_TOKEN = 'form_token';

const open = (form: Form): Markup =>
  html`<form method="post" action="${form.action}"><input type="hidden" name="${FORM_TOKEN}" value="${form.token}">`;

const alert = (text: string): Markup => html`<p class="note bad" role="alert" id="problem">${text}</p>`;

/** Names stand apart from the text around them, whichever way they are written. */
const name = (text: string): Markup => html`<strong><bdi>${plain(text)}</bdi></strong>`;

export function codePage(
  words: Words,
  view: { form: Form; typed: string; prefilled: boolean; problem?: string; status?: number },
): Page {
  const { code } = words;
  const { form, typed, problem } = view;
  return {
    status: view.status ?? 200,
    title: problem === undefined ? code.title : words.errorTitle(code.title),
    body: html`<p class="step">${words.step(1, 3)}</p>
<h1>${code.title}</h1>
<p>${view.prefilled ? code.leadPrefilled : code.lead}</p>
${problem !== undefined && alert(problem)}
${open(form)}
<label for="user_code">${code.label}</label>
<input class="code" type="text" id="user_code" name="user_code" value="${typed}" required maxlength="24" autocomplete="off" autocapitalize="characters" autocorrect="off" spellcheck="false" inputmode="text" enterkeyhint="next" aria-describedby="${problem === undefined ? '' : 'problem '}code-hint"${problem !== undefined && INVALID}>
<p class="hint" id="code-hint">${code.hint}</p>
<button type="submit">${code.next}</button>
</form>`,
  };
}

const INVALID = html` aria-invalid="true"`;

export function signInPage(
  words: Words,
  view: { form: Form; certificate?: Form; another: string; problem?: string; inFields?: boolean },
): Page {
  const { signIn } = words;
  const { form, certificate, problem } = view;
  const described = view.inFields === true && html` aria-describedby="problem" aria-invalid="true"`;
  return {
    status: problem === undefined ? 200 : 403,
    title: problem === undefined ? signIn.title : words.errorTitle(signIn.title),
    body: html`<p class="step">${words.step(2, 3)}</p>
<h1>${signIn.title}</h1>
<p>${signIn.lead}</p>
${problem !== undefined && alert(problem)}
${open(form)}
<label for="user_name">${signIn.userName}</label>
<input type="text" id="user_name" name="user_name" required maxlength="256" autocomplete="username" autocapitalize="none" autocorrect="off" spellcheck="false" enterkeyhint="next"${described}>
<label for="password">${signIn.password}</label>
<input type="password" id="password" name="password" required maxlength="1024" autocomplete="current-password" enterkeyhint="go"${described}>
<button type="submit">${signIn.next}</button>
</form>
${
  certificate !== undefined &&
  html`<p class="or">${signIn.or}</p>
${open(certificate)}
<button class="second" type="submit" aria-describedby="certificate-hint">${signIn.certificate}</button>
<p class="hint" id="certificate-hint">${signIn.certificateHint}</p>
</form>`
}
<p class="hint"><a class="quiet" href="${view.another}">${signIn.otherCode}</a></p>`,
  };
}

export interface Review {
  readonly question: DeviceQuestion;
  readonly code: string;
  readonly person: string;
  readonly now: Epoch;
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
  const barred = refusal === undefined ? undefined : whyNot(words, refusal);
  const title = barred === undefined ? review.title : words.notAllowed.title;
  return {
    status: view.status ?? 200,
    title,
    body: html`<p class="step">${words.step(3, 3)}</p>
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
${scopeInWords(question.scope, words).map((sentence) => html`<li>${sentence}</li>\n`)}</ul>
<details><summary>${review.technical}</summary><code>${scopeInTerms(question.scope)}</code></details>
<dl>
<div><dt>${review.asked}</dt><dd>${words.ago(words.minutes(now - question.askedAt))} (${clock(question.askedAt)})</dd></div>
<div><dt>${review.from}</dt><dd><bdi>${plain(question.askedFrom, 60)}</bdi></dd></div>
<div><dt>${review.open}</dt><dd>${words.minutes(question.expires - now)} (${review.until(timeOf(question.expires))})</dd></div>
</dl>
${barred === undefined && html`<p class="note">${review.warning}</p>`}
<div class="choice">
${barred === undefined && html`${open(view.approve)}<button type="submit">${review.approve}</button></form>`}
${open(view.deny)}<button class="second" type="submit">${review.deny}</button></form>
</div>
<div class="who">
<span>${review.signedInAs}${name(view.person)}</span>
${open(view.signOut)}<button class="link" type="submit">${review.notYou}</button></form>
</div>`,
  };
}

function whyNot({ notAllowed }: Words, refusal: Refusal): string {
  const { reason } = refusal;
  if (reason === 'scope_exceeds_access' || reason === 'scope_exceeds_integration')
    return notAllowed.scope(plain(refusal.excess, 200));
  if (reason === 'identity_disabled') return notAllowed.disabled;
  if (reason === 'client_unknown' || reason === 'device_flow_off') return notAllowed.withdrawn;
  return notAllowed.integration;
}

const CHECK = html`<svg class="mark good" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="m7.5 12.5 3 3 6-7"/></svg>`;
const STOP = html`<svg class="mark quiet" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" aria-hidden="true"><circle cx="12" cy="12" r="10"/><path d="M7 12h10"/></svg>`;

export function endPage(
  words: Words,
  view: { ended: 'approved' | 'denied'; integrationName: string; another: string; signOut?: Form },
): Page {
  const said = words[view.ended];
  return {
    status: 200,
    title: said.title,
    body: html`${view.ended === 'approved' ? CHECK : STOP}
<h1>${said.title}</h1>
<p>${name(view.integrationName)}${said.lead}</p>
<p>${said.close}</p>
<p><a class="quiet" href="${view.another}">${words.another}</a></p>
${
  view.signOut !== undefined &&
  html`${open(view.signOut)}<button class="second" type="submit">${words.signOut}</button></form>`
}`,
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
    body: html`<h1>${said.title}</h1>
<p>${said.lead}</p>
${said.small !== undefined && html`<p class="soft">${said.small}</p>`}
<a class="button second" href="${link.href}">${link.text}</a>`,
  };
}

/** Without a script a page cannot know the reader's time zone: it tells which one it means. */
const iso = (time: Epoch): string => `${new Date(time * 1_000).toISOString().slice(0, 19)}Z`;
const clock = (time: Epoch): Markup => html`<time datetime="${iso(time)}">${timeOf(time)}</time>`;
const timeOf = (time: Epoch): string => `${iso(time).slice(11, 16)} UTC`;
