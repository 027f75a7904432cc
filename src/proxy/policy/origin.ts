import { normalizeHost } from '../../domain/rule-matcher.ts';

/**
 * The origin that clients of a host use: that of `publicUrl`, with the name of the host if it is listed. Other names are not
 * repeated: a client can send any.
 */
export function createOriginResolver(
  publicUrl: string,
  isListedHost: (name: string) => boolean,
): (host: string) => string {
  const { host: publicAuthority, protocol, port } = new URL(publicUrl);
  const publicHost = normalizeHost(publicAuthority);
  return (host) => {
    const name = normalizeHost(host);
    if (name === publicHost || !isListedHost(name)) return publicUrl;
    return `${protocol}//${name}${port === '' ? '' : `:${port}`}`;
  };
}
