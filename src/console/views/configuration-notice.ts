import type { RejectedReload } from '../../observability/gateway-status.ts';
import { html, type Markup } from '../../pages/views/html.ts';
import { renderText, renderTime } from './format.ts';

/** How the configuration on disk differs from the one in use. */
export interface ConfigurationState {
  readonly rejectedReload: RejectedReload | undefined;
  /** Changed settings that are in force after a restart. */
  readonly pendingRestart: readonly string[];
}

/** Empty if the configuration on disk is in use. */
export const renderConfigurationNotice = ({ rejectedReload, pendingRestart }: ConfigurationState): Markup =>
  html`${rejectedReload !== undefined && renderRejection(rejectedReload)}${pendingRestart.length > 0 && renderPendingRestart(pendingRestart)}`;

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
