import type { CheckResult } from '../../admin/listener.ts';
import { largest } from '../../lib/extremes.ts';
import type { IntrospectionStatus, IssuerState, IssuerStatus } from '../../observability/gateway-status.ts';
import { html, type Markup } from '../../pages/views/html.ts';
import type { ReplicaStatus } from '../../ports/store.ts';
import { type ConsoleRequest, urlFor } from '../context.ts';
import { HISTORY_SECONDS, type Interval, quantileOf, sumCounts } from '../history.ts';
import { readSamples, readTotal, sumBy } from '../snapshot-reader.ts';
import { renderChart, type Series } from './chart.ts';
import { type ConfigurationState, renderConfigurationNotice } from './configuration-notice.ts';
import {
  formatDuration,
  formatNumber,
  formatSeconds,
  renderBadge,
  renderText,
  renderTime,
  type Tone,
} from './format.ts';

export interface Figures {
  readonly now: number;
  readonly history: ConsoleRequest['history'];
  readonly checks: readonly CheckResult[];
  /** Undefined if the store has no replicas. */
  readonly replicas: readonly ReplicaStatus[] | 'unavailable' | undefined;
  readonly configuration: ConfigurationState;
  readonly issuers: readonly ShownIssuer[];
  readonly introspection: readonly IntrospectionStatus[];
}

/** The keys of an issuer are fetched or in a file. */
type ShownIssuer = IssuerStatus | { readonly name: string; readonly state: 'in file' };

const RANGES = {
  '15m': { seconds: 900, text: '15 minutes' },
  '1h': { seconds: HISTORY_SECONDS, text: '1 hour' },
};
export type Range = keyof typeof RANGES;
export const parseRange = (text: string | null): Range => (text === '1h' ? '1h' : '15m');

/** Points of a chart; fewer for rare events. */
const PARTS = 180;
const FEW_PARTS = 60;
const MINUTE = 60;

export const renderOverview = (range: Range, figures: Markup): Markup => html`<div class="title">
<h1>Overview</h1>
<div class="controls"><span id="refresh-state" role="status"></span>
<button class="quiet" id="pause" type="button" hidden>Pause</button>
<span>${Object.entries(RANGES).map(([name, { text }]) => html`<a href="${urlFor('', { range: name })}"${name === range && { markup: ' aria-current="true"' }}>${text}</a> `)}</span></div>
</div>
<div id="figures" data-source="${urlFor('/figures', { range })}">
${figures}
</div>`;

export function renderFigures(range: Range, figures: Figures): Markup {
  const { seconds, text } = RANGES[range];
  const { history, now } = figures;
  const period: Period = { text, minute: history.total(now, MINUTE), whole: history.total(now, seconds) };
  const parts = history.parts(now, seconds, PARTS);
  const fewParts = history.parts(now, seconds, FEW_PARTS);
  return html`${renderConfigurationNotice(figures.configuration)}${renderIssuerNotice(figures)}${renderIntrospectionNotice(figures)}${renderTiles(figures)}
<div class="charts">
${renderRequests(parts, period)}
${renderLatency(parts, period)}
${renderRefusals(fewParts, period)}
${renderGrants(fewParts, period)}
</div>
${renderUpstreams(figures)}
${renderIssuers(figures)}
${renderExpiries(figures)}
${renderReplicas(figures)}`;
}

type Parts = readonly (Interval | undefined)[];

const EMPTY = 'No data yet: the first values appear within ten seconds.';

/** The period that the charts show: its name, its last minute, and all of it. */
interface Period {
  readonly text: string;
  readonly minute: Interval | undefined;
  readonly whole: Interval | undefined;
}

/** Events per second or minute. The legend has counts, which are easier to understand than small rates. */
const toSeries = (
  name: string,
  parts: Parts,
  unit: number,
  { text, minute, whole }: Period,
  count: (interval: Interval) => number,
): Series => ({
  name,
  values: parts.map((part) => part && (count(part) / part.seconds) * unit),
  legend: whole && [
    formatNumber(minute === undefined ? 0 : count(minute)),
    `in the last minute, ${formatNumber(count(whole))} in ${text}`,
  ],
});

const sumOf = (interval: Interval, ...decisions: readonly string[]): number =>
  decisions.reduce((sum, decision) => sum + (interval.decisions.get(decision) ?? 0), 0);

function renderRequests(parts: Parts, period: Period): Markup {
  const isBusy = parts.some((part) => part !== undefined && sumCounts(part.decisions) >= part.seconds);
  const toRequests = (name: string, ...decisions: readonly string[]): Series =>
    toSeries(name, parts, isBusy ? 1 : MINUTE, period, (part) => sumOf(part, ...decisions));
  const wouldRefuse = toRequests('would refuse (report-only)', 'would_refuse');
  return renderChart({
    id: 'requests',
    title: `Requests per ${isBusy ? 'second' : 'minute'}, by decision`,
    series: [
      toRequests('forwarded', 'forwarded'),
      toRequests('refused', 'refused'),
      toRequests('served by gatehouse', 'allowed', 'handled', 'none'),
      toRequests('failed', 'failed'),
      ...(wouldRefuse.values.some((value) => value !== undefined && value > 0) ? [wouldRefuse] : []),
    ],
    format: formatNumber,
    start: `${period.text} ago`,
    empty: EMPTY,
  });
}

function renderLatency(parts: Parts, { text }: Period): Markup {
  const quantile = (name: string, share: number): Series => {
    const values = parts.map((part) => part && quantileOf(part, share));
    const known = values.filter((value) => value !== undefined);
    const last = known.at(-1);
    const most = largest(known, 0);
    return {
      name,
      values,
      legend: last === undefined ? undefined : [formatSeconds(last), `now, at most ${formatSeconds(most)}`],
    };
  };
  return renderChart({
    id: 'latency',
    title: 'Latency of all requests',
    series: [quantile('half of them within', 0.5), quantile('95% within', 0.95), quantile('99% within', 0.99)],
    format: formatSeconds,
    start: `${text} ago`,
    empty: parts.some((part) => part !== undefined) ? 'No requests.' : EMPTY,
  });
}

const SHOWN_REASONS = 5;

function renderRefusals(parts: Parts, period: Period): Markup {
  const totals = new Map<string, number>();
  for (const part of parts)
    for (const [reason, count] of part?.refusals ?? []) totals.set(reason, (totals.get(reason) ?? 0) + count);
  const reasons = [...totals].toSorted(([, a], [, b]) => b - a).map(([reason]) => reason);
  const shown = reasons.slice(0, SHOWN_REASONS);
  const rest = reasons.slice(SHOWN_REASONS);
  const countRest = (part: Interval): number => rest.reduce((sum, reason) => sum + (part.refusals.get(reason) ?? 0), 0);
  return renderChart({
    id: 'refusals',
    title: 'Refusals per minute, by reason',
    series: [
      ...shown.map((reason) =>
        toSeries(reason.replaceAll('_', ' '), parts, MINUTE, period, (part) => part.refusals.get(reason) ?? 0),
      ),
      ...(rest.length > 0 ? [toSeries(`${rest.length} others`, parts, MINUTE, period, countRest)] : []),
    ],
    format: formatNumber,
    start: `${period.text} ago`,
    empty: parts.some((part) => part !== undefined) ? 'No request was refused.' : EMPTY,
  });
}

function renderGrants(parts: Parts, period: Period): Markup {
  return renderChart({
    id: 'grants',
    title: 'Grants per minute',
    series: [
      toSeries('issued', parts, MINUTE, period, ({ tokens }) => sumCounts(tokens) - (tokens.get('refresh') ?? 0)),
      toSeries('revoked', parts, MINUTE, period, ({ revocations }) => revocations),
      toSeries('refreshed', parts, MINUTE, period, ({ tokens }) => tokens.get('refresh') ?? 0),
    ],
    format: formatNumber,
    start: `${period.text} ago`,
    empty: EMPTY,
  });
}

function renderTiles({ history, now, checks, replicas }: Figures): Markup {
  const { latest } = history;
  const minute = history.total(now, MINUTE);
  const problems = checks.filter(({ problem }) => problem !== undefined);
  const requests = minute === undefined ? undefined : sumCounts(minute.decisions);
  const refused = minute && sumOf(minute, 'refused');
  const failed = minute && sumOf(minute, 'failed');
  const p95 = minute && quantileOf(minute, 0.95);
  const p99 = minute && quantileOf(minute, 0.99);
  const startedAt = readTotal(latest, 'process_start_time_seconds');
  const lag = readTotal(latest, 'gatehouse_revocation_lag_seconds');
  return html`<dl class="tiles">
${renderTile(
  'Status',
  problems.length === 0 ? renderBadge('ready', 'good') : renderBadge('not ready', 'bad'),
  problems.length === 0
    ? `up for ${startedAt === undefined ? '–' : formatDuration(now - startedAt)}`
    : problems.map(({ name, problem }) => `${name}: ${problem}`).join('; '),
)}
${renderTile('Requests', formatCount(requests), `in the last minute${describeRate(requests, minute)}`)}
${renderTile('Refused', formatCount(refused), `of them${describeShare(refused, requests)}; ${failed ? `${formatNumber(failed)} failed` : 'none failed'}`)}
${renderTile('Latency', p95 === undefined ? '–' : formatSeconds(p95), p99 === undefined ? 'no request in the last minute' : `95% of requests take less; 99%: ${formatSeconds(p99)}`)}
${renderTile('In progress', formatNumber(readTotal(latest, 'gatehouse_http_requests_in_flight') ?? 0), `requests, on ${formatNumber(readTotal(latest, 'gatehouse_connections') ?? 0)} open connections`)}
${renderTile('Workers', formatNumber(readTotal(latest, 'gatehouse_workers') ?? 0), `event loop delay ${formatSeconds(readTotal(latest, 'gatehouse_event_loop_lag_seconds') ?? 0)}`)}
${replicas !== undefined && renderTile('Revocation lag', lag === undefined ? '–' : formatSeconds(lag), 'since all were known')}
</dl>`;
}

const formatCount = (count: number | undefined): string => (count === undefined ? '–' : formatNumber(count));

/** Only where it is at least one per second. */
const describeRate = (requests = 0, minute?: Interval): string =>
  minute === undefined || requests < minute.seconds ? '' : `, ${formatNumber(requests / minute.seconds)} per second`;

const describeShare = (count = 0, total = 0): string => {
  const percent = Math.round((100 * count) / total);
  return count === 0 ? '' : ` (${percent < 1 ? 'less than 1' : percent} %)`;
};

const renderTile = (name: string, value: Markup | string, note: string): Markup =>
  html`<div><dt>${name}</dt><dd>${value}<small>${renderText(note)}</small></dd></div>`;

const renderTable = (
  id: string,
  title: string,
  head: Markup,
  rows: readonly Markup[],
  empty: string,
): Markup => html`<h2 id="${id}">${title}</h2>
${
  rows.length === 0
    ? html`<p class="soft">${empty}</p>`
    : html`<div class="card scroll" role="region" aria-labelledby="${id}" tabindex="0" id="${id}-table">
<table>
<thead><tr>${head}</tr></thead>
<tbody>
${rows}</tbody>
</table>
</div>`
}
`;

function renderUpstreams({ history: { latest } }: Figures): Markup {
  const targets = sumBy(latest, 'gatehouse_upstream_targets', 'upstream');
  const ejected = sumBy(latest, 'gatehouse_upstream_ejected', 'upstream');
  const pending = sumBy(latest, 'gatehouse_upstream_pending', 'upstream');
  const errors = sumBy(latest, 'gatehouse_upstream_errors_total', 'upstream');
  const serverErrors = new Map<string, number>();
  const responses = new Map<string, number>();
  for (const { labels, value } of readSamples(latest, 'gatehouse_upstream_requests_total')) {
    const { upstream = '', code } = labels;
    responses.set(upstream, (responses.get(upstream) ?? 0) + value);
    if (code === '5xx') serverErrors.set(upstream, value);
  }
  const rows = [...targets].map(([name, count]) => {
    const out = ejected.get(name) ?? 0;
    const [text, tone]: [string, Tone] =
      out === 0 ? ['healthy', 'good'] : out < count ? [`${out} of ${count} ejected`, 'warn'] : ['all ejected', 'bad'];
    return html`<tr><th scope="row">${renderText(name, 64)}</th><td>${renderBadge(text, tone)}</td><td class="number">${formatNumber(count)}</td><td class="number">${formatNumber(pending.get(name) ?? 0)}</td><td class="number">${formatNumber(responses.get(name) ?? 0)}</td><td class="number">${formatNumber(serverErrors.get(name) ?? 0)}</td><td class="number">${formatNumber(errors.get(name) ?? 0)}</td></tr>\n`;
  });
  const head = html`<th scope="col">Upstream</th><th scope="col">State</th><th scope="col" class="number">Targets</th><th scope="col" class="number">Active requests</th><th scope="col" class="number">Responses</th><th scope="col" class="number">5xx</th><th scope="col" class="number">No response</th>`;
  return renderTable('upstreams', 'Upstreams', head, rows, 'No upstream is configured.');
}

const ISSUER_STATES: Readonly<Record<IssuerState, readonly [text: string, tone: Tone]>> = {
  available: ['available', 'good'],
  waiting: ['keys are being fetched', 'neutral'],
  failing: ['last keys in use', 'warn'],
  unavailable: ['unavailable', 'bad'],
};
const MAX_ERROR = 600;
const MAX_NAMED_ISSUERS = 5;

function renderIssuerNotice({ issuers }: Figures): Markup | false {
  const names = issuers.filter(({ state }) => state === 'unavailable').map(({ name }) => name);
  const named = names.slice(0, MAX_NAMED_ISSUERS);
  const rest = names.length - named.length;
  return (
    names.length > 0 &&
    html`<section class="note bad" aria-labelledby="unavailable-issuers">
<h2 id="unavailable-issuers">Keys cannot be fetched</h2>
<p>Tokens of ${named.map((name, index) => html`${index > 0 && ', '}${renderText(name, 128)}`)}${rest > 0 && ` and ${rest} more`} get 503. The <a href="#issuers">list of trusted issuers</a> has the errors.</p>
</section>
`
  );
}

function renderIntrospectionNotice({ introspection }: Figures): Markup | false {
  const failing = introspection.filter(({ failure }) => failure !== undefined);
  const rest = failing.length - MAX_NAMED_ISSUERS;
  return (
    failing.length > 0 &&
    html`<section class="note bad" aria-labelledby="failing-introspection">
<h2 id="failing-introspection">Tokens cannot be introspected</h2>
<p>Opaque tokens of these issuers get 503, unless their state is cached:</p>
<ul>
${failing.slice(0, MAX_NAMED_ISSUERS).map(({ name, failure }) => html`<li>${renderText(name, 128)}${failure && html`, since ${renderTime(failure.since)}: ${renderText(failure.error, MAX_ERROR)}`}</li>\n`)}${rest > 0 && html`<li>and ${rest} more</li>\n`}</ul>
</section>
`
  );
}

function renderIssuers({ issuers }: Figures): Markup {
  const rows = issuers
    .toSorted((a, b) => a.name.localeCompare(b.name))
    .map((issuer) => {
      const name = html`<th scope="row">${renderText(issuer.name, 128)}</th>`;
      if (issuer.state === 'in file')
        return html`<tr>${name}<td>${renderBadge('available', 'good')}</td><td>in a file</td><td>–</td></tr>\n`;
      const { state, fetchedAt, failure } = issuer;
      const fetched = fetchedAt === undefined ? 'never' : renderTime(fetchedAt);
      const error =
        failure === undefined ? '–' : html`since ${renderTime(failure.since)}: ${renderText(failure.error, MAX_ERROR)}`;
      return html`<tr>${name}<td>${renderBadge(...ISSUER_STATES[state])}</td><td>${fetched}</td><td>${error}</td></tr>\n`;
    });
  const head = html`<th scope="col">Name</th><th scope="col">State</th><th scope="col">Keys fetched</th><th scope="col">Error</th>`;
  return renderTable('issuers', 'Trusted issuers', head, rows, 'None is configured.');
}

interface Expiry {
  readonly what: string;
  readonly kind: 'certificate' | 'revocation list';
  readonly until: number;
}

const DAY = 86_400;
/** Seconds before the end from which it is shown as a warning, and as a problem. */
const EXPIRY_LIMITS = {
  certificate: { warn: 30 * DAY, bad: 7 * DAY },
  'revocation list': { warn: DAY, bad: 0 },
} as const;

function renderExpiries({ history: { latest }, now }: Figures): Markup {
  const expiries: Expiry[] = [
    ...readSamples(latest, 'gatehouse_tls_cert_not_after_seconds').map(({ labels, value }) => ({
      what: (labels['cert'] ?? '').replace(/^issuer:/, 'issuer '),
      kind: 'certificate' as const,
      until: value,
    })),
    ...readSamples(latest, 'gatehouse_crl_next_update_seconds').map(({ labels, value }) => ({
      what: `issuer ${labels['issuer'] ?? ''}`,
      kind: 'revocation list' as const,
      until: value,
    })),
  ];
  const rows = expiries
    .toSorted((a, b) => a.until - b.until)
    .map(({ what, kind, until }) => {
      const left = until - now;
      const { warn, bad } = EXPIRY_LIMITS[kind];
      const tone = left <= bad ? 'bad' : left <= warn ? 'warn' : 'good';
      const text = left <= 0 ? 'expired' : `${formatDuration(left)} left`;
      return html`<tr><th scope="row">${renderText(what, 128)}</th><td>${kind}</td><td>${renderBadge(text, tone)}</td><td>${renderTime(until)}</td></tr>\n`;
    });
  const head = html`<th scope="col">Name</th><th scope="col">Kind</th><th scope="col">State</th><th scope="col">Until</th>`;
  return renderTable('expiries', 'Certificates and revocation lists', head, rows, 'None is configured.');
}

/** A replica without a heartbeat for longer has lost its connection. */
const REPLICA_WARN_SECONDS = 2;

function renderReplicas({ replicas }: Figures): Markup {
  const head = html`<th scope="col">Process</th><th scope="col">State</th><th scope="col" class="number">Last heartbeat</th><th scope="col" class="number">Revocation lag</th>`;
  const title = 'Replicas';
  if (replicas === undefined)
    return renderTable('replicas', title, head, [], 'The embedded store is used by this gatehouse only.');
  if (replicas === 'unavailable')
    return renderTable('replicas', title, head, [], 'Redis is unreachable: replicas are not known.');
  const rows = replicas
    .toSorted((a, b) => a.name.localeCompare(b.name))
    .map(({ name, isSelf, heartbeatAge, lag }) => {
      const isLate = Math.max(heartbeatAge, lag) > REPLICA_WARN_SECONDS;
      return html`<tr><th scope="row">${renderText(name, 128)}${isSelf && html` <span class="soft">(this process)</span>`}</th><td>${isLate ? renderBadge('behind', 'warn') : renderBadge('current', 'good')}</td><td class="number">${formatSeconds(heartbeatAge)} ago</td><td class="number">${formatSeconds(lag)}</td></tr>\n`;
    });
  return renderTable('replicas', title, head, rows, 'No process has registered yet.');
}
