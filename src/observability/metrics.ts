import { type Counter, createRegistry, type Histogram, observe, type Registry } from './metric-registry.ts';

/** Index of a rule; valid only for the `Metrics` that returned it. */
type RuleHandle = number;

/** `failed`: no connection, or it broke. `overloaded`: too many requests waited, or too many event streams were open. */
const UPSTREAM_ERROR_KINDS = ['failed', 'timeout', 'aborted', 'overloaded'] as const;
export type UpstreamErrorKind = (typeof UPSTREAM_ERROR_KINDS)[number];

export type UpstreamMetrics = ReturnType<typeof createUpstreamMetrics>;

/** Requests without a matching rule, or refused before rules were matched. */
const NO_RULE = 'none';

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'OTHER'] as const;
const OTHER = METHODS.length - 1;
const METHOD_INDEX: ReadonlyMap<string, number> = new Map(METHODS.map((name, index) => [name, index]));
const FIRST_STATUS = 100;
const STATUS_COUNT = 500;
const MAX_RULES = 1_000;
const MAX_REASONS = 200;

interface RuleSeries {
  readonly name: string;
  /** By method, then by status; allocated on first use. */
  readonly byMethod: (Float64Array | undefined)[];
  readonly seconds: Histogram;
}

export type Metrics = ReturnType<typeof createMetrics>;

/** Metrics of this process. Counting a request allocates nothing: counters are preallocated numbers and arrays. */
export function createMetrics() {
  const registry = createRegistry();
  const rules: RuleSeries[] = [];
  const handles = new Map<string, RuleHandle>();
  let inFlight = 0;

  const registerRule = (name: string): RuleHandle => {
    const existing = handles.get(name);
    if (existing !== undefined) return existing;
    // Beyond the limit, rules of later configurations share one series.
    if (rules.length >= MAX_RULES) return name === 'other' ? noRule : registerRule('other');
    const handle = rules.length;
    rules.push({
      name,
      byMethod: METHODS.map(() => undefined),
      seconds: registry.histogram('gatehouse_http_request_duration_seconds', name),
    });
    handles.set(name, handle);
    return handle;
  };
  const noRule = registerRule(NO_RULE);
  registerRule('other');

  const upstreams = new Map<string, UpstreamMetrics>();
  const getDecisionCounter = createDecisionCounters(registry);
  const forwarded = getDecisionCounter('forwarded', 'none');
  getDecisionCounter('refused', 'token_missing');

  registry.addCollector((set) => {
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
              at === STATUS_COUNT ? 'other' : String(FIRST_STATUS + at),
            );
        }),
      );
  });

  return {
    ...registry,
    /** Called once per rule and configuration. */
    registerRule,
    /** Without a name, returns the handle for requests without a matching rule. Names must not come from clients. */
    getRule: (name: string | undefined): RuleHandle =>
      name === undefined ? noRule : (handles.get(name) ?? registerRule(name)),
    requestStarted(): void {
      inFlight += 1;
    },
    /** `seconds` undefined: counted, but not in the histogram. */
    requestCompleted(handle: RuleHandle, method: string | undefined, status: number, seconds?: number): void {
      inFlight -= 1;
      const { byMethod, seconds: histogram } = rules[handle] as RuleSeries;
      const index = (method === undefined ? undefined : METHOD_INDEX.get(method)) ?? OTHER;
      const counts = (byMethod[index] ??= new Float64Array(STATUS_COUNT + 1));
      const at = status - FIRST_STATUS;
      const statusIndex = at >= 0 && at < STATUS_COUNT ? at : STATUS_COUNT;
      counts[statusIndex] = (counts[statusIndex] ?? 0) + 1;
      if (seconds !== undefined) observe(histogram, seconds);
    },
    countDecision(decision = 'none', reason = 'none'): void {
      if (decision === 'forwarded' && reason === 'none') forwarded.value += 1;
      else getDecisionCounter(decision, reason).value += 1;
    },
    /** `rule` and `limit` must not come from clients. */
    countRateLimited(rule = NO_RULE, limit: string): void {
      registry.counter('gatehouse_rate_limited_requests_total', rule, limit).value += 1;
    },
    upstream(name: string): UpstreamMetrics {
      const existing = upstreams.get(name);
      if (existing !== undefined) return existing;
      const upstreamMetrics = createUpstreamMetrics(registry, name);
      upstreams.set(name, upstreamMetrics);
      return upstreamMetrics;
    },
  };
}

function createDecisionCounters(registry: Registry): (decision: string, reason: string) => Counter {
  const decisions = new Map<string, Map<string, Counter>>();
  let reasons = 0;
  return (decision, reason) => {
    let byReason = decisions.get(decision);
    if (byReason === undefined) decisions.set(decision, (byReason = new Map()));
    const existing = byReason.get(reason);
    if (existing !== undefined) return existing;
    // `malformed: an encoded slash` and `no_rule (…)` have details; the first word is the reason.
    const [code = 'other'] = /^[a-z][a-z0-9_]{0,63}/.exec(reason) ?? [];
    const counter = registry.counter('gatehouse_auth_decisions_total', decision, code);
    // Reasons with a detail are not cached: there may be many of them.
    if (code === reason && reasons < MAX_REASONS) {
      reasons += 1;
      byReason.set(reason, counter);
    }
    return counter;
  };
}

function createUpstreamMetrics(registry: Registry, name: string) {
  const classes = ['1xx', '2xx', '3xx', '4xx', '5xx'].map((code) =>
    registry.counter('gatehouse_upstream_requests_total', name, code),
  );
  const errors = Object.fromEntries(
    UPSTREAM_ERROR_KINDS.map((kind) => [kind, registry.counter('gatehouse_upstream_errors_total', name, kind)]),
  ) as Record<UpstreamErrorKind, Counter>;
  const duration = registry.histogram('gatehouse_upstream_request_duration_seconds', name);
  const grpcResults: (Counter | undefined)[] = [];
  return {
    /** `seconds` undefined: not measured. */
    countResponse(status: number, seconds: number | undefined): void {
      const counter = classes[Math.trunc(status / 100) - 1] ?? classes[4];
      if (counter !== undefined) counter.value += 1;
      if (seconds !== undefined) observe(duration, seconds);
    },
    /** From 0 to 16. */
    countGrpcResult(code: number): void {
      const counter = (grpcResults[code] ??= registry.counter('gatehouse_grpc_results_total', name, String(code)));
      counter.value += 1;
    },
    countError(kind: UpstreamErrorKind): void {
      errors[kind].value += 1;
    },
  };
}
