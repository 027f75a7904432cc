import { getChild, getKnownSettings, type KnownSetting, listSecretNames } from '../config/known-settings.ts';
import type { Settings } from '../config/schema.ts';
import { formatPath, type SettingPath } from '../config/setting-path.ts';
import { duration, size } from '../config/units.ts';
import { formatScope, type Scope } from '../domain/scope.ts';
import { redactText } from '../lib/redact.ts';
import type { GatewayStatus, RejectedReload } from '../observability/gateway-status.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { type ConsoleHandler, type ConsoleRequest, readSearchText } from './context.ts';
import { renderBadge, renderSearch, renderText, renderTime } from './views/format.ts';

export const showConfiguration: ConsoleHandler = async (request) => {
  const { deps, query } = request;
  const text = readSearchText(query);
  const onlyChanged = query.get('changed') === '1';
  const sections = selectSettings(listEffectiveSettings(deps.getSettings()), text, onlyChanged);
  const filter = html`<label class="check"><input type="checkbox" name="changed" value="1"${onlyChanged && { markup: ' checked' }}>Only changed</label>`;
  return {
    title: 'Configuration',
    body: html`<h1>Configuration in use</h1>
<p class="soft">With defaults, environment variables and overrides. Secrets are hidden. Settings marked <span class="badge">changed</span> differ from their default, or have none.</p>
${renderConfigurationNotice(request, await deps.getStatus())}
${renderSearch('/configuration', 'Name or value contains', text, { filter, button: 'Filter' })}
<p class="soft" role="status">${describeCount(sections)}</p>
<div class="settings">
${sections.map(renderSection)}</div>`,
  };
};

/** The settings whose path or value contains the text, without letter case. */
function selectSettings(
  sections: readonly EffectiveSection[],
  text: string,
  onlyChanged: boolean,
): readonly EffectiveSection[] {
  const wanted = text.toLowerCase();
  return sections
    .map((section) => ({
      ...section,
      settings: section.settings.filter(
        ({ path, value = '', isChanged }) =>
          (isChanged || !onlyChanged) && `${path} ${value}`.toLowerCase().includes(wanted),
      ),
    }))
    .filter(({ settings }) => settings.length > 0);
}

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

export interface EffectiveSetting {
  readonly path: string;
  /** The value as it could be written in the file. It is undefined if it is hidden. */
  readonly value: string | undefined;
  /** Differs from the default, or has none. */
  readonly isChanged: boolean;
}

export interface EffectiveSection {
  readonly name: string;
  readonly settings: readonly EffectiveSetting[];
  /** Entries of long lists that are not included. */
  readonly omitted: number;
}

/** The maximum number of entries of a list or a record that are shown. */
const MAX_ENTRIES = 100;
const MAX_VALUE = 2_048;

/** The configuration in use, with defaults and without secrets. */
export function listEffectiveSettings(settings: Settings): readonly EffectiveSection[] {
  const known = getKnownSettings();
  return Object.entries(settings).map(([name, value]) => {
    const collected: EffectiveSetting[] = [];
    let omitted = 0;
    const visit = (node: unknown, setting: KnownSetting | undefined, path: SettingPath): void => {
      const text = formatValue(node, setting);
      if (text !== undefined) {
        const value = isHidden(node, setting, path)
          ? undefined
          : redactText(hideUrlParts(text, path)).slice(0, MAX_VALUE);
        const isChanged = !isDefault(node, text, setting);
        return void collected.push({ path: formatPath(path), value, isChanged });
      }
      const entries = Array.isArray(node)
        ? (node as readonly unknown[]).map((item, index) => [index, item] as const)
        : Object.entries(node as object);
      const shown = entries.slice(0, MAX_ENTRIES);
      omitted += entries.length - shown.length;
      for (const [key, inner] of shown) {
        if (inner === undefined || typeof inner === 'function') continue;
        const innerPath = [...path, key];
        if (setting !== undefined && typeof key === 'string' && listSecretNames(setting).includes(key))
          collected.push({ path: formatPath(innerPath), value: undefined, isChanged: true });
        else visit(inner, setting && getChild(setting, key), innerPath);
      }
    };
    visit(value, getChild(known, name), [name]);
    return { name, settings: collected, omitted };
  });
}

function isDefault(value: unknown, text: string, setting: KnownSetting | undefined): boolean {
  const { defaultValue, expected: type = '' } = setting ?? {};
  if (defaultValue === undefined) return text === '[]' || text === '{}';
  if (typeof value === 'number' && typeof defaultValue === 'string')
    return (type.startsWith('a size') ? size : duration).safeParse(defaultValue).data === value;
  const defaultText = formatValue(defaultValue, setting) ?? JSON.stringify(defaultValue);
  // Paths are resolved against the folder of the file.
  return text === defaultText || (type.startsWith('a path') && text.endsWith(`/${defaultText}`));
}

/** Secrets that cannot be in a file of their own. */
const SECRET_NAME = /(?:secret|password|passphrase|token|hash|hashes|key)$/i;

function isHidden(value: unknown, setting: KnownSetting | undefined, path: SettingPath): boolean {
  // Entries of a list have the name of the list.
  const name = path.findLast((segment) => typeof segment === 'string') ?? '';
  const { expected: kind = '' } = setting ?? {};
  const isFile = kind.startsWith('a path');
  const isText = typeof value === 'string' || Array.isArray(value);
  return isText && !isFile && SECRET_NAME.test(name);
}

/**
 * Receivers accept keys in queries, and webhooks in paths. Redirect URIs and links are public: clients and pages show them.
 */
function hideUrlParts(text: string, path: SettingPath): string {
  if (path[0] === 'pages' || path.includes('redirectUris')) return text;
  const isWebhook = path[0] === 'audit' && path[1] === 'webhook';
  return text
    .replace(/(:\/\/)[^\s/?#,]*@/g, '$1[hidden]@')
    .replace(/(:\/\/[^\s?#,]*\?)[^\s,]+/g, '$1[hidden]')
    .replace(/^(https?:\/\/[^/?#]+\/)[^?#]+/, isWebhook ? '$1[hidden]' : '$&');
}

/** Returns undefined for a group or a list of groups. */
function formatValue(value: unknown, setting: KnownSetting | undefined): string | undefined {
  if (value === null) return 'null';
  if (typeof value === 'number') return formatQuantity(value, setting?.expected ?? '');
  if (typeof value === 'string' || typeof value === 'boolean') return String(value);
  if (value instanceof Map) return formatMap(value);
  if (value instanceof Set) return [...value].map(String).join(', ');
  if (Array.isArray(value))
    return value.every((item) => typeof item !== 'object') && !isSecretList(setting)
      ? `[${value.slice(0, MAX_ENTRIES).map(String).join(', ')}${value.length > MAX_ENTRIES ? ', …' : ''}]`
      : undefined;
  if (isPeers(value)) return `[${value.entries.slice(0, MAX_ENTRIES).join(', ')}]`;
  if (isRate(value)) return formatRate(value);
  return Object.keys(value as object).length === 0 ? '{}' : undefined;
}

const isSecretList = (setting: KnownSetting | undefined): boolean =>
  setting?.items !== undefined && listSecretNames(setting.items).length > 0;

/** A scope, by resource. */
const formatMap = (map: ReadonlyMap<unknown, unknown>): string =>
  [...map.values()].every((permissions) => permissions instanceof Set)
    ? formatScope(map as Scope)
    : [...map].map(([name, value]) => `${String(name)}: ${String(value)}`).join(', ');

const isPeers = (value: unknown): value is { readonly entries: readonly string[] } =>
  typeof value === 'object' && value !== null && 'hasEntries' in value && 'entries' in value;

interface Rate {
  readonly burst: number;
  readonly perSecond: number;
}
const isRate = (value: unknown): value is Rate =>
  typeof value === 'object' && value !== null && 'burst' in value && 'perSecond' in value;

function formatRate({ burst, perSecond }: Rate): string {
  const unit = { 1: 's', 60: 'm', 3600: 'h' }[Math.round(burst / perSecond)];
  return unit === undefined ? `${burst} at once, ${perSecond} per second` : `${burst}/${unit}`;
}

const DURATIONS = [
  ['d', 86_400],
  ['h', 3_600],
  ['m', 60],
  ['s', 1],
] as const;
const SIZES = [
  ['GiB', 1_073_741_824],
  ['MiB', 1_048_576],
  ['KiB', 1_024],
] as const;

/** Durations and sizes as in the file. */
function formatQuantity(value: number, expected: string): string {
  const units = expected.startsWith('a duration') ? DURATIONS : expected.startsWith('a size') ? SIZES : [];
  const found = units.find(([, length]) => value >= length && value % length === 0);
  if (found !== undefined) return `${value / found[1]}${found[0]}`;
  return expected.startsWith('a duration') ? `${Math.round(value * 1_000)}ms` : String(value);
}
