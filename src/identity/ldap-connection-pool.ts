import { once } from 'node:events';
import { connect as connectPlain, isIP, type Socket } from 'node:net';
import { type ConnectionOptions, checkServerIdentity, connect as connectTls, type TLSSocket } from 'node:tls';
import type { Client, Entry, Filter } from 'ldapts';
import { createConcurrencyLimiter } from '../lib/concurrency-limiter.ts';
import { Fault } from '../ports/fault.ts';
import { createUnavailableFault, rejectTruncatedValues, startTls } from './ldap-protocol.ts';

interface LdapSearch {
  readonly base: string;
  readonly scope: 'base' | 'sub';
  readonly filter: string;
  /** An additional condition; the value needs no escaping. */
  readonly equals?: { readonly attribute: string; readonly value: string | Buffer };
  readonly attributes: readonly string[];
  readonly binaryAttributes?: readonly string[];
  readonly sizeLimit?: number;
}

export interface LdapServer {
  readonly url: readonly string[];
  readonly startTls: boolean;
  /** PEM. Default: the CAs that Node trusts. */
  readonly ca?: string;
  readonly serverName?: string;
  readonly bindDn: string;
  readonly password?: string;
  /** Seconds. */
  readonly timeout: number;
  /** Open at the same time. */
  readonly connections?: number;
}

/** Per process. Password sign-ins use at most half of them. */
export const LDAP_CONNECTIONS = 4;

type LdapConnection = Awaited<ReturnType<typeof openConnection>>;

const MAX_QUEUED = 64;
/** Per operation. A response with 1,000 groups has about a third of this. */
const MAX_RESPONSE_BYTES = 1_048_576;
/** Counted for a smaller chunk: ldapts copies all buffered bytes for each chunk, so many small ones take long. */
const MIN_CHUNK_COST = 256;
const IDLE_MS = 60_000;

export type LdapConnectionPool = ReturnType<typeof createLdapConnectionPool>;

/**
 * Connections to LDAP servers. Connections bound as the service account are pooled for searches. A password is verified on
 * a new connection that is closed afterwards, so that a pooled connection is never bound as another user.
 *
 * Every operation has a timeout, and every failure is a `Fault`, never "user not found".
 */
export function createLdapConnectionPool(server: LdapServer) {
  const idle = createIdleConnections();
  const openBound = createConnector(server);
  const runLimited = createLdapLimiter(server, server.connections ?? LDAP_CONNECTIONS);

  const runSearch = async (
    connection: LdapConnection,
    search: LdapSearch,
    filter: string | Filter,
  ): Promise<readonly Entry[]> => {
    // Referrals are not followed: they name servers that are not configured.
    const { searchEntries } = await connection.run((client) =>
      client.search(search.base, {
        scope: search.scope,
        filter,
        attributes: [...search.attributes],
        explicitBufferAttributes: [...(search.binaryAttributes ?? [])],
        ...(search.sizeLimit !== undefined && { sizeLimit: search.sizeLimit }),
        timeLimit: server.timeout,
      }),
    );
    idle.add(connection);
    return searchEntries;
  };

  const runWithFault = <T>(task: () => Promise<T>): Promise<T> =>
    runLimited(async () => {
      try {
        return await task();
      } catch (error) {
        throw toFault(error);
      }
    });

  return {
    search: (search: LdapSearch): Promise<readonly Entry[]> =>
      runWithFault(async () => {
        if (idle.isClosed()) throw new Fault('directory_unavailable', 'LDAP: the directory is closed');
        const filter = await buildFilter(search);
        const pooled = idle.take();
        if (pooled !== undefined) {
          try {
            return await runSearch(pooled, search, filter);
          } catch (error) {
            // The server may have closed an idle connection. Searches are idempotent: retry.
            if (isResultError(error) || error instanceof Fault) throw error;
          }
        }
        return runSearch(await openBound(server.bindDn, server.password ?? ''), search, filter);
      }),

    verifyPassword: (dn: string, password: string): Promise<boolean> =>
      runWithFault(async () => {
        // RFC 4513 §5.1.2: a bind with an empty password is "unauthenticated" and may succeed.
        if (password === '' || password.includes('\0') || !dn.includes('=')) return false;
        try {
          const connection = await openBound(dn, password);
          connection.close();
          return true;
        } catch (error) {
          if (isResultError(error) && CREDENTIALS_REFUSED_CODES.has(error.code)) return false;
          throw error;
        }
      }),

    close: async () => idle.close(),
  };
}

export const createLdapLimiter = ({ timeout }: LdapServer, maxConcurrent: number) =>
  createConcurrencyLimiter({
    maxConcurrent,
    maxQueued: MAX_QUEUED,
    queueFullMessage: 'LDAP: too many requests are queued',
    queueTimeout: { ms: timeout * 1_000, message: 'LDAP: timed out waiting for a connection' },
  });

/** Connections bound as the service account, each closed after `IDLE_MS`. */
function createIdleConnections() {
  const idle: { readonly connection: LdapConnection; readonly timer: NodeJS.Timeout }[] = [];
  let closed = false;
  return {
    isClosed: () => closed,
    add(connection: LdapConnection): void {
      if (closed || !connection.isReady()) return connection.close();
      const timer = setTimeout(() => {
        idle.splice(idle.indexOf(entry), 1);
        connection.close();
      }, IDLE_MS).unref();
      const entry = { connection, timer };
      idle.push(entry);
    },
    take(): LdapConnection | undefined {
      for (let entry = idle.pop(); entry !== undefined; entry = idle.pop()) {
        clearTimeout(entry.timer);
        if (entry.connection.isReady()) return entry.connection;
        entry.connection.close();
      }
      return undefined;
    },
    close(): void {
      closed = true;
      for (const { connection, timer } of idle.splice(0)) {
        clearTimeout(timer);
        connection.close();
      }
    },
  };
}

/** Opens bound connections, to the server that responded last if possible. */
function createConnector(server: LdapServer): (dn: string, password: string) => Promise<LdapConnection> {
  let preferredIndex = 0;
  return async (dn, password) => {
    let lastError: unknown;
    for (let attempt = 0; attempt < server.url.length; attempt += 1) {
      const index = (preferredIndex + attempt) % server.url.length;
      try {
        const connection = await openConnection(server, server.url[index] ?? '');
        await connection.run((client) => client.bind(dn, password));
        preferredIndex = index;
        return connection;
      } catch (error) {
        // Another server would return the same result.
        if (isResultError(error) && !UNAVAILABLE_CODES.has(error.code)) {
          preferredIndex = index;
          throw error;
        }
        lastError = error;
      }
    }
    throw toFault(lastError);
  };
}

/** Built from objects: in the text form of a filter, ldapts would corrupt binary values. */
async function buildFilter({ filter, equals }: LdapSearch): Promise<string | Filter> {
  if (equals === undefined) return filter;
  const { AndFilter, EqualityFilter, FilterParser } = await import('ldapts');
  return new AndFilter({ filters: [FilterParser.parseString(filter), new EqualityFilter(equals)] });
}

async function openConnection(server: LdapServer, url: string) {
  // Imported on first use: most configurations have no LDAP directory.
  const { Client: LdapClient, BerReader } = await import('ldapts');
  rejectTruncatedValues(BerReader);
  const timeoutMs = server.timeout * 1_000;
  const { hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  const tls = createTlsOptions(server, host);
  const sockets: Socket[] = [];
  const trackSocket = <S extends Socket>(socket: S): S => {
    sockets.push(socket);
    return socket;
  };
  const destroySockets = (): void => {
    for (const socket of sockets.toReversed()) socket.destroy();
  };
  const upgraded =
    server.startTls && url.startsWith('ldap:')
      ? trackSocket(await upgradeToTls(trackSocket(connectPlain(Number(port || 389), host)), tls, timeoutMs))
      : undefined;
  let hasConnected = false;
  /** ldapts reconnects by itself, without a bind and possibly without TLS: allow one connection only. */
  const connectOnce = <S>(connect: () => S): S => {
    if (hasConnected) throw new Error('Connection closed');
    hasConnected = true;
    return connect();
  };
  const client = new LdapClient({
    url,
    timeout: timeoutMs,
    connectTimeout: timeoutMs,
    // With `tlsOptions`, ldapts uses TLS whatever the URL scheme is.
    ...((url.startsWith('ldaps:') || upgraded !== undefined) && { tlsOptions: tls }),
    createConnection: ((toPort: number, toHost: string) =>
      connectOnce(() => trackSocket(connectPlain(toPort, toHost)))) as typeof connectPlain,
    createSecureConnection: ((...parameters: Parameters<typeof connectTls>) =>
      connectOnce(() => upgraded ?? trackSocket(connectTls(...parameters)))) as typeof connectTls,
  });
  const responseLimit = limitResponses(client, destroySockets);
  const close = (): void => {
    client.unbind().catch(() => {});
    destroySockets();
  };
  return {
    /** Runs one operation with a new limit on response bytes. Closes the connection if it fails. */
    async run<T>(operation: (client: Client) => Promise<T>): Promise<T> {
      responseLimit.reset();
      try {
        return await operation(client);
      } catch (error) {
        close();
        throw responseLimit.getFault() ?? error;
      }
    },
    isReady: () => client.isConnected && client.isBound && sockets.every(({ destroyed }) => !destroyed),
    close,
  };
}

function createTlsOptions({ serverName, ca }: LdapServer, host: string): ConnectionOptions {
  const name = serverName ?? host;
  return {
    ...(isIP(name) === 0 && { servername: name }),
    checkServerIdentity: (_host, certificate) => checkServerIdentity(name, certificate),
    ...(ca !== undefined && { ca }),
    minVersion: 'TLSv1.2',
    // Explicit, so that NODE_TLS_REJECT_UNAUTHORIZED has no effect.
    rejectUnauthorized: true,
  };
}

/**
 * ldapts buffers a response until it is complete and parses messages recursively: an endless response would exhaust the
 * memory, and many small messages in one segment would overflow the stack. ldapts 9.2.0 has no option for either, so its
 * data handler is replaced.
 */
function limitResponses(client: Client, destroySockets: () => void) {
  const parser = client as unknown as { socketDataHandler?: (data: Buffer) => void };
  const parse = parser.socketDataHandler;
  if (parse === undefined) throw new Error('this version of ldapts does not support response limits');
  let received = 0;
  let fault: Fault | undefined;
  const fail = (message: string): void => {
    fault = createUnavailableFault(message);
    destroySockets();
  };
  parser.socketDataHandler = (data) => {
    if (fault !== undefined) return;
    received += Math.max(data.length, MIN_CHUNK_COST);
    if (received > MAX_RESPONSE_BYTES) return fail('a response is larger than 1 MiB or has too many chunks');
    try {
      parse(data);
    } catch {
      fail('a response cannot be parsed');
    }
  };
  return {
    reset() {
      received = 0;
    },
    getFault: () => fault,
  };
}

async function upgradeToTls(plain: Socket, tls: ConnectionOptions, timeoutMs: number): Promise<TLSSocket> {
  const timer = setTimeout(() => plain.destroy(new Error('StartTLS timed out')), timeoutMs);
  try {
    await once(plain, 'connect');
    const secure = await startTls(plain, tls);
    // Until ldapts adds its listener: an unhandled 'error' event would end the process.
    return secure.on('error', () => secure.destroy());
  } catch (error) {
    plain.on('error', () => {}).destroy();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** RFC 4511 §4.1.9: result codes for wrong passwords and for accounts that may not sign in. */
const CREDENTIALS_REFUSED_CODES: ReadonlySet<number> = new Set([19, 32, 34, 48, 49, 50, 53]);
/** referral, busy and unavailable: another server may succeed. */
const UNAVAILABLE_CODES: ReadonlySet<number> = new Set([10, 51, 52]);

/** Errors of ldapts for an LDAP result have a numeric code, system errors a string. */
const isResultError = (error: unknown): error is Error & { readonly code: number } =>
  error instanceof Error && 'code' in error && typeof error.code === 'number';

/** Omits the server's diagnostic message: it may contain request data. */
function toFault(error: unknown): Fault {
  if (error instanceof Fault) return error;
  return createUnavailableFault(
    isResultError(error)
      ? `${error.name} (result ${error.code})`
      : ((error as NodeJS.ErrnoException | undefined)?.code ?? describeConnectionError(error)),
  );
}

function describeConnectionError(error: unknown): string {
  const text = error instanceof Error ? error.message : '';
  if (/tim(?:ed )?out/i.test(text)) return 'the server did not respond in time';
  return /closed/i.test(text) ? 'the connection was closed' : 'the connection failed';
}
