import { type Counter, createRegistry, type Histogram, observe, type Registry } from './metric-registry.ts';

/**
 * The figures of this process. What is counted for every request goes into numbers and arrays that stand ready: no
 * object and no text is made for it.
 */
export interface Metrics extends Registry {
  /** Where the requests of a rule are counted; asked for once for each configuration. */
  rule(name: string): RuleHandle;
  /** The same, and the one for requests that no rule matched. Names are ours or the configuration's, never a stranger's. */
  ruleNamed(name: string | undefined): RuleHandle;
  requestBegan(): void;
  /** `seconds` undefined: counted, and not in the histogram. */
  requestDone(rule: RuleHandle, method: string | undefined, status: number, seconds?: number): void;
  decided(decision: string | undefined, reason: string | undefined): void;
  /** Where the answers of an upstream are counted, by its name in the configuration. */
  upstream(name: string): UpstreamMetrics;
}

/** Stands for a rule; means something only to the metrics that gave it out. */
export type RuleHandle = number;

/** `failed`: no connection, or none that was kept up. `overloaded`: too many waited for one, so that it was not asked. */
const UPSTREAM_ERRORS = ['failed', 'timeout', 'broke_off', 'overloaded'] as const;
export type UpstreamError = (typeof UPSTREAM_ERRORS)[number];

export interface UpstreamMetrics {
  /** `seconds` undefined: nobody has measured it. */
  answered(status: number, seconds: number | undefined): void;
  failed(kind: UpstreamError): void;
}

/** What no rule matched, and what was refused before one was looked for. */
const NO_RULE = 'none';

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'OTHER'] as const;
const OTHER = METHODS.length - 1;
const METHOD_INDEX: ReadonlyMap<string, number> = new Map(METHODS.map((name, index) => [name, index]));
const FIRST_STATUS = 100;
const STATUSES = 500;
const MOST_RULES = 1_000;
const MOST_REASONS = 200;

interface RuleSeries {
  readonly name: string;
  /** By method; by status; made with the first request of its kind. */
  readonly byMethod: (Float64Array | undefined)[];
  readonly seconds: Histogram;
}

export function createMetrics(): Metrics {
  const registry = createRegistry();
  const rules: RuleSeries[] = [];
  const handles = new Map<string, RuleHandle>();
  let inFlight = 0;

  const rule = (name: string): RuleHandle => {
    const known = handles.get(name);
    if (known !== undefined) return known;
    // A long life of many configurations: what comes late shares a place.
    if (rules.length >= MOST_RULES) return name === 'other' ? NONE : rule('other');
    const handle = rules.length;
    rules.push({
      name,
      byMethod: METHODS.map(() => undefined),
      seconds: registry.histogram('gatehouse_http_request_duration_seconds', name),
    });
    handles.set(name, handle);
    return handle;
  };
  const NONE = rule(NO_RULE);
  rule('other');

  const upstreams = new Map<string, UpstreamMetrics>();
  const decisions = new Map<string, Map<string, Counter>>();
  let reasons = 0;
  const decisionCounter = (decision: string, reason: string): Counter => {
    let byReason = decisions.get(decision);
    if (byReason === undefined) decisions.set(decision, (byReason = new Map()));
    const known = byReason.get(reason);
    if (known !== undefined) return known;
    const word = reasonWord(reason);
    const counter = registry.counter('gatehouse_auth_decisions_total', decision, word);
    // The words are ours; some carry a detail, and those are not remembered.
    if (word === reason && reasons < MOST_REASONS) {
      reasons += 1;
      byReason.set(reason, counter);
    }
    return counter;
  };
  const forwarded = decisionCounter('forwarded', 'none');
  decisionCounter('refused', 'token_missing');

  registry.collect((set) => {
    set('gatehouse_http_requests_in_flight', inFlight);
    for (const { name, byMethod } of rules)
      byMethod.forEach((counts, method) =>
        counts?.forEach((count, at) => {
          if (count > 0)
            set(
              'gatehouse_http_requests_total',
              count,
              name,
              METHODS[method] ?? 'OTHER',
              at === STATUSES ? 'other' : String(FIRST_STATUS + at),
            );
        }),
      );
  });

  return {
    ...registry,
    rule,
    ruleNamed: (name) => (name === undefined ? NONE : (handles.get(name) ?? rule(name))),
    requestBegan() {
      inFlight += 1;
    },
    requestDone(handle, method, status, seconds) {
      inFlight -= 1;
      const { byMethod, seconds: histogram } = rules[handle] as RuleSeries;
      const index = (method === undefined ? undefined : METHOD_INDEX.get(method)) ?? OTHER;
      const counts = (byMethod[index] ??= new Float64Array(STATUSES + 1));
      const at = status - FIRST_STATUS;
      const slot = at >= 0 && at < STATUSES ? at : STATUSES;
      counts[slot] = (counts[slot] ?? 0) + 1;
      if (seconds !== undefined) observe(histogram, seconds);
    },
    decided(decision = 'none', reason = 'none') {
      if (decision === 'forwarded' && reason === 'none') forwarded.value += 1;
      else decisionCounter(decision, reason).value += 1;
    },
    upstream(name) {
      const known = upstreams.get(name);
      if (known !== undefined) return known;
      const classes = ['1xx', '2xx', '3xx', '4xx', '5xx'].map((code) =>
        registry.counter('gatehouse_upstream_requests_total', name, code),
      );
      const errors = Object.fromEntries(
        UPSTREAM_ERRORS.map((kind) => [
          kind,
          registry.counter('gatehouse_upstream_errors_total', name, kind),
        ]),
      ) as Record<UpstreamError, Counter>;
      const duration = registry.histogram('gatehouse_upstream_request_duration_seconds', name);
      const made: UpstreamMetrics = {
        answered(status, seconds) {
          const counter = classes[Math.trunc(status / 100) - 1] ?? classes[4];
          if (counter !== undefined) counter.value += 1;
          if (seconds !== undefined) observe(duration, seconds);
        },
        failed(kind) {
          errors[kind].value += 1;
        },
      };
      upstreams.set(name, made);
      return made;
    },
  };
}

/** `malformed: an encoded slash` and `no_rule (…)` tell a detail; the word before it is the reason. */
function reasonWord(reason: string): string {
  const [word = ''] = /^[a-z][a-z0-9_]{0,63}/.exec(reason) ?? [];
  return word === '' ? 'other' : word;
}
