import { connect as connectTcp, isIP, type OnReadOpts, type Socket } from 'node:net';
import { type ConnectionOptions, connect as connectTls, type SecureContext } from 'node:tls';
import { enableTcpKeepAlive } from '../../lib/tcp-keep-alive.ts';
import { parseTargetUrl } from './targets.ts';

/** Where a target listens. */
export interface UpstreamAddress {
  readonly connectOptions: { readonly host: string; readonly port: number } | { readonly path: string };
  /** The host that requests name. */
  readonly host: string;
  /** It is undefined for plain HTTP. */
  readonly tls: TlsOptions | undefined;
}

interface TlsOptions {
  /** The name that the server must prove; undefined: the address in `connect`. */
  readonly servername: string | undefined;
  readonly secureContext: SecureContext | undefined;
  /** The last TLS session, for resumption, and until when it is used (Unix milliseconds). */
  session: Buffer | undefined;
  sessionExpires: number;
}

export interface TargetTls {
  /** The name that the server must prove, where it is not the host of the URL. */
  readonly serverName: string | undefined;
  readonly secureContext: SecureContext | undefined;
}

const MAX_SESSION_MS = 3_600_000;

export function readAddress(target: string, { serverName, secureContext }: TargetTls): UpstreamAddress {
  const { protocol, host, hostname, port, socketPath } = parseTargetUrl(target);
  const name = hostname.replace(/^\[|\]$/g, '');
  return {
    connectOptions: socketPath === undefined ? { host: name, port } : { path: socketPath },
    host,
    // RFC 6066 §3: an address is not sent as a server name, but it is still compared with the certificate.
    tls:
      protocol === 'https:'
        ? {
            servername: serverName ?? (isIP(name) === 0 ? name : undefined),
            secureContext,
            session: undefined,
            sessionExpires: 0,
          }
        : undefined,
  };
}

/** Connects to a target. `alpn`: the protocol that is offered over TLS. */
export function openSocket(
  { connectOptions, tls }: UpstreamAddress,
  alpn: 'h2' | 'http/1.1',
  onread: OnReadOpts,
): Socket {
  if (tls === undefined) return enableTcpKeepAlive(connectTcp({ ...connectOptions, noDelay: true, onread }));
  const options: ConnectionOptions & { readonly onread: OnReadOpts } = {
    ...connectOptions,
    onread,
    ...(tls.servername !== undefined && { servername: tls.servername }),
    ALPNProtocols: [alpn],
    // Explicit, so that NODE_TLS_REJECT_UNAUTHORIZED cannot turn it off.
    rejectUnauthorized: true,
    ...(tls.secureContext !== undefined && { secureContext: tls.secureContext }),
    ...(tls.session !== undefined && Date.now() < tls.sessionExpires && { session: tls.session }),
  };
  const socket = enableTcpKeepAlive(connectTls(options).setNoDelay(true));
  return socket
    .on('secureConnect', () => {
      // The certificate is not verified again when a session is resumed.
      if (socket.isSessionReused()) return;
      const expiry = Date.parse(socket.getPeerCertificate().valid_to);
      tls.sessionExpires = Math.min(expiry, Date.now() + MAX_SESSION_MS);
    })
    .on('session', (session: Buffer) => {
      tls.session = session;
    });
}
