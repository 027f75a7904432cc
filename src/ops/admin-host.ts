import { X509Certificate } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';

/**
 * Names under which requests are accepted, lower case. A web page reaches the admin listener through a browser inside the
 * network when its own host name resolves to this address (DNS rebinding): such a request names the page's host. An IP
 * address, as kubelets and most Prometheus targets have it, is no such name.
 */
export function hostCheck(
  names: readonly string[],
  /** Of the listener, PEM: its names are accepted too. A page under another name cannot even connect. */
  certificate: () => string | undefined,
): (request: IncomingMessage) => boolean {
  const known = new Set(['localhost', ...names.map(canonical)]);
  return ({ headersDistinct, httpVersion }) => {
    const given = headersDistinct['host'] ?? [];
    // RFC 9112 §3.2: only HTTP/1.0 may omit it, as some health checks do and no browser does.
    if (given.length === 0) return httpVersion === '1.0';
    const [, literal, name = ''] =
      /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?$/.exec(given[0] ?? '') ?? [];
    if (given.length > 1) return false;
    if (literal !== undefined) return isIP(literal) === 6;
    return isIP(name) === 4 || known.has(canonical(name)) || isCertified(canonical(name), certificate());
  };
}

function isCertified(name: string, certificate: string | undefined): boolean {
  if (certificate === undefined || name === '') return false;
  return new X509Certificate(certificate).checkHost(name, { subject: 'never' }) !== undefined;
}

const canonical = (name: string): string => name.toLowerCase().replace(/\.$/, '');
