import { smallest } from '../lib/extremes.ts';
import { redactText } from '../lib/redact.ts';

/** What an operator must know about a running process that no counter shows. Serializable for IPC. */
export interface GatewayStatus {
  /** Undefined if the last reload was applied. */
  readonly rejectedReload: RejectedReload | undefined;
  /** Trusted issuers and integrations whose keys are fetched. */
  readonly issuers: readonly IssuerStatus[];
  /** Trusted issuers whose opaque tokens are introspected. */
  readonly introspection: readonly IntrospectionStatus[];
}

/** The configuration on disk is not the one in use. */
export interface RejectedReload {
  /** When the first reload after the last applied one was rejected: seconds since 1970. */
  readonly since: number;
  /** The problems of the last attempt, in one line each, without secrets. */
  readonly problems: readonly string[];
}

/**
 * `waiting`: the first fetch has not ended. `failing`: keys cannot be fetched, and the last ones are used. `unavailable`: there
 * are none, or they are too old, so that tokens get 503.
 */
export type IssuerState = 'available' | 'waiting' | 'failing' | 'unavailable';

export interface IssuerStatus {
  /** As the label `issuer` of metrics. */
  readonly name: string;
  readonly state: IssuerState;
  /** When the keys were fetched, in seconds since 1970; undefined: never. */
  readonly fetchedAt: number | undefined;
  readonly failure: Failure | undefined;
}

interface Failure {
  /** Seconds since 1970. */
  readonly since: number;
  readonly error: string;
}

export interface IntrospectionStatus {
  readonly name: string;
  /** Undefined if the last introspection succeeded, or if there was none. */
  readonly failure: Failure | undefined;
}

export const EMPTY_STATUS: GatewayStatus = { rejectedReload: undefined, issuers: [], introspection: [] };

const MAX_PROBLEMS = 50;
const MAX_TEXT = 512;

/** One line for the console: bounded, and without secrets that were included by mistake. */
export function boundText(text: string): string {
  const redacted = redactText(text);
  return redacted.length > MAX_TEXT ? `${redacted.slice(0, MAX_TEXT)}…` : redacted;
}

export function boundProblems(problems: readonly string[]): readonly string[] {
  const rest = problems.length - MAX_PROBLEMS;
  const shown = problems.slice(0, MAX_PROBLEMS).map(boundText);
  return rest > 0 ? [...shown, `and ${rest} more`] : shown;
}

/** From best to worst. */
const STATES: readonly IssuerState[] = ['available', 'waiting', 'failing', 'unavailable'];

const groupByName = <T extends { readonly name: string }>(entries: readonly T[]): readonly T[][] => [
  ...Map.groupBy(entries, ({ name }) => name).values(),
];

/** Combines the status of several processes: a problem of one is a problem of all. */
export const mergeStatuses = (statuses: readonly GatewayStatus[]): GatewayStatus => ({
  rejectedReload: mergeRejections(statuses.flatMap(({ rejectedReload }) => rejectedReload ?? [])),
  issuers: groupByName(statuses.flatMap(({ issuers }) => issuers)).map((entries) => entries.reduce(mergeIssuers)),
  introspection: groupByName(statuses.flatMap(({ introspection }) => introspection)).map((entries) =>
    entries.reduce(mergeIntrospection),
  ),
});

const mergeIntrospection = (a: IntrospectionStatus, b: IntrospectionStatus): IntrospectionStatus =>
  a.failure === undefined || (b.failure !== undefined && b.failure.since < a.failure.since) ? b : a;

function mergeRejections(rejections: readonly RejectedReload[]): RejectedReload | undefined {
  if (rejections.length === 0) return undefined;
  return {
    since: smallest(rejections.map(({ since }) => since)),
    problems: [...new Set(rejections.flatMap(({ problems }) => problems))],
  };
}

function mergeIssuers(a: IssuerStatus, b: IssuerStatus): IssuerStatus {
  const [worse, better] = STATES.indexOf(a.state) >= STATES.indexOf(b.state) ? [a, b] : [b, a];
  const { failure = better.failure } = worse;
  return {
    ...worse,
    failure: failure && {
      ...failure,
      since: Math.min(failure.since, better.failure?.since ?? failure.since),
    },
  };
}
