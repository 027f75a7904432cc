import type { Grant } from '../domain/grant.ts';
import { parseScope, type Scope } from '../domain/scope.ts';
import { nameOfIntegration } from '../grants/desk.ts';
import { html, type Markup, plain } from './html.ts';
import type { Page } from './layout.ts';
import { scopeInWords } from './scope-words.ts';
import { type Form, name, openForm, whenOf } from './views.ts';
import type { Room } from './visit.ts';

interface GrantsView {
  readonly grants: readonly Grant[];
  readonly person: string;
  readonly first: boolean;
  /** The name of what was revoked a moment ago. */
  readonly revoked?: string;
  /** The name of what was approved a moment ago and is no grant yet: its device has not come for it. */
  readonly awaited?: string;
  readonly next?: string;
  readonly signOut: Form;
}

export function grantsPage(room: Room, view: GrantsView): Page {
  const { words } = room;
  const { grants: said, review } = words;
  const isEmpty = view.grants.length === 0 && view.first && view.next === undefined;
  return {
    status: 200,
    title: said.title,
    body: html`<h1>${said.title}</h1>
${view.revoked !== undefined && html`<p class="note good" role="status">${words.revoke.done(plain(view.revoked))}</p>`}
${view.awaited !== undefined && html`<p class="note good" role="status">${said.awaited(plain(view.awaited))}</p>`}
${(view.awaited === undefined || !isEmpty) && html`<p>${isEmpty ? said.none : said.lead}</p>`}
${view.grants.map((grant) => item(room, grant))}
${view.next !== undefined && html`<a class="button second" href="${room.at('/grants')}?after=${encodeURIComponent(view.next)}">${said.more}</a>`}
<div class="who">
<span>${review.signedInAs}${name(view.person)}</span>
${openForm(view.signOut)}<button class="link" type="submit">${words.signOut}</button></form>
</div>`,
  };
}

function item(room: Room, grant: Grant): Markup {
  const { grants: said } = room.words;
  const called = nameOf(room, grant);
  return html`<section class="item" aria-labelledby="g-${grant.id}">
<h2 id="g-${grant.id}"><bdi>${called}</bdi></h2>
${facts(room, grant)}
<a class="button second" href="${room.at('/grant')}?id=${encodeURIComponent(grant.id)}" aria-label="${said.chooseNamed(called)}">${said.choose}</a>
</section>
`;
}

const nameOf = (room: Room, { clientId }: Grant): string => plain(nameOfIntegration(room.desk, clientId));

function facts(room: Room, grant: Grant): Markup {
  const { words, desk, look } = room;
  const { grants: said } = words;
  const now = desk.now();
  const ago = (time: number): Markup => html`${words.ago(words.days(now - time))} (${whenOf(words, time)})`;
  return html`<p class="soft">${grant.grantType === 'device' ? said.byDevice : said.byCertificate}${!desk.integrations.has(grant.clientId) && html` · ${said.gone}`}</p>
<p class="label">${said.may}</p>
<ul>
${scopeInWords(scopeOf(grant), words, look.permissions).map((sentence) => html`<li>${sentence}</li>\n`)}</ul>
<dl>
<div><dt>${said.made}</dt><dd>${ago(grant.issuedAt)}</dd></div>
<div><dt>${said.used}</dt><dd>${grant.generation > 1 ? ago(grant.rotatedAt) : said.unused}</dd></div>
<div><dt>${said.until}</dt><dd>${said.inTime(words.days(grant.refreshUntil - now))} (${whenOf(words, grant.refreshUntil)})</dd></div>
</dl>`;
}

function scopeOf({ scope }: Grant): Scope {
  const parsed = parseScope(scope, { spaces: true });
  return parsed.ok ? parsed.value : new Map();
}

/** Asked once more, since it cannot be undone. */
export function revokePage(room: Room, grant: Grant, form: Form): Page {
  const { revoke } = room.words;
  return {
    status: 200,
    title: revoke.title,
    body: html`<h1>${revoke.title}</h1>
<p>${name(nameOf(room, grant))}${revoke.lead}</p>
${facts(room, grant)}
<div class="choice">
${openForm(form)}<input type="hidden" name="grant" value="${grant.id}"><button class="danger" type="submit">${revoke.yes}</button></form>
<a class="button second" href="${room.at('/grants')}">${revoke.no}</a>
</div>`,
  };
}
