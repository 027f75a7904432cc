import type { CheckResult } from '../admin/listener.ts';
import type { GatewayStatus, IssuerState, IssuerStatus } from '../observability/gateway-status.ts';
import { html, type Markup } from '../pages/views/html.ts';
import { Fault } from '../ports/fault.ts';
import type { ReplicaStatus } from '../ports/store.ts';
import { renderConfigurationNotice } from './configuration.ts';
import { type ConsoleHandler, type ConsoleRequest, urlFor } from './context.ts';
import { type Interval, quantileOf, readSamples, readTotal, sumBy, sumCounts } from './history.ts';
import {
  formatDuration,
  formatNumber,
  formatSeconds,
  renderBadge,
  renderText,
  renderTime,
  type Tone,
} from './views/format.ts';

export const showOverview: ConsoleHandler = async (request) => {
  const { deps, history, runChecks } = request;
  const [checks, replicas, status] = await Promise.all([runChecks(), readReplicas(deps), deps.getStatus()]);
  const issuers = listShownIssuers(request, status);
  return {
    title: 'Overview',
    body: html`<div class="title">
<h1>Overview</h1>
<a href="${urlFor('')}">Refresh</a>
</div>
${renderConfigurationNotice(request, status)}${renderIssuerNotices(issuers, status)}${renderTiles(request, history.getLastMinute(), checks, replicas !== undefined)}
${renderUpstreams(request)}
${renderIssuers(issuers)}
${renderExpiries(request)}
${renderReplicas(replicas)}`,
  };
};

/** The keys of an issuer are fetched or in a file. */
type ShownIssuer = IssuerStatus | { readonly name: string; readonly state: 'in file' };

/** All trusted issuers, and integrations whose keys cannot be fetched: there may be many of them. */
function listShownIssuers({ deps }: ConsoleRequest, { issuers }: GatewayStatus): readonly ShownIssuer[] {
  const { trustedIssuers } = deps.getSettings();
  return [
    ...issuers.filter(({ name, state }) => Object.hasOwn(trustedIssuers, name) || state !== 'available'),
    ...Object.entries(trustedIssuers)
      .filter(([, { jwksFile }]) => jwksFile !== undefined)
      .map(([name]) => ({ name, state: 'in file' as const })),
  ];
}

/** Undefined if the store has no replicas. */
type Replicas = readonly ReplicaStatus[] | 'unavailable' | undefined;

async function readReplicas({ listReplicas }: ConsoleRequest['deps']): Promise<Replicas> {
  try {
    return await listReplicas();
  } catch (error) {
    if (error instanceof Fault) return 'unavailable';
    throw error;
  }
}

function renderTiles(
  { deps, history: { latest } }: ConsoleRequest,
  minute: Interval | undefined,
  checks: readonly CheckResult[],
  hasReplicas: boolean,
): Markup {
  const problems = checks.filter(({ problem }) => problem !== undefined);
  const requests = minute && sumCounts(minute.decisions);
  const refused = minute && (minute.decisions.get('refused') ?? 0);
  const failed = minute?.decisions.get('failed') ?? 0;
  const refreshed = minute?.tokens.get('refresh') ?? 0;
  const p95 = minute && quantileOf(minute, 0.95);
  const p99 = minute && quantileOf(minute, 0.99);
  const startedAt = readTotal(latest, 'process_start_time_seconds');
  const lag = readTotal(latest, 'gatehouse_revocation_lag_seconds');
  return html`<dl class="tiles">
${renderTile(
  'Status',
  problems.length === 0 ? renderBadge('ready', 'good') : renderBadge('not ready', 'bad'),
  problems.length === 0
    ? `up for ${startedAt === undefined ? '–' : formatDuration(deps.now() - startedAt)}`
    : problems.map(({ name, problem }) => `${name}: ${problem}`).join('; '),
)}
${renderTile('Requests', formatOptional(requests), `in the last minute${describeRate(requests, minute)}`)}
${renderTile('Refused', formatOptional(refused), `of them${describeShare(refused, requests)}; ${failed > 0 ? formatNumber(failed) : 'none'} failed${describeReasons(minute)}`)}
${renderTile('Latency', p95 === undefined ? '–' : formatSeconds(p95), p99 === undefined ? 'no request in the last minute' : `95% of requests take less; 99%: ${formatSeconds(p99)}`)}
${renderTile('Grants', formatOptional(minute && sumCounts(minute.tokens) - refreshed), `issued in the last minute; ${formatNumber(refreshed)} refreshed, ${formatNumber(minute?.revocations ?? 0)} revoked`)}
${renderTile('In progress', formatNumber(readTotal(latest, 'gatehouse_http_requests_in_flight') ?? 0), `requests, on ${formatNumber(readTotal(latest, 'gatehouse_connections') ?? 0)} open connections`)}
${renderTile('Workers', formatNumber(readTotal(latest, 'gatehouse_workers') ?? 0), `event loop delay ${formatSeconds(readTotal(latest, 'gatehouse_event_loop_lag_seconds') ?? 0)}`)}
${hasReplicas && renderTile('Revocation lag', lag === undefined ? '–' : formatSeconds(lag), 'since all were known')}
</dl>`;
}

const formatOptional = (count: number | undefined): string => (count === undefined ? '–' : formatNumber(count));

/** Only where it is at least one per second. */
const describeRate = (requests = 0, minute?: Interval): string =>
  minute === undefined || requests < minute.seconds ? '' : `, ${formatNumber(requests / minute.seconds)} per second`;

const describeShare = (count = 0, total = 0): string => {
  const percent = Math.round((100 * count) / total);
  return count === 0 ? '' : ` (${percent < 1 ? 'less than 1' : percent} %)`;
};

const SHOWN_REASONS = 3;

/** The most frequent reasons. */
function describeReasons(minute: Interval | undefined): string {
  const reasons = [...(minute?.refusals ?? [])].toSorted(([, a], [, b]) => b - a).slice(0, SHOWN_REASONS);
  const texts = reasons.map(([reason, count]) => `${reason.replaceAll('_', ' ')}: ${formatNumber(count)}`);
  return texts.length === 0 ? '' : `; ${texts.join(', ')}`;
}

const renderTile = (name: string, value: Markup | string, note: string): Markup =>
  html`<div><dt>${name}</dt><dd>${value}<small>${renderText(note)}</small></dd></div>`;

interface Table {
  readonly id: string;
  readonly title: string;
  readonly columns: readonly string[];
  /** The columns after these contain numbers. */
  readonly textColumns?: number;
  /** The first cell of a row is its header. */
  readonly rows: readonly (readonly (Markup | string)[])[];
  readonly empty: string;
}

function renderTable({ id, title, columns, textColumns = columns.length, rows, empty }: Table): Markup {
  const style = (column: number) => column >= textColumns && { markup: ' class="number"' };
  return html`<h2 id="${id}">${title}</h2>
${
  rows.length === 0
    ? html`<p class="soft">${empty}</p>`
    : html`<div class="card scroll" role="region" aria-labelledby="${id}" tabindex="0" id="${id}-table">
<table>
<thead><tr>${columns.map((name, at) => html`<th scope="col"${style(at)}>${name}</th>`)}</tr></thead>
<tbody>
${rows.map(([name, ...cells]) => html`<tr><th scope="row">${name}</th>${cells.map((cell, at) => html`<td${style(at + 1)}>${cell}</td>`)}</tr>\n`)}</tbody>
</table>
</div>`
}
`;
}

function renderUpstreams({ history: { latest } }: ConsoleRequest): Markup {
  const ejected = sumBy(latest, 'gatehouse_upstream_ejected', 'upstream');
  const counts = [
    sumBy(latest, 'gatehouse_upstream_targets', 'upstream'),
    sumBy(latest, 'gatehouse_upstream_pending', 'upstream'),
    sumBy(latest, 'gatehouse_upstream_requests_total', 'upstream'),
    sumBy(latest, 'gatehouse_upstream_requests_total', 'upstream', ({ code }) => code === '5xx'),
    sumBy(latest, 'gatehouse_upstream_errors_total', 'upstream'),
  ] as const;
  return renderTable({
    id: 'upstreams',
    title: 'Upstreams',
    columns: ['Upstream', 'State', 'Targets', 'Active requests', 'Responses', '5xx', 'No response'],
    textColumns: 2,
    rows: Array.from(counts[0], ([name, targets]) => {
      const out = ejected.get(name) ?? 0;
      const [text, tone]: [string, Tone] =
        out === 0
          ? ['healthy', 'good']
          : out < targets
            ? [`${out} of ${targets} ejected`, 'warn']
            : ['all ejected', 'bad'];
      const numbers = counts.map((count) => formatNumber(count.get(name) ?? 0));
      return [renderText(name, 64), renderBadge(text, tone), ...numbers];
    }),
    empty: 'No upstream is configured.',
  });
}

const ISSUER_STATES: Readonly<Record<IssuerState, readonly [text: string, tone: Tone]>> = {
  available: ['available', 'good'],
  waiting: ['keys are being fetched', 'neutral'],
  failing: ['last keys in use', 'warn'],
  unavailable: ['unavailable', 'bad'],
};
const MAX_ERROR = 600;
const MAX_NAMED_ISSUERS = 5;

const renderFailure = ({ since, error }: NonNullable<IssuerStatus['failure']>): Markup =>
  html`since ${renderTime(since)}: ${renderText(error, MAX_ERROR)}`;

function renderIssuerNotice(
  title: string,
  text: string,
  failing: readonly { readonly name: string; readonly failure?: IssuerStatus['failure'] }[],
): Markup | false {
  const rest = failing.length - MAX_NAMED_ISSUERS;
  return (
    failing.length > 0 &&
    html`<section class="note bad">
<h2>${title}</h2>
<p>${text}</p>
<ul>
${failing.slice(0, MAX_NAMED_ISSUERS).map(({ name, failure }) => html`<li>${renderText(name, 128)}${failure && html`, ${renderFailure(failure)}`}</li>\n`)}${rest > 0 && html`<li>and ${rest} more</li>\n`}</ul>
</section>
`
  );
}

const renderIssuerNotices = (issuers: readonly ShownIssuer[], { introspection }: GatewayStatus): Markup =>
  html`${renderIssuerNotice(
    'Keys cannot be fetched',
    'Tokens of these issuers get 503:',
    issuers.filter((issuer) => issuer.state === 'unavailable'),
  )}${renderIssuerNotice(
    'Tokens cannot be introspected',
    'Opaque tokens of these issuers get 503, unless their state is cached:',
    introspection.filter(({ failure }) => failure !== undefined),
  )}`;

const sortByName = <T extends { readonly name: string }>(entries: readonly T[]): readonly T[] =>
  entries.toSorted((a, b) => a.name.localeCompare(b.name));

const renderIssuers = (issuers: readonly ShownIssuer[]): Markup =>
  renderTable({
    id: 'issuers',
    title: 'Trusted issuers',
    columns: ['Name', 'State', 'Keys fetched', 'Error'],
    rows: sortByName(issuers).map((issuer) => {
      const name = renderText(issuer.name, 128);
      if (issuer.state === 'in file') return [name, renderBadge('available', 'good'), 'in a file', '–'];
      const { state, fetchedAt, failure } = issuer;
      const fetched = fetchedAt === undefined ? 'never' : renderTime(fetchedAt);
      return [
        name,
        renderBadge(...ISSUER_STATES[state]),
        fetched,
        failure === undefined ? '–' : renderFailure(failure),
      ];
    }),
    empty: 'None is configured.',
  });

const DAY = 86_400;
/** Seconds before the end from which it is shown as a warning, and as a problem. */
const EXPIRY_LIMITS = {
  certificate: { warn: 30 * DAY, bad: 7 * DAY },
  'revocation list': { warn: DAY, bad: 0 },
} as const;

function renderExpiries({ deps, history: { latest } }: ConsoleRequest): Markup {
  const expiries = [
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
  return renderTable({
    id: 'expiries',
    title: 'Certificates and revocation lists',
    columns: ['Name', 'Kind', 'State', 'Until'],
    rows: expiries
      .toSorted((a, b) => a.until - b.until)
      .map(({ what, kind, until }) => {
        const left = until - deps.now();
        const { warn, bad } = EXPIRY_LIMITS[kind];
        const tone = left <= bad ? 'bad' : left <= warn ? 'warn' : 'good';
        const text = left <= 0 ? 'expired' : `${formatDuration(left)} left`;
        return [renderText(what, 128), kind, renderBadge(text, tone), renderTime(until)];
      }),
    empty: 'None is configured.',
  });
}

/** A replica without a heartbeat for longer has lost its connection. */
const REPLICA_WARN_SECONDS = 2;

const renderReplicas = (replicas: Replicas): Markup =>
  renderTable({
    id: 'replicas',
    title: 'Replicas',
    columns: ['Process', 'State', 'Last heartbeat', 'Revocation lag'],
    textColumns: 2,
    rows: sortByName(Array.isArray(replicas) ? (replicas as readonly ReplicaStatus[]) : []).map(
      ({ name, isSelf, heartbeatAge, lag }) => [
        html`${renderText(name, 128)}${isSelf && html` <span class="soft">(this process)</span>`}`,
        Math.max(heartbeatAge, lag) > REPLICA_WARN_SECONDS
          ? renderBadge('behind', 'warn')
          : renderBadge('current', 'good'),
        `${formatSeconds(heartbeatAge)} ago`,
        formatSeconds(lag),
      ],
    ),
    empty:
      replicas === undefined
        ? 'The embedded store is used by this gatehouse only.'
        : replicas === 'unavailable'
          ? 'Redis is unreachable: replicas are not known.'
          : 'No process has registered yet.',
  });
