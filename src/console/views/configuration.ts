import { html, type Markup } from '../../pages/views/html.ts';
import type { ConsolePage } from '../context.ts';
import type { EffectiveSection, EffectiveSetting } from '../effective-settings.ts';
import { type ConfigurationState, renderConfigurationNotice } from './configuration-notice.ts';
import { renderText } from './format.ts';

export const configurationPage = (
  sections: readonly EffectiveSection[],
  state: ConfigurationState,
): ConsolePage => ({
  title: 'Configuration',
  body: html`<h1>Configuration in use</h1>
<p class="soft">With defaults, environment variables and overrides. Secrets are hidden.</p>
${renderConfigurationNotice(state)}
<div class="settings">
${sections.map(renderSection)}</div>`,
});

const renderSection = ({
  name,
  settings,
  omitted,
}: EffectiveSection): Markup => html`<details class="card" open>
<summary>${name}</summary>
<dl>
${settings.map(renderSetting)}</dl>
${omitted > 0 && html`<p class="soft">${omitted} more entries are not shown.</p>`}
</details>
`;

const renderSetting = ({ path, value }: EffectiveSetting): Markup =>
  html`<div><dt class="mono">${renderText(path, 256)}</dt><dd class="mono">${value === undefined ? html`<span class="soft">hidden</span>` : renderText(value, 2_048)}</dd></div>\n`;
