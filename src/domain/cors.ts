/** Which origins may read responses of a route. Enforced by browsers (Fetch standard §3.2). */
export interface CorsPolicy {
  readonly origins: ReadonlySet<string> | 'any';
  /** If omitted, the methods of the rule. */
  readonly methods?: readonly string[];
  /** Request headers beyond the CORS-safelisted ones. */
  readonly headers: readonly string[];
  /** Response headers beyond the CORS-safelisted ones. */
  readonly exposeHeaders: readonly string[];
  /** Allows cookies and client certificates. Never together with any origin. */
  readonly credentials: boolean;
  /** Seconds for which a browser may cache a preflight response. */
  readonly maxAge: number;
}

type HeaderFields = Readonly<Record<string, string>>;

/** `null` is the origin of all sandboxed frames and local files, so it is never listed. */
export const isAllowedOrigin = ({ origins }: CorsPolicy, origin: string | undefined): boolean =>
  origins === 'any' || (origin !== undefined && origin !== 'null' && origins.has(origin));

/** Fields of all responses of a route, also of refusals, so that pages can read those. */
export function corsFields(policy: CorsPolicy, origin: string | undefined): HeaderFields {
  // The response to any origin is the same.
  const vary: HeaderFields = policy.origins === 'any' ? {} : { Vary: 'Origin' };
  if (!isAllowedOrigin(policy, origin)) return vary;
  return {
    ...originFields(policy, origin),
    ...(policy.exposeHeaders.length > 0 && {
      'Access-Control-Expose-Headers': policy.exposeHeaders.join(', '),
    }),
    ...vary,
  };
}

/** Undefined if the origin is not allowed. */
export function preflightFields(policy: CorsPolicy, origin: string, method: string): HeaderFields | undefined {
  if (!isAllowedOrigin(policy, origin)) return undefined;
  return {
    ...originFields(policy, origin),
    'Access-Control-Allow-Methods': (policy.methods ?? [method]).join(', '),
    ...(policy.headers.length > 0 && { 'Access-Control-Allow-Headers': policy.headers.join(', ') }),
    'Access-Control-Max-Age': String(policy.maxAge),
    Vary: 'Origin, Access-Control-Request-Method, Access-Control-Request-Headers',
  };
}

const originFields = ({ origins, credentials }: CorsPolicy, origin = ''): HeaderFields => ({
  'Access-Control-Allow-Origin': origins === 'any' ? '*' : origin,
  ...(credentials && origins !== 'any' && { 'Access-Control-Allow-Credentials': 'true' }),
});
