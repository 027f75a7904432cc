import { X509Certificate } from 'node:crypto';
import { isIP } from 'node:net';
import { getHeaderValues } from '../http/raw-headers.ts';
import type { AdminMessage } from './node-request.ts';

/**
 * Protects against DNS rebinding: a web page whose host name resolves to this address reaches the admin listener
 * through a browser inside the network, but sends its own host name. IP addresses, as used by kubelets and Prometheus,
 * are accepted.
 */
export function createHostCheck(
  names: readonly string[],
  /** Server certificate, PEM: its names are accepted too. */
  certificate: () => string | undefined,
): (request: Pick<AdminMessage, 'rawHeaders' | 'httpVersion'>) => boolean {
  const allowed = new Set(['localhost', ...names.map(canonicalizeHost)]);
  return ({ rawHeaders, httpVersion }) => {
    const hosts = getHeaderValues(rawHeaders, 'host');
    // RFC 9112 §3.2: only HTTP/1.0 may omit it, as some health checks do; browsers never do.
    if (hosts.length === 0) return httpVersion === '1.0';
    const [, literal, name = ''] =
      /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?$/.exec(hosts[0] ?? '') ?? [];
    if (hosts.length > 1) return false;
    if (literal !== undefined) return isIP(literal) === 6;
    return (
      isIP(name) === 4 ||
      allowed.has(canonicalizeHost(name)) ||
      isNamedInCertificate(canonicalizeHost(name), certificate())
    );
  };
}

function isNamedInCertificate(name: string, certificate: string | undefined): boolean {
  if (certificate === undefined || name === '') return false;
  return new X509Certificate(certificate).checkHost(name, { subject: 'never' }) !== undefined;
}

const canonicalizeHost = (name: string): string => name.toLowerCase().replace(/\.$/, '');
