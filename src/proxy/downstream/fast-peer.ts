import type { ConnectionAccount } from '../../listener/client-accounts.ts';
import { EMPTY_PEER_LIST, type PeerList } from '../../listener/client-address.ts';
import type { InterceptedConnection } from '../../listener/connection-interceptor.ts';
import { getNetworkKey } from '../body-buffering.ts';
import type { LocalSocket } from '../policy/served-hosts.ts';
import type { FastPathConfig } from './fast-path-config.ts';

type PeerFacts = Pick<
  InterceptedConnection,
  'peer' | 'sourceUnknown' | 'encrypted' | 'account' | 'certificate' | 'isMisdirected'
> & { readonly socket: LocalSocket };

/** What all requests of one client connection share. */
export class FastPeer {
  /** See `InterceptedConnection`. */
  readonly socket: LocalSocket;
  readonly address: string;
  readonly sourceUnknown: boolean;
  readonly encrypted: boolean;
  readonly account: ConnectionAccount;
  readonly certificate: () => Buffer | undefined;
  readonly #isMisdirected: ((host: string) => boolean) | undefined;
  #trustedFor: FastPathConfig | undefined = undefined;
  #isTrusted = false;
  #networkAddress: string | undefined = undefined;
  #networkKey = '';

  constructor({ socket, peer, sourceUnknown, encrypted, account, certificate, isMisdirected }: PeerFacts) {
    this.socket = socket;
    this.address = peer;
    this.sourceUnknown = sourceUnknown;
    this.encrypted = encrypted;
    this.account = account;
    this.certificate = certificate;
    this.#isMisdirected = isMisdirected;
  }

  /** May a request on this connection name this host? */
  acceptsHost(config: FastPathConfig, host: string): boolean {
    return this.#isMisdirected?.(host) !== true && config.acceptsHost(host, this.address, this.socket);
  }

  /** The proxies whose forwarded headers are trusted on this connection. */
  getTrustedProxies(config: FastPathConfig): PeerList {
    return this.sourceUnknown ? EMPTY_PEER_LIST : config.trustedProxies;
  }

  isTrustedProxy(config: FastPathConfig): boolean {
    if (this.#trustedFor !== config) {
      this.#trustedFor = config;
      this.#isTrusted = !this.sourceUnknown && config.isTrustedPeer(this.address);
    }
    return this.#isTrusted;
  }

  /** Requests without a token share connections by the network of their client. */
  getNetworkKey(clientAddress: string): string {
    if (this.#networkAddress !== clientAddress) {
      this.#networkAddress = clientAddress;
      this.#networkKey = getNetworkKey(clientAddress);
    }
    return this.#networkKey;
  }
}
