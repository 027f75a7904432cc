import { normalizeAuthority } from '../../domain/request-target.ts';

/** How `Location` fields of an upstream are rewritten: clients know only the public URL. */
export interface LocationRewrite {
  /** Origins of the upstream's targets. */
  readonly upstreamOrigins: ReadonlySet<string>;
  /** The origin that the client used. */
  readonly publicOrigin: string;
  /** What was removed from the path of the request. */
  readonly strippedPrefix: string;
}

const ABSOLUTE_URL = /^(?:(https?):)?\/\/([^/?#\\]*)(.*)$/is;

/** Origins that an upstream may use for itself. */
export const getOrigins = (targets: readonly string[]): ReadonlySet<string> =>
  new Set(targets.map((target) => (target.startsWith('unix:') ? 'http://localhost' : getOrigin(target))));

function getOrigin(url: string): string {
  const { protocol, host } = new URL(url);
  return `${protocol}//${normalizeAuthority(host, protocol.slice(0, -1))}`;
}

/** Rewrites locations on the upstream itself; others stay unchanged. */
export function rewriteLocation(
  value: string,
  { upstreamOrigins, publicOrigin, strippedPrefix }: LocationRewrite,
): string {
  if (value.startsWith('/') && !value.startsWith('//')) return strippedPrefix === '' ? value : strippedPrefix + value;
  const [, scheme, authority, rest = ''] = ABSOLUTE_URL.exec(value) ?? [];
  if (authority === undefined) return value;
  const schemes = scheme === undefined ? ['http', 'https'] : [scheme.toLowerCase()];
  const isUpstreamOrigin = schemes.some((one) => upstreamOrigins.has(`${one}://${normalizeAuthority(authority, one)}`));
  if (!isUpstreamOrigin) return value;
  return `${publicOrigin}${strippedPrefix}${rest.startsWith('/') || (rest === '' && strippedPrefix !== '') ? rest : `/${rest}`}`;
}
