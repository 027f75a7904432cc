import { html, type Markup } from '../../pages/views/html.ts';
import { type ConsolePage, urlFor } from '../context.ts';
import type { EffectiveSection, EffectiveSetting } from '../effective-settings.ts';
import { type ConfigurationState, renderConfigurationNotice } from './configuration-notice.ts';
import { renderBadge, renderText } from './format.ts';

export interface SettingFilter {
  /** If empty, all settings are shown. */
  readonly text: string;
  readonly onlyChanged: boolean;
}

export const configurationPage = (
  sections: readonly EffectiveSection[],
  { text, onlyChanged }: SettingFilter,
  state: ConfigurationState,
): ConsolePage => ({
  title: 'Configuration',
  body: html`<h1>Configuration in use</h1>
<p class="soft">With defaults, environment variables and overrides. Secrets are hidden. Settings marked <span class="badge">changed</span> differ from their default, or have none.</p>
${renderConfigurationNotice(state)}
<form class="search" method="get" action="${urlFor('/configuration')}" role="search">
<div><label for="q">Name or value contains</label>
<input type="search" id="q" name="q" value="${text}" maxlength="256" spellcheck="false" autocomplete="off"></div>
<label class="check"><input type="checkbox" name="changed" value="1"${onlyChanged && { markup: ' checked' }}>Only changed</label>
<button type="submit">Filter</button>
</form>
<p class="soft" role="status">${describeCount(sections)}</p>
<div class="settings">
${sections.map(renderSection)}</div>`,
});

function describeCount(sections: readonly EffectiveSection[]): string {
  const settings = sections.flatMap((section) => section.settings);
  const changed = settings.filter(({ isChanged }) => isChanged).length;
  if (settings.length === 0) return 'No setting matches.';
  return `${settings.length} setting${settings.length === 1 ? '' : 's'}, ${changed} changed`;
}

const renderSection = ({ name, settings, omitted }: EffectiveSection): Markup => html`<details class="card" open>
<summary>${name}</summary>
<dl>
${settings.map(renderSetting)}</dl>
${omitted > 0 && html`<p class="soft">${omitted} more entries are not shown.</p>`}
</details>
`;

const renderSetting = ({ path, value, isChanged }: EffectiveSetting): Markup =>
  html`<div><dt class="mono">${renderText(path, 256)}</dt><dd class="mono">${value === undefined ? html`<span class="soft">hidden</span>` : renderText(value, 2_048)}${isChanged && html` ${renderBadge('changed')}`}</dd></div>\n`;
