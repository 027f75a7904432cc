import { normalAuthority } from '../domain/request-target.ts';

/** How an upstream's `Location` is written for clients, who know it under our address only. */
export interface LocationTerms {
  /** The upstream's own origins, as `originOf` writes them. */
  readonly own: ReadonlySet<string>;
  /** Ours, as the client called us. */
  readonly origin: string;
  /** What was taken off the path of the request. */
  readonly prefix: string;
}

const ABSOLUTE = /^(?:(https?):)?\/\/([^/?#\\]*)(.*)$/is;

/** The origins under which an upstream may speak of itself. */
export const originsOf = (targets: readonly string[]): ReadonlySet<string> =>
  new Set(targets.map((target) => (target.startsWith('unix:') ? 'http://localhost' : originOf(target))));

function originOf(url: string): string {
  const { protocol, host } = new URL(url);
  return `${protocol}//${normalAuthority(host, protocol.slice(0, -1))}`;
}

/** What points to the upstream itself, in terms of ours; everything else to the letter. */
export function rewriteLocation(value: string, { own, origin, prefix }: LocationTerms): string {
  if (value.startsWith('/') && !value.startsWith('//')) return prefix === '' ? value : prefix + value;
  const [, scheme, authority, rest = ''] = ABSOLUTE.exec(value) ?? [];
  if (authority === undefined) return value;
  const schemes = scheme === undefined ? ['http', 'https'] : [scheme.toLowerCase()];
  const isOwn = schemes.some((one) => own.has(`${one}://${normalAuthority(authority, one)}`));
  if (!isOwn) return value;
  return `${origin}${prefix}${rest.startsWith('/') || (rest === '' && prefix !== '') ? rest : `/${rest}`}`;
}
