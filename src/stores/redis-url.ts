/** Where Redis is, as its URL says: one server, one that Sentinels know, or a cluster. */
export interface RedisPlace {
  readonly kind: 'single' | 'sentinel' | 'cluster';
  readonly hosts: readonly { readonly host: string; readonly port: number }[];
  readonly tls: boolean;
  readonly username?: string;
  readonly password?: string;
  readonly database: number;
  /** The name under which Sentinels know it. */
  readonly name?: string;
}

const FORM = /^(redis|rediss)(?:\+(sentinel|cluster))?:\/\/(?:([^@/]*)@)?([^/?#]+)((?:\/[^/?#]*)*)$/;
const HOST = /^(\[[0-9A-Fa-f:.]+\]|[^:[\]\s]+)(?::(\d{1,5}))?$/;

const KINDS = {
  sentinel: { kind: 'sentinel', port: 26_379 },
  cluster: { kind: 'cluster', port: 6_379 },
} as const;

/**
 * `redis://[user[:password]@]host[:port][/database]`, `redis+cluster://host[:port][,host[:port]…]`,
 * `redis+sentinel://host[:port][,…]/name[/database]`; `rediss` in place of `redis` for TLS. Undefined: not of this form.
 */
export function parseRedisUrl(url: string): RedisPlace | undefined {
  const [, scheme, form, credentials, list = '', path = ''] = FORM.exec(url) ?? [];
  if (scheme === undefined) return undefined;
  const { kind, port } =
    form === 'sentinel' || form === 'cluster' ? KINDS[form] : ({ kind: 'single', port: 6_379 } as const);
  const hosts = list.split(',').map((text) => hostOf(text, port));
  const words = path.split('/').slice(1);
  const name = kind === 'sentinel' ? words.shift() : undefined;
  const [database = '0', ...rest] = words.filter((word) => word !== '');
  const [username = '', password = ''] = credentials === undefined ? [] : splitOnce(credentials);
  try {
    if (hosts.some((host) => host === undefined) || rest.length > 0 || !/^\d{1,3}$/.test(database))
      return undefined;
    if ((kind === 'single' && hosts.length > 1) || (kind === 'cluster' && database !== '0')) return undefined;
    if (kind === 'sentinel' && !name) return undefined;
    return {
      kind,
      hosts: hosts.filter((host) => host !== undefined),
      tls: scheme === 'rediss',
      database: Number(database),
      ...(username !== '' && { username: decodeURIComponent(username) }),
      ...(password !== '' && { password: decodeURIComponent(password) }),
      ...(name !== undefined && { name: decodeURIComponent(name) }),
    };
  } catch {
    // A percent sign that begins nothing.
    return undefined;
  }
}

/** Where it is, for people and logs: neither name nor password of the user. */
export function placeInWords(url: string): string {
  const place = parseRedisUrl(url);
  if (place === undefined) return 'unknown';
  const hosts = place.hosts.map(({ host, port }) => `${host.includes(':') ? `[${host}]` : host}:${port}`);
  return place.name === undefined ? hosts.join(', ') : `${place.name}, by the Sentinels ${hosts.join(', ')}`;
}

function hostOf(text: string, usual: number): { readonly host: string; readonly port: number } | undefined {
  const [, host, port = String(usual)] = HOST.exec(text) ?? [];
  if (host === undefined || Number(port) < 1 || Number(port) > 65_535) return undefined;
  return { host: host.replace(/^\[|\]$/g, ''), port: Number(port) };
}

function splitOnce(text: string): [string, string] {
  const colon = text.indexOf(':');
  return colon < 0 ? [text, ''] : [text.slice(0, colon), text.slice(colon + 1)];
}
