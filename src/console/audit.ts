import { AUDIT_EVENTS } from '../observability/audit-events.ts';
import type { RecentAuditEvent } from '../observability/recent-events.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { type ConsoleHandler, MAX_RECENT, readSearchText, urlFor } from './context.ts';
import { renderBadge, renderSearch, renderText, renderTime } from './views/format.ts';

export const showAudit: ConsoleHandler = async ({ deps, query }) => {
  const text = readSearchText(query);
  const { audit } = await deps.findRecent({ kind: 'audit', limit: MAX_RECENT, ...(text !== '' && { text }) });
  const { length } = audit;
  return {
    title: 'Audit',
    body: html`<h1>Recent audit events</h1>
${renderSearch('/audit', 'Event, person, client, grant or any other field', text)}
<p class="soft" role="status">${length === 0 ? 'No recent event matches.' : length === MAX_RECENT ? `The newest ${length}` : `${length}, newest first`}. Each process remembers its last 500; the audit log has all of them.</p>
${length > 0 && html`<ul class="rows card list">\n${audit.map(renderEvent)}</ul>`}`,
  };
};

const TONES = { info: 'neutral', notice: 'warn', warning: 'bad' } as const;
/** The severity is a word, not only a colour. */
const SEVERITIES = { info: undefined, notice: 'refusal', warning: 'alert' } as const;

function renderEvent({ time, event, fields }: RecentAuditEvent): Markup {
  const { severity } = AUDIT_EVENTS[event];
  const label = SEVERITIES[severity];
  return html`<li>
<div class="line-up"><h2>${event.replaceAll('_', ' ')}</h2>${label !== undefined && renderBadge(label, TONES[severity])}<span class="soft">${renderTime(time / 1_000)}</span></div>
<p class="meta">${Object.entries(fields).map(([name, value]) => html`<span>${name}: ${renderField(name, String(value))}</span> `)}</p>
</li>
`;
}

const renderField = (name: string, value: string): Markup =>
  name === 'grant' ? html`<a href="${urlFor('/grant', { id: value })}">${renderText(value)}</a>` : renderText(value);
