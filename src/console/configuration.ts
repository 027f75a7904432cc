import type { GatewayStatus, RejectedReload } from '../observability/gateway-status.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { type ConsoleHandler, type ConsoleRequest, urlFor } from './context.ts';
import { type EffectiveSection, type EffectiveSetting, listEffectiveSettings } from './effective-settings.ts';
import { renderBadge, renderText, renderTime } from './views/format.ts';

export const showConfiguration: ConsoleHandler = async (request) => {
  const { deps, query } = request;
  const onlyChanged = query.get('changed') === '1';
  const sections = listEffectiveSettings(deps.getSettings());
  const settings = sections.flatMap((section) => section.settings);
  const changed = settings.filter(({ isChanged }) => isChanged).length;
  const toggle = onlyChanged
    ? html`<a href="${urlFor('/configuration')}">Show all</a>`
    : html`<a href="${urlFor('/configuration', { changed: '1' })}">Show only changed</a>`;
  return {
    title: 'Configuration',
    body: html`<h1>Configuration in use</h1>
<p class="soft">With defaults, environment variables and overrides. Secrets are hidden. Settings marked <span class="badge">changed</span> differ from their default, or have none.</p>
${renderConfigurationNotice(request, await deps.getStatus())}
<p class="soft">${settings.length} settings, ${changed} changed. ${toggle}</p>
<div class="settings">
${sections.map((section) => renderSection(section, onlyChanged))}</div>`,
  };
};

function renderSection({ name, settings, omitted }: EffectiveSection, onlyChanged: boolean): Markup | false {
  const shown = settings.filter(({ isChanged }) => isChanged || !onlyChanged);
  return (
    shown.length > 0 &&
    html`<details class="card" open>
<summary>${name}</summary>
<dl>
${shown.map(renderSetting)}</dl>
${omitted > 0 && html`<p class="soft">${omitted} more entries are not shown.</p>`}
</details>
`
  );
}

const renderSetting = ({ path, value, isChanged }: EffectiveSetting): Markup =>
  html`<div><dt class="mono">${renderText(path, 256)}</dt><dd class="mono">${value === undefined ? html`<span class="soft">hidden</span>` : renderText(value, 2_048)}${isChanged && html` ${renderBadge('changed')}`}</dd></div>\n`;

/** How the configuration on disk differs from the one in use. Empty if it does not. */
export function renderConfigurationNotice(
  { deps, identity }: ConsoleRequest,
  { rejectedReload: rejected }: GatewayStatus,
): Markup {
  const pendingRestart = deps.findPendingRestart(deps.getSettings());
  // Problems may quote values of the rejected configuration that the page of the configuration would hide. Viewers only
  // see where the problems are.
  const shown =
    rejected === undefined || identity.role === 'operator'
      ? rejected
      : { ...rejected, problems: [...new Set(rejected.problems.map(locateProblem))] };
  return html`${shown !== undefined && renderRejection(shown)}${pendingRestart.length > 0 && renderPendingRestart(pendingRestart)}`;
}

const SETTING = /^[\w.[\]-]+(?=: )/;
const LINE = / \(line \d+\)$/;

const locateProblem = (problem: string): string =>
  `${SETTING.exec(problem)?.[0] ?? 'the configuration file'}${LINE.exec(problem)?.[0] ?? ''}`;

const MAX_PROBLEM = 600;

const renderRejection = ({
  since,
  problems,
}: RejectedReload): Markup => html`<section class="note bad" aria-labelledby="rejected-reload">
<h2 id="rejected-reload">The changed configuration was rejected</h2>
<p>The previous configuration has stayed in use since ${renderTime(since)}. ${problems.length === 1 ? 'The problem' : 'The problems'} of the last reload:</p>
<ul>
${problems.map((problem) => html`<li>${renderText(problem, MAX_PROBLEM)}</li>\n`)}</ul>
<p>Correct the configuration or the file it names: it is reloaded when you save it. Test it with <code>gatehouse check</code>.</p>
</section>
`;

const renderPendingRestart = (
  settings: readonly string[],
): Markup => html`<section class="note" aria-labelledby="pending-restart">
<h2 id="pending-restart">Restart needed</h2>
<p>These changed settings take effect after a restart of gatehouse: ${settings.map((setting, index) => html`${index > 0 && ', '}<code>${setting}</code>`)}.</p>
</section>
`;
