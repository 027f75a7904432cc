import { totalmem } from 'node:os';
import { getHeapStatistics } from 'node:v8';
import { getNetworks } from '../lib/rate-limiter.ts';

/*
 * What clients make this process hold, added up by client network and for the process. Limits of a stream or a connection
 * alone do not add up: a client opens as many connections as it needs.
 */

/** One account may hold this many times as much as is left free: three quarters of the limit if it is alone. */
const FREE_FACTOR = 3;
const MIN_SHARE = 1 / 64;
/** The part of the memory that requests and responses may occupy, beside connections, caches and the program itself. */
const MEMORY_FRACTION = 1 / 12;
/** Strings and objects of requests are on the heap, whose limit may be lower than that of the container. */
const HEAP_FRACTION = 1 / 4;
const MIN_BYTES = 8 * 1_048_576;
const MAX_BYTES = 256 * 1_048_576;
/** After an eviction this part of the limit is free again, so that not every further byte evicts. */
const RELIEF_FRACTION = 1 / 16;
/** A TLS connection that was used, with its share of what the allocator keeps. */
const CONNECTION_BYTES = 63_488;
/** What the process occupies without connections, and the code of Node that must stay in memory: else it is read all the time. */
const PROGRAM_BYTES = 36 * 1_048_576;
const CODE_BYTES = 45 * 1_048_576;
/** Idle connections may use this part of the memory for connections. The rest is for bursts. */
const KEPT_FRACTION = 3 / 5;
const MAX_CONNECTIONS = 10_000;
const MIN_CONNECTIONS = 100;
/** Processor time is counted over this many milliseconds, with less weight for what is longer ago. */
const TIME_WINDOW_MS = 400;
/** The part of it that limited handshakes of one network may use. */
const TIME_SHARE = 1 / 8;

/** What one client network, or one identity, makes this process hold. */
export class ClientAccount {
  readonly key: string;
  bytes = 0;
  /** The oldest is first. */
  readonly connections = new Set<ConnectionAccount>();
  readonly holdings = new Set<Holding>();
  #milliseconds = 0;
  #measuredAt = 0;

  constructor(key: string) {
    this.key = key;
  }

  /** Processor time that was used for this client. */
  addTime(milliseconds: number, now = performance.now()): void {
    this.#milliseconds = this.getRecentTime(now) + milliseconds;
    this.#measuredAt = now;
  }

  getRecentTime(now = performance.now()): number {
    return this.#milliseconds * Math.exp((this.#measuredAt - now) / TIME_WINDOW_MS);
  }

  /** It has used more than its share of the processor in the last seconds. */
  hasExceededTime(now = performance.now()): boolean {
    return this.getRecentTime(now) > TIME_WINDOW_MS * TIME_SHARE;
  }
}

/** Bytes that are held for a client, for one purpose. */
export class Holding {
  bytes = 0;
  account: ClientAccount;
  /** Releases what is held, because this client holds the most and there is no room for others. */
  evict: () => void;
  readonly accounts: ClientAccounts;
  #isReleased = false;

  constructor(accounts: ClientAccounts, account: ClientAccount, evict: () => void) {
    this.accounts = accounts;
    this.account = account;
    this.evict = evict;
  }

  /** A negative number is given back. */
  add(bytes: number): void {
    if (this.#isReleased) return;
    this.bytes += bytes;
    this.account.bytes += bytes;
    this.accounts.addTotal(bytes);
  }

  set(bytes: number): void {
    if (bytes !== this.bytes) this.add(bytes - this.bytes);
  }

  /** False: this client holds as much as it may. */
  get mayGrow(): boolean {
    return this.account.bytes < this.accounts.share;
  }

  /** What is added afterwards is not counted. */
  release(): void {
    if (this.#isReleased) return;
    this.set(0);
    this.#isReleased = true;
    this.account.holdings.delete(this);
    this.accounts.removeIfEmpty(this.account);
  }
}

/** A client connection, and what is held for its requests before they are authorized. */
export class ConnectionAccount extends Holding {
  /** A request on this connection was authorized. Such connections are closed last. */
  hasAuthorized = false;
  /** Whether no request is pending; set by the protocol that is spoken on the connection. */
  isIdle: () => boolean = () => false;
  /** Closes the connection if no request is pending, in a way that its client expects. */
  closeIdle: () => void = () => {};
  #isOpen = true;

  constructor(accounts: ClientAccounts, account: ClientAccount, evict: () => void) {
    super(accounts, account, evict);
    this.#join();
  }

  #join(): void {
    if (this.account.connections.size === 0) this.accounts.networks += 1;
    this.account.connections.add(this);
  }

  #leave(): void {
    if (this.account.connections.delete(this) && this.account.connections.size === 0) this.accounts.networks -= 1;
  }

  /** The client's address became known after the connection was accepted. */
  setAddress(address: string): void {
    const { account, bytes } = this;
    const next = this.accounts.get(getAccountKey(address));
    if (next === account || !this.#isOpen) return;
    this.#leave();
    account.bytes -= bytes;
    next.bytes += bytes;
    this.account = next;
    this.#join();
    this.accounts.removeIfEmpty(account);
  }

  close(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#leave();
    this.release();
  }
}

export class ClientAccounts {
  /** Bytes that are held for all clients, and how many may be. */
  bytes = 0;
  limit: number;
  /** How often something was evicted. */
  evictions = 0;
  /** Networks with connections. */
  networks = 0;
  readonly #accounts = new Map<string, ClientAccount>();
  #isReliefScheduled = false;

  constructor(limit: number) {
    this.limit = limit;
  }

  /** The most that one account may hold before more is refused. A client that holds little is not refused because of others. */
  get share(): number {
    return Math.max(FREE_FACTOR * (this.limit - this.bytes), this.limit * MIN_SHARE);
  }

  /** May more be held for this client? Not looked up while little is held for all of them. */
  mayGrow(key: string): boolean {
    if (this.bytes < this.limit / 4) return true;
    return (this.#accounts.get(key)?.bytes ?? 0) < this.share;
  }

  get(key: string): ClientAccount {
    let account = this.#accounts.get(key);
    if (account === undefined) {
      account = new ClientAccount(key);
      this.#accounts.set(key, account);
    }
    return account;
  }

  hold(key: string, evict: () => void): Holding {
    const account = this.get(key);
    const holding = new Holding(this, account, evict);
    account.holdings.add(holding);
    return holding;
  }

  openConnection(address: string, evict: () => void): ConnectionAccount {
    return new ConnectionAccount(this, this.get(getAccountKey(address)), evict);
  }

  addTotal(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes <= this.limit || this.#isReliefScheduled) return;
    // Later: the caller may be in the middle of a change of what would be evicted.
    this.#isReliefScheduled = true;
    queueMicrotask(() => this.#relieve());
  }

  removeIfEmpty(account: ClientAccount): void {
    const { key, bytes, connections, holdings } = account;
    if (bytes !== 0 || connections.size > 0 || holdings.size > 0) return;
    if (this.#accounts.get(key) === account) this.#accounts.delete(key);
  }

  #relieve(): void {
    this.#isReliefScheduled = false;
    const enough = this.limit * (1 - RELIEF_FRACTION);
    while (this.bytes > enough) {
      const victim = this.#findHoldingToEvict();
      if (victim === undefined) return;
      this.evictions += 1;
      victim.evict();
      victim.release();
    }
  }

  /** The largest holding of the account that holds the most; connections with authorized requests last. */
  #findHoldingToEvict(): Holding | undefined {
    let largest: ClientAccount | undefined;
    for (const account of this.#accounts.values())
      if (largest === undefined || account.bytes > largest.bytes) largest = account;
    if (largest === undefined) return undefined;
    let victim: Holding | undefined;
    let isVictimAuthorized = true;
    const consider = (holding: Holding, isAuthorized: boolean): void => {
      if (holding.bytes <= 0 || (isAuthorized && !isVictimAuthorized)) return;
      const isPreferred = isVictimAuthorized && !isAuthorized;
      if (victim !== undefined && !isPreferred && holding.bytes <= victim.bytes) return;
      victim = holding;
      isVictimAuthorized = isAuthorized;
    };
    for (const connection of largest.connections) consider(connection, connection.hasAuthorized);
    for (const holding of largest.holdings) consider(holding, false);
    return victim;
  }
}

/** The account of a client without a token: the network of a site, IPv4 /24 or IPv6 /48. No identity begins with a zero byte. */
export const getAccountKey = (address: string): string => `\0${getNetworks(address)[1]}`;

interface ClientLimits {
  /** Bytes that may be held for all clients. */
  readonly bytes: number;
  readonly connections: number;
  /** Beyond this number, idle connections are closed soon: bursts of more are served, but not kept. */
  readonly keptConnections: number;
}

/** Limits from the memory of the container, of which each worker has its part. */
export function deriveClientLimits(workers = 1, memory = getMemoryLimit()): ClientLimits {
  const own = memory / workers;
  const bytes = Math.min(own * MEMORY_FRACTION, getHeapStatistics().heap_size_limit * HEAP_FRACTION);
  // Workers share the code.
  const available = own - PROGRAM_BYTES - CODE_BYTES / workers;
  const toConnections = (free: number): number =>
    Math.max(MIN_CONNECTIONS, Math.min(MAX_CONNECTIONS, Math.floor(free / CONNECTION_BYTES)));
  return {
    bytes: Math.round(Math.max(MIN_BYTES, Math.min(MAX_BYTES, bytes))),
    connections: toConnections(available),
    keptConnections: toConnections(available * KEPT_FRACTION),
  };
}

/** Where there is no limit, Node returns 0 or a number that exceeds all memory. */
function getMemoryLimit(): number {
  const constrained = process.constrainedMemory();
  return constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
}

/** The accounts of this process. */
export const clientAccounts = new ClientAccounts(deriveClientLimits().bytes);
