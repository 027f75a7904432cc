import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { type ClientAccount, ClientAccounts, type ConnectionAccount, clientAccounts } from './client-accounts.ts';
import { normalizeAddress } from './client-address.ts';
import type { PrereadResult } from './connection-preread.ts';
import type { ClientConnection } from './listener-options.ts';

interface AcceptedConnection {
  readonly account: ConnectionAccount;
  readonly socket?: Socket;
  /** The source in a PROXY header; undefined if it names none (UNKNOWN, LOCAL). */
  source?: { readonly address: string | undefined };
}

/** The TCP connection has been closed meanwhile: nothing is counted any more. */
function createClosedConnection(): AcceptedConnection {
  const account = new ClientAccounts(0).openConnection('', () => {});
  account.close();
  return { account };
}

/** Both ends of a connection: the same for a TLS socket and the TCP socket below it. */
export const getEndpointsKey = (socket: Socket): string =>
  `${socket.remoteAddress}|${socket.remotePort}|${socket.localAddress}`;

/** A burst of connections is served before those that are idle are closed. */
const TRIM_INTERVAL_MS = 5_000;

/**
 * Open connections: their facts, and how many there are. Beyond the limit, the network with the most connections gives one for
 * each new one, so that one network cannot keep all others out.
 */
export class ConnectionRegistry {
  /** By endpoints: a TLS socket has no reference to the TCP socket below it, but the same addresses. */
  readonly #accepted = new Map<string, AcceptedConnection>();
  readonly #networks = new Map<ClientAccount, Set<ConnectionAccount>>();
  readonly #limit: number;
  readonly #keptLimit: number;
  #count = 0;
  /** Idle connections, when there were too many of them. */
  #idle: ReadonlySet<ConnectionAccount> = new Set();
  #isTrimScheduled = false;

  constructor(limit: number, keptLimit = limit) {
    this.#limit = limit;
    this.#keptLimit = keptLimit;
  }

  /** A TCP connection was accepted. `rejected`: there are too many, and it must be closed. `replaced`: another one was closed. */
  accept(socket: Socket): 'accepted' | 'replaced' | 'rejected' {
    const isFull = this.#count >= this.#limit;
    const address = normalizeAddress(socket.remoteAddress ?? '');
    const account = clientAccounts.openConnection(address, () => socket.destroy());
    if (isFull && !this.#makeRoom(account.account)) {
      account.close();
      return 'rejected';
    }
    const key = getEndpointsKey(socket);
    const accepted: AcceptedConnection = { account, socket };
    this.#accepted.set(key, accepted);
    this.#add(account);
    socket.once('close', () => {
      this.#remove(account);
      account.close();
      // The port may be in use again before `close` is emitted.
      if (this.#accepted.get(key) === accepted) this.#accepted.delete(key);
    });
    return isFull ? 'replaced' : 'accepted';
  }

  #add(connection: ConnectionAccount): void {
    const { account } = connection;
    const connections = this.#networks.get(account);
    if (connections === undefined) this.#networks.set(account, new Set([connection]));
    else connections.add(connection);
    this.#count += 1;
    if (this.#count > this.#keptLimit && !this.#isTrimScheduled) this.#scheduleTrim();
  }

  #scheduleTrim(): void {
    this.#isTrimScheduled = true;
    setTimeout(() => this.#trim(), TRIM_INTERVAL_MS).unref();
  }

  /**
   * Closes the newest idle connections of the largest networks, down to the number that may be kept. They were idle the last time
   * as well: a client that has just connected is about to send a request.
   */
  #trim(): void {
    this.#isTrimScheduled = false;
    const wereIdle = this.#idle;
    const idle = new Set<ConnectionAccount>();
    this.#idle = idle;
    let excess = this.#count - this.#keptLimit;
    if (excess <= 0) return;
    const networks = [...this.#networks.values()].toSorted((a, b) => b.size - a.size);
    for (const connection of networks.flatMap((connections) => [...connections].reverse())) {
      if (!connection.isIdle()) continue;
      idle.add(connection);
      if (excess <= 0 || !wereIdle.has(connection)) continue;
      excess -= 1;
      connection.closeIdle();
    }
    this.#scheduleTrim();
  }

  #remove(connection: ConnectionAccount): void {
    const { account } = connection;
    const connections = this.#networks.get(account);
    if (connections?.delete(connection) !== true) return;
    this.#count -= 1;
    if (connections.size === 0) this.#networks.delete(account);
  }

  #makeRoom(newcomer: ClientAccount): boolean {
    const connection = this.#findConnectionToClose(newcomer);
    if (connection === undefined) return false;
    this.#remove(connection);
    connection.evict();
    return true;
  }

  /**
   * From the network with the most connections: the oldest that is idle, or else busy, and was never authorized; or else an idle
   * one that was, but not for another connection of the same network.
   */
  #findConnectionToClose(newcomer: ClientAccount): ConnectionAccount | undefined {
    let largest: ClientAccount = newcomer;
    let candidates: ReadonlySet<ConnectionAccount> = this.#networks.get(newcomer) ?? new Set();
    for (const [account, connections] of this.#networks)
      if (connections.size > candidates.size) [largest, candidates] = [account, connections];
    let busy: ConnectionAccount | undefined;
    let authorized: ConnectionAccount | undefined;
    for (const connection of candidates) {
      const isIdle = connection.isIdle();
      if (!connection.hasAuthorized && isIdle) return connection;
      if (!connection.hasAuthorized) busy ??= connection;
      else if (isIdle) authorized ??= connection;
    }
    return busy ?? (largest === newcomer ? undefined : authorized);
  }

  /** The TCP socket below a TLS socket. Undefined in a limited handshake, whose TLS socket has no addresses yet. */
  getTcpSocket(tlsSocket: TLSSocket): Socket | undefined {
    return this.#accepted.get(getEndpointsKey(tlsSocket))?.socket;
  }

  /** The network of an accepted TCP connection. */
  getAccount(socket: Socket): ClientAccount {
    return (this.#accepted.get(getEndpointsKey(socket)) ?? createClosedConnection()).account.account;
  }

  /** HTTP begins on this socket, which may be a TLS socket. */
  describe(socket: Socket): Pick<ClientConnection, 'peer' | 'sourceUnknown' | 'account'> {
    const { source, account } = this.#accepted.get(getEndpointsKey(socket)) ?? createClosedConnection();
    account.evict = () => socket.destroy();
    return {
      peer: source?.address ?? normalizeAddress(socket.remoteAddress ?? ''),
      sourceUnknown: source !== undefined && source.address === undefined,
      account,
    };
  }

  setSource(socket: Socket, { hasProxyHeader, source }: PrereadResult): void {
    const accepted = this.#accepted.get(getEndpointsKey(socket));
    if (!hasProxyHeader || accepted === undefined) return;
    accepted.source = { address: source === undefined ? undefined : normalizeAddress(source) };
    if (accepted.source.address === undefined) return;
    this.#remove(accepted.account);
    accepted.account.setAddress(accepted.source.address);
    this.#add(accepted.account);
  }
}

/** Reads the client's leaf certificate (DER) once. */
export function createCertificateReader(socket: Socket): () => Buffer | undefined {
  let certificate: Buffer | undefined;
  let isRead = false;
  return () => {
    if (!isRead && socket instanceof TLSSocket && !socket.destroyed) {
      certificate = socket.getPeerX509Certificate()?.raw;
      isRead = true;
    }
    return certificate;
  };
}
