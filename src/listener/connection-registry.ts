import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { normalizeAddress } from './client-address.ts';
import type { PrereadResult } from './connection-preread.ts';

/** Facts about a connection, determined when it is opened. */
export interface ConnectionInfo {
  readonly peer: string;
  /** Relayed by a load balancer whose PROXY header names no source: `peer` is the load balancer. */
  readonly sourceUnknown: boolean;
  /** Its TLS server requested a client certificate. */
  readonly certificateRequested: boolean;
  certificate?: Buffer | undefined;
  certificateRead: boolean;
}

/** The source in a PROXY header; undefined if it names none (UNKNOWN, LOCAL). */
interface ProxySource {
  readonly address: string | undefined;
}

/** Both ends of a connection: the same for a TLS socket and the TCP socket below it. */
export const getEndpointsKey = (socket: Socket): string =>
  `${socket.remoteAddress}|${socket.remotePort}|${socket.localAddress}`;

export class ConnectionRegistry {
  readonly #sources = new Map<string, ProxySource>();
  readonly #infos = new WeakMap<Socket, ConnectionInfo>();

  get(socket: Socket, certificateRequested: boolean): ConnectionInfo {
    let connection = this.#infos.get(socket);
    if (connection === undefined) {
      const source = this.#sources.size === 0 ? undefined : this.#sources.get(getEndpointsKey(socket));
      const peer = source?.address ?? normalizeAddress(socket.remoteAddress ?? '');
      const sourceUnknown = source !== undefined && source.address === undefined;
      connection = { peer, sourceUnknown, certificateRequested, certificateRead: false };
      this.#infos.set(socket, connection);
    }
    return connection;
  }

  /** Stored by endpoints: a TLS socket has no reference to the TCP socket below it, but the same addresses. */
  setSource(socket: Socket, { hasProxyHeader, source }: PrereadResult): void {
    if (!hasProxyHeader) return;
    const key = getEndpointsKey(socket);
    const proxySource = { address: source === undefined ? undefined : normalizeAddress(source) };
    this.#sources.set(key, proxySource);
    socket.once('close', () => {
      // The port may be in use again before `close` is emitted.
      if (this.#sources.get(key) === proxySource) this.#sources.delete(key);
    });
  }
}

/** The client's leaf certificate (DER), read once per connection. */
export function getPeerCertificate(socket: Socket, connection: ConnectionInfo): Buffer | undefined {
  if (!connection.certificateRead && socket instanceof TLSSocket && !socket.destroyed) {
    connection.certificate = connection.certificateRequested
      ? socket.getPeerX509Certificate()?.raw
      : undefined;
    connection.certificateRead = true;
  }
  return connection.certificate;
}
