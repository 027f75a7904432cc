interface RedisHost {
  readonly host: string;
  readonly port: number;
}

const URL_PATTERN =
  /^redis(?<tls>s?)(?:\+(?<topology>sentinel|cluster))?:\/\/(?:(?<username>[^@/:]*)(?::(?<password>[^@/]*))?@)?(?<hosts>[^/?#]+)(?<path>(?:\/[^/?#]*)*)$/;
const HOST_PATTERN = /^(\[[0-9A-Fa-f:.]+\]|[^:[\]\s]+)(?::(\d{1,5}))?$/;

/**
 * `redis://[user[:password]@]host[:port][/database]`, `redis+cluster://host[:port][,host[:port]…]`,
 * `redis+sentinel://host[:port][,…]/name[/database]`; `rediss` in place of `redis` for TLS. Undefined for other forms.
 */
export function parseRedisUrl(url: string) {
  const parts = URL_PATTERN.exec(url)?.groups;
  if (parts === undefined) return undefined;
  const kind = (parts['topology'] ?? 'single') as 'single' | 'sentinel' | 'cluster';
  const defaultPort = kind === 'sentinel' ? 26_379 : 6_379;
  const hosts = (parts['hosts'] ?? '').split(',').map((text) => parseHost(text, defaultPort));
  const segments = (parts['path'] ?? '').split('/').slice(1);
  // The name of the primary at the Sentinels.
  const name = kind === 'sentinel' ? segments.shift() : undefined;
  const [database = '0', ...rest] = segments.filter((segment) => segment !== '');
  if (hosts.some((host) => host === undefined) || rest.length > 0 || !/^\d{1,3}$/.test(database)) return undefined;
  if ((kind === 'single' && hosts.length > 1) || (kind === 'cluster' && database !== '0')) return undefined;
  if (kind === 'sentinel' && !name) return undefined;
  const { username, password } = parts;
  try {
    return {
      kind,
      hosts: hosts.filter((host) => host !== undefined),
      tls: parts['tls'] === 's',
      database: Number(database),
      ...(username && { username: decodeURIComponent(username) }),
      ...(password && { password: decodeURIComponent(password) }),
      ...(name !== undefined && { name: decodeURIComponent(name) }),
    };
  } catch {
    // Malformed percent-encoding.
    return undefined;
  }
}

/** For logs: without user name and password. */
export function formatRedisAddress(url: string): string {
  const address = parseRedisUrl(url);
  if (address === undefined) return 'unknown';
  const hosts = address.hosts.map(({ host, port }) => `${host.includes(':') ? `[${host}]` : host}:${port}`);
  return address.name === undefined ? hosts.join(', ') : `${address.name} (Sentinels ${hosts.join(', ')})`;
}

function parseHost(text: string, defaultPort: number): RedisHost | undefined {
  const [, host, port = String(defaultPort)] = HOST_PATTERN.exec(text) ?? [];
  if (host === undefined || Number(port) < 1 || Number(port) > 65_535) return undefined;
  return { host: host.replace(/^\[|\]$/g, ''), port: Number(port) };
}
