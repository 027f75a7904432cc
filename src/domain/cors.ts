/** Which pages of other origins may read what a route answers. Browsers enforce it; we only say it (Fetch standard §3.2). */
export interface CorsPolicy {
  readonly origins: ReadonlySet<string> | 'any';
  /** Left out: whatever the rule itself takes. */
  readonly methods?: readonly string[];
  /** What pages may send beyond the few fields that are always allowed. */
  readonly headers: readonly string[];
  /** What pages may read beyond the few fields that are always readable. */
  readonly exposeHeaders: readonly string[];
  /** Cookies and client certificates of the browser come along. Never together with any origin. */
  readonly credentials: boolean;
  /** Seconds for which a browser may remember the answer to a preflight. */
  readonly maxAge: number;
}

type Fields = Readonly<Record<string, string>>;

/** `null` is the origin of every sandboxed frame and local file: it names nobody, so nobody can have meant to list it. */
export const allowsOrigin = ({ origins }: CorsPolicy, origin: string | undefined): boolean =>
  origins === 'any' || (origin !== undefined && origin !== 'null' && origins.has(origin));

/** What every answer of such a route carries, refusals included: without it a page learns nothing but that it failed. */
export function corsFields(policy: CorsPolicy, origin: string | undefined): Fields {
  const vary = varyOf(policy, 'Origin');
  if (!allowsOrigin(policy, origin)) return vary;
  return {
    ...originFields(policy, origin),
    ...(policy.exposeHeaders.length > 0 && {
      'Access-Control-Expose-Headers': policy.exposeHeaders.join(', '),
    }),
    ...vary,
  };
}

/** The answer to a preflight: what is allowed, for the browser to compare. Undefined when the origin is not. */
export function preflightFields(policy: CorsPolicy, origin: string, method: string): Fields | undefined {
  if (!allowsOrigin(policy, origin)) return undefined;
  return {
    ...originFields(policy, origin),
    'Access-Control-Allow-Methods': (policy.methods ?? [method]).join(', '),
    ...(policy.headers.length > 0 && { 'Access-Control-Allow-Headers': policy.headers.join(', ') }),
    'Access-Control-Max-Age': String(policy.maxAge),
    Vary: 'Origin, Access-Control-Request-Method, Access-Control-Request-Headers',
  };
}

const originFields = ({ origins, credentials }: CorsPolicy, origin = ''): Fields => ({
  'Access-Control-Allow-Origin': origins === 'any' ? '*' : origin,
  ...(credentials && origins !== 'any' && { 'Access-Control-Allow-Credentials': 'true' }),
});

/** An answer that is the same for everyone depends on nobody's origin. */
const varyOf = ({ origins }: CorsPolicy, names: string): Fields => (origins === 'any' ? {} : { Vary: names });
