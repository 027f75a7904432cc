import { once } from 'node:events';
import { connect as connectPlain, isIP, type Socket } from 'node:net';
import { type ConnectionOptions, checkServerIdentity, connect as connectTls, type TLSSocket } from 'node:tls';
import type { Client, Entry, Filter } from 'ldapts';
import { Fault } from '../ports/fault.ts';
import { startTls } from './start-tls.ts';
import { turnstile } from './turnstile.ts';

/**
 * Connections to LDAP servers. A few, bound as the service account, are kept for searches; a password is tried on a
 * connection of its own that is closed afterwards, so that a kept one is never bound as somebody else.
 *
 * ldapts connects again by itself, without a name: here it cannot. Every wait has an end, and what goes wrong is a
 * `Fault`: never "there is no such person".
 */
export interface LdapConnections {
  search(search: LdapSearch): Promise<readonly Entry[]>;
  /** Does the server take this password for this entry? */
  accepts(dn: string, password: string): Promise<boolean>;
  close(): Promise<void>;
}

export interface LdapSearch {
  readonly base: string;
  readonly scope: 'base' | 'sub';
  readonly filter: string;
  /** And this attribute has this value: bytes as they are, nothing in them has a meaning. */
  readonly equals?: { readonly attribute: string; readonly value: string | Buffer };
  readonly attributes: readonly string[];
  /** Attributes that are bytes. */
  readonly bytes?: readonly string[];
  /** Most entries. */
  readonly most?: number;
}

export interface LdapServer {
  readonly urls: readonly string[];
  readonly startTls: boolean;
  /** PEM; undefined: those the machine trusts. */
  readonly ca?: string;
  readonly serverName?: string;
  readonly bindDn: string;
  readonly password: string;
  /** Seconds. */
  readonly timeout: number;
  /** Most at once. */
  readonly connections: number;
}

interface Connection {
  readonly client: Client;
  /** Before each operation: its response has the whole limit on bytes. */
  begin(): void;
  /** Why its last response was not read to the end. */
  problem(): Fault | undefined;
  isAlive(): boolean;
  end(): void;
}

const MAX_WAITING = 64;
/** Of one response: a thousand groups take a third of it. */
const MAX_RESPONSE = 1_048_576;
/** A smaller part counts as much: ldapts copies what it has with each part, so that many small ones take long. */
const LEAST_PART = 256;
const IDLE_MS = 60_000;

export function ldapConnections(server: LdapServer): LdapConnections {
  const limitMs = server.timeout * 1_000;
  const idle: { readonly connection: Connection; readonly timer: NodeJS.Timeout }[] = [];
  const inTurn = turnstile({
    atOnce: server.connections,
    waiting: MAX_WAITING,
    full: 'LDAP: too many are waiting',
    limit: { ms: limitMs, late: 'LDAP: no connection was free in time' },
  });
  /** The server that answered last is asked first. */
  let first = 0;
  let closed = false;

  const open = async (dn: string, password: string): Promise<Connection> => {
    let last: unknown;
    for (let tries = 0; tries < server.urls.length; tries += 1) {
      const at = (first + tries) % server.urls.length;
      try {
        const connection = await openOne(server, server.urls[at] ?? '', limitMs);
        try {
          connection.begin();
          await connection.client.bind(dn, password);
        } catch (error) {
          connection.end();
          if (connection.problem() !== undefined) throw connection.problem();
          // This server has answered: the next one would say the same.
          if (isResult(error) && !isAway(error)) {
            first = at;
            throw error;
          }
          last = error;
          continue;
        }
        first = at;
        return connection;
      } catch (error) {
        if (isResult(error) && !isAway(error)) throw error;
        last = error;
      }
    }
    throw faultOf(last);
  };

  const keep = (connection: Connection): void => {
    if (closed || !connection.isAlive()) return connection.end();
    const timer = setTimeout(() => {
      idle.splice(idle.indexOf(kept), 1);
      connection.end();
    }, IDLE_MS).unref();
    const kept = { connection, timer };
    idle.push(kept);
  };
  const kept = (): Connection | undefined => {
    for (let one = idle.pop(); one !== undefined; one = idle.pop()) {
      clearTimeout(one.timer);
      if (one.connection.isAlive() && one.connection.client.isBound) return one.connection;
      one.connection.end();
    }
    return undefined;
  };

  const searchOn = async (connection: Connection, search: LdapSearch): Promise<readonly Entry[]> => {
    try {
      connection.begin();
      // Referrals are not followed: the servers they name are not those of the settings.
      const { searchEntries } = await connection.client.search(search.base, {
        scope: search.scope,
        filter: await filterOf(search),
        attributes: [...search.attributes],
        explicitBufferAttributes: [...(search.bytes ?? [])],
        ...(search.most !== undefined && { sizeLimit: search.most }),
        timeLimit: server.timeout,
      });
      keep(connection);
      return searchEntries;
    } catch (error) {
      connection.end();
      throw connection.problem() ?? error;
    }
  };

  return {
    search: (search) =>
      inTurn(async () => {
        if (closed) throw new Fault('directory_unavailable', 'LDAP: the directory is closed');
        try {
          const before = kept();
          if (before !== undefined) {
            try {
              return await searchOn(before, search);
            } catch (error) {
              // The server may have closed a connection that was idle; reading again does no harm.
              if (isResult(error) || before.problem() !== undefined) throw error;
            }
          }
          return await searchOn(await open(server.bindDn, server.password), search);
        } catch (error) {
          throw faultOf(error);
        }
      }),

    accepts: (dn, password) =>
      inTurn(async () => {
        // RFC 4513 §5.1.2: a name with an empty password is "unauthenticated", and servers say yes to it.
        if (password === '' || password.includes('\0') || !dn.includes('=')) return false;
        try {
          const connection = await open(dn, password);
          connection.end();
          return true;
        } catch (error) {
          if (isResult(error) && REFUSED.has(error.code)) return false;
          throw faultOf(error);
        }
      }),

    async close() {
      closed = true;
      for (const { connection, timer } of idle.splice(0)) {
        clearTimeout(timer);
        connection.end();
      }
    },
  };
}

/** Made of parts: a filter that is written out as text would lose bytes that are no letters. */
async function filterOf({ filter, equals }: LdapSearch): Promise<string | Filter> {
  if (equals === undefined) return filter;
  const { AndFilter, EqualityFilter, FilterParser } = await import('ldapts');
  return new AndFilter({ filters: [FilterParser.parseString(filter), new EqualityFilter(equals)] });
}

async function openOne(server: LdapServer, url: string, limitMs: number): Promise<Connection> {
  // Loaded with the first use: whoever has no LDAP does not pay for it.
  const { Client: LdapClient } = await import('ldapts');
  const { hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  const name = server.serverName ?? host;
  const tls: ConnectionOptions = {
    ...(isIP(name) === 0 && { servername: name }),
    checkServerIdentity: (_host, certificate) => checkServerIdentity(name, certificate),
    ...(server.ca !== undefined && { ca: server.ca }),
    minVersion: 'TLSv1.2',
    // Named, so that no environment variable can turn it off.
    rejectUnauthorized: true,
  };
  let alive = true;
  let end = (): void => {};
  const watch = <S extends ReturnType<typeof connectPlain>>(socket: S): S => {
    const before = end;
    end = () => {
      socket.destroy();
      before();
    };
    socket.once('close', () => {
      alive = false;
    });
    return socket;
  };
  const upgraded =
    server.startTls && url.startsWith('ldap:')
      ? watch(await upgrade(watch(connectPlain(Number(port || 389), host)), tls, limitMs))
      : undefined;
  let used = false;
  /** One connection and no other: ldapts would replace one that is gone, without a bind and perhaps without TLS. */
  const only = <S>(connect: () => S): S => {
    if (used) throw new Error('Connection closed');
    used = true;
    return connect();
  };
  const client = new LdapClient({
    url,
    timeout: limitMs,
    connectTimeout: limitMs,
    // Where these are given, ldapts speaks TLS whatever the URL says.
    ...((url.startsWith('ldaps:') || upgraded !== undefined) && { tlsOptions: tls }),
    createConnection: ((to: number, at: string) =>
      only(() => watch(connectPlain(to, at)))) as typeof connectPlain,
    createSecureConnection: ((...given: Parameters<typeof connectTls>) =>
      only(() => upgraded ?? watch(connectTls(...given)))) as typeof connectTls,
  });
  const limit = limitResponses(client, () => end());
  return {
    client,
    begin: () => limit.reset(),
    problem: () => limit.problem(),
    isAlive: () => alive && client.isConnected,
    end() {
      alive = false;
      client.unbind().catch(() => {});
      end();
    },
  };
}

/**
 * ldapts keeps whatever arrives until a response is complete, and reads messages recursively: an endless response would take
 * all memory, many small messages in one segment overflow the stack, which ends the process. ldapts has no hook for this, so
 * its handler of incoming data is replaced; its version is pinned.
 */
function limitResponses(client: Client, end: () => void): { reset(): void; problem(): Fault | undefined } {
  const parser = client as unknown as { socketDataHandler?: (data: Buffer) => void };
  const parse = parser.socketDataHandler;
  if (parse === undefined) throw new Error('this version of ldapts cannot be limited');
  let received = 0;
  let problem: Fault | undefined;
  const refuse = (why: string): void => {
    problem = new Fault('directory_unavailable', `LDAP: ${why}`, { retryAfter: 2 });
    end();
  };
  parser.socketDataHandler = (data) => {
    if (problem !== undefined) return;
    received += Math.max(data.length, LEAST_PART);
    if (received > MAX_RESPONSE) return refuse('a response is longer than 1 MiB, or in too many parts');
    try {
      parse(data);
    } catch {
      refuse('a response cannot be read');
    }
  };
  return {
    reset() {
      received = 0;
    },
    problem: () => problem,
  };
}

async function upgrade(plain: Socket, tls: ConnectionOptions, limitMs: number): Promise<TLSSocket> {
  const late = setTimeout(() => plain.destroy(new Error('StartTLS timed out')), limitMs);
  try {
    await once(plain, 'connect');
    const secure = await startTls(plain, tls);
    // Until the client listens: an error nobody hears would end the process.
    return secure.on('error', () => secure.destroy());
  } catch (error) {
    plain.on('error', () => {}).destroy();
    throw error;
  } finally {
    clearTimeout(late);
  }
}

/** RFC 4511 §4.1.9: what a server says to a wrong password, and to an account that may not sign in. */
const REFUSED: ReadonlySet<number> = new Set([19, 32, 34, 48, 49, 50, 53]);
/** It cannot do it now, or somebody else should: another server may. */
const AWAY: ReadonlySet<number> = new Set([10, 51, 52]);

/** The server has answered, and this is what it said. */
interface Result extends Error {
  readonly code: number;
}

/** ldapts' result errors have a number, the system's a word. */
const isResult = (error: unknown): error is Result =>
  error instanceof Error && 'code' in error && typeof error.code === 'number';

const isAway = ({ code }: Result): boolean => AWAY.has(code);

/** The server's own words stay behind: they may hold what was sent. */
export function faultOf(error: unknown): Fault {
  if (error instanceof Fault) return error;
  const why = isResult(error)
    ? `${error.name} (result ${error.code})`
    : ((error as NodeJS.ErrnoException | undefined)?.code ?? reasonOf(error));
  return new Fault('directory_unavailable', `LDAP: ${why}`, { retryAfter: 2 });
}

const reasonOf = (error: unknown): string => {
  const text = error instanceof Error ? error.message : '';
  if (/tim(?:ed )?out/i.test(text)) return 'it does not answer in time';
  return /closed/i.test(text) ? 'the connection was closed' : 'the connection failed';
};
