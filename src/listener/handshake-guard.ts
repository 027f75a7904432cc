import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import type { ClientAccount } from './client-accounts.ts';
import { getEndpointsKey } from './connection-registry.ts';
import { LimitedHandshake } from './limited-handshake.ts';

/** A handshake with a client certificate has 2 to 4 KiB. */
const LARGE_HANDSHAKE_BYTES = 8_192;
const SUSPECT_MS = 600_000;
/** With more suspect networks than this, every network is one. */
const MAX_SUSPECTS = 16;
const MAX_NETWORKS = 10_000;
/** Unlimited handshakes of one network at the same time: as many chains may be verified before it is known to be suspect. */
const MAX_UNLIMITED = 4;
/** If none of them ends for this long, the ones that wait begin as limited ones. */
const WAIT_MS = 250;

type Pass = (connection: Socket | LimitedHandshake) => void;

interface Handshake {
  readonly socket: Socket;
  readonly account: ClientAccount;
  readonly isLimited: boolean;
}

/** The unlimited handshakes of a network that are in progress, and the ones that wait for their end. */
interface NetworkHandshakes {
  unlimited: number;
  readonly waiting: Set<() => void>;
  /** When the last one ended. */
  endedAt: number;
}

const createNetwork = (unlimited: number): NetworkHandshakes => ({ unlimited, waiting: new Set(), endedAt: 0 });

interface Suspect {
  /** Kept here, so that the time of its handshakes is not forgotten between connections. */
  readonly account: ClientAccount;
  until: number;
}

/**
 * Handshakes that request a client certificate. OpenSSL verifies the whole chain of an unknown client, up to 100 kB, and may need a
 * quarter of a second for it, in which nothing else is served. After a large handshake, further ones of the same network are limited.
 */
export class HandshakeGuard {
  /** By endpoints: a TLS socket has no reference to the TCP socket below it, but the same addresses. */
  readonly #handshakes = new Map<string, Handshake>();
  readonly #networks = new Map<string, NetworkHandshakes>();
  /** By network. The one that was seen first is first. */
  readonly #suspects = new Map<string, Suspect>();

  /** Passes the connection to the TLS server, at once or after other handshakes of its network. */
  start(socket: Socket, account: ClientAccount, pass: Pass): void {
    const suspect = this.#findSuspect(account);
    const network = this.#networks.get(account.key) ?? createNetwork(0);
    if (suspect !== undefined || network.unlimited < MAX_UNLIMITED) {
      this.#begin(socket, account, pass, suspect);
      return;
    }
    const begin = (limit = this.#findSuspect(account)): void => {
      clearTimeout(timer);
      network.waiting.delete(begin);
      if (!socket.destroyed) this.#begin(socket, account, pass, limit);
    };
    // A client that opens many connections at once is served as fast as its handshakes end.
    const waitForProgress = (): void => {
      const remaining = network.endedAt + WAIT_MS - performance.now();
      if (remaining <= 0) begin(account);
      else timer = setTimeout(waitForProgress, remaining);
    };
    let timer = setTimeout(waitForProgress, WAIT_MS);
    network.waiting.add(begin);
  }

  #begin(socket: Socket, account: ClientAccount, pass: Pass, suspect: ClientAccount | undefined): void {
    const key = getEndpointsKey(socket);
    // The port is used again before `close` of the earlier connection was emitted.
    const earlier = this.#handshakes.get(key);
    if (earlier !== undefined) this.#end(key, earlier);
    const handshake = { socket, account, isLimited: suspect !== undefined };
    this.#handshakes.set(key, handshake);
    if (suspect === undefined) {
      const network = this.#networks.get(account.key);
      if (network !== undefined) network.unlimited += 1;
      else this.#networks.set(account.key, createNetwork(1));
    }
    socket.once('close', () => {
      // The port may be in use again before `close` is emitted.
      if (this.#handshakes.get(key) === handshake) this.#end(key, handshake);
    });
    pass(suspect === undefined ? socket : new LimitedHandshake(socket, suspect));
  }

  /** Call it first when a handshake is complete: the TLS socket may not know its addresses. */
  complete(tlsSocket: TLSSocket): void {
    LimitedHandshake.current?.complete(tlsSocket);
    const key = getEndpointsKey(tlsSocket);
    const handshake = this.#handshakes.get(key);
    if (handshake !== undefined) this.#end(key, handshake, tlsSocket);
  }

  #end(key: string, handshake: Handshake, tlsSocket?: TLSSocket): void {
    this.#handshakes.delete(key);
    this.#assess(handshake, tlsSocket);
    const network = handshake.isLimited ? undefined : this.#networks.get(handshake.account.key);
    if (network === undefined) return;
    network.unlimited -= 1;
    network.endedAt = performance.now();
    for (const begin of network.waiting) {
      if (network.unlimited >= MAX_UNLIMITED) return;
      begin();
    }
    if (network.unlimited === 0) this.#networks.delete(handshake.account.key);
  }

  #assess({ socket, account }: Handshake, tlsSocket?: TLSSocket): void {
    if (socket.bytesRead <= LARGE_HANDSHAKE_BYTES) return;
    // What was received may include requests. Without a certificate, or with a resumed session, nothing was verified.
    if (tlsSocket?.isSessionReused() === true) return;
    if (tlsSocket !== undefined && tlsSocket.getPeerX509Certificate() === undefined) return;
    const suspect = this.#suspects.get(account.key);
    this.#suspects.delete(account.key);
    const until = performance.now() + SUSPECT_MS;
    this.#suspects.set(account.key, { account: suspect?.account ?? account, until });
  }

  #findSuspect(account: ClientAccount): ClientAccount | undefined {
    if (this.#suspects.size === 0) return undefined;
    const now = performance.now();
    for (const [key, { until }] of this.#suspects) {
      if (until > now && this.#suspects.size <= MAX_NETWORKS) break;
      this.#suspects.delete(key);
    }
    const suspect = this.#suspects.get(account.key)?.account;
    return suspect ?? (this.#suspects.size > MAX_SUSPECTS ? account : undefined);
  }
}
