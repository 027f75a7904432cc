import { once } from 'node:events';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { Settings } from '../../config/schema.ts';
import { createLdapConnectionPool } from '../../identity/ldap-connection-pool.ts';
import { ProblemsError } from '../../lib/problems-error.ts';
import { withTimeout } from '../../lib/promises.ts';
import { readSettingFile } from '../../lib/read-file.ts';
import { UNKNOWN_CA_CODES } from '../../lib/tls-errors.ts';
import { Fault } from '../../ports/fault.ts';
import { parseTargetUrl } from '../../proxy/upstream/targets.ts';
import { readUpstreamTlsFiles, toTlsOptions } from '../../proxy/upstream/tls-files.ts';
import { openOpenIdProviders } from '../../server/config-resources.ts';
import { createRedisOptions } from '../../server/open-store.ts';
import { createKeyFetcher, readKeySource } from '../../server/trusted-issuers.ts';
import { formatRedisAddress } from '../../stores/redis/url.ts';

/** Something that gatehouse connects to. Its address contains no secret. */
interface Dependency {
  readonly setting: string;
  readonly address: string;
  /** Rejects with the problem. Returns what was found, if it is of interest. */
  readonly connect: () => Promise<string | undefined>;
}

export type ConnectionResult = Awaited<ReturnType<typeof tryToConnect>>;

/** For each dependency, whatever timeouts the settings allow. */
const DEADLINE_SECONDS = 10;

/** For one of the two steps that some take; otherwise a step would keep the process running after the deadline. */
const limitStep = (timeout: number): number => Math.min(timeout, DEADLINE_SECONDS / 2);

/** Connects to everything that the settings name, at once. */
export const connectToAll = (settings: Settings): Promise<readonly ConnectionResult[]> =>
  Promise.all(
    [
      ...listRedis(settings),
      ...listIssuers(settings),
      ...listLdap(settings),
      ...listProviders(settings),
      ...listUpstreams(settings),
    ].map(tryToConnect),
  );

async function tryToConnect({ setting, address, connect }: Dependency) {
  const startedAt = performance.now();
  const finish = (ok: boolean, details: { readonly found?: string; readonly problem?: string }) => {
    const duration_ms = Math.round(performance.now() - startedAt);
    return { setting, address, ok, duration_ms, ...details };
  };
  try {
    const found = await withTimeout(connect(), DEADLINE_SECONDS * 1_000, () => {
      throw new Error(`no response in ${DEADLINE_SECONDS} s`);
    });
    return finish(true, found === undefined ? {} : { found });
  } catch (error) {
    return finish(false, { problem: describeError(error, setting) });
  }
}

/** Returns the message of the error and the messages of its causes, which name the reason. */
function describeError(error: unknown, setting: string): string {
  if (error instanceof ProblemsError) return error.problems.join('; ');
  const messages: string[] = [];
  let code = '';
  for (let cause = error; cause instanceof Error && messages.length < 4; cause = cause.cause) {
    const reported = cause instanceof AggregateError ? (cause.errors[0] as Error) : cause;
    const { message } = reported;
    if (message !== '' && !messages.some((known) => known.includes(message))) messages.push(message);
    ({ code = code } = reported as NodeJS.ErrnoException);
    // The cause of a fault of Redis repeats its message in other words.
    if (cause instanceof Fault && cause.code === 'store_unavailable') break;
  }
  return `${messages.join(': ')}${getAdvice(code, setting)}`;
}

function getAdvice(code: string, setting: string): string {
  if (code === 'ECONNREFUSED') return '; nothing listens at this address';
  if (!UNKNOWN_CA_CODES.includes(code)) return '';
  return `; ${setting}.ca must contain the CA that issued its certificate`;
}

function listRedis(settings: Settings): readonly Dependency[] {
  const { type, url = '', prefix, durability } = settings.store;
  if (type !== 'redis') return [];
  return [
    {
      setting: 'store.url',
      address: `Redis ${formatRedisAddress(url)}`,
      async connect() {
        // Imported on use: the embedded store does not need it.
        const [{ connectRedis, COMMAND_TIMEOUT_MS }, { checkRedis, throwIfPermanent }] = await Promise.all([
          import('../../stores/redis/client.ts'),
          import('../../stores/redis/startup-checks.ts'),
        ]);
        const client = await connectRedis({
          url,
          name: 'gatehouse-check',
          commandTimeout: COMMAND_TIMEOUT_MS,
          connection: createRedisOptions(settings),
        }).catch((error: Fault) => {
          throwIfPermanent(error);
          throw error;
        });
        try {
          const notices = await checkRedis({
            client,
            prefix,
            wallTime: () => Date.now() / 1_000,
            replicated: durability === 'replicated',
          });
          return notices.join('; ') || undefined;
        } finally {
          client.close();
        }
      },
    },
  ];
}

const listIssuers = ({ trustedIssuers }: Settings): readonly Dependency[] =>
  Object.entries(trustedIssuers)
    .filter(([, { jwksFile }]) => jwksFile === undefined)
    .map(([name, settings]) => ({
      setting: `trustedIssuers.${name}`,
      address: settings.jwksUri ?? settings.issuer,
      async connect() {
        const source = readKeySource(name, { ...settings, timeout: limitStep(settings.timeout) });
        const fetcher = createKeyFetcher(source);
        try {
          const { length } = await fetcher.fetch();
          return length === 1 ? '1 key' : `${length} keys`;
        } finally {
          void fetcher.close();
        }
      },
    }));

const listLdap = ({ directories }: Settings): readonly Dependency[] =>
  Object.entries(directories).flatMap(([name, { ldap }]) =>
    (ldap?.url ?? []).map((url) => ({
      setting: `directories.${name}.ldap`,
      address: url,
      async connect() {
        if (ldap === undefined) return undefined;
        const ca = readSettingFile(`directories.${name}.ldap.ca`, ldap.ca);
        const pool = createLdapConnectionPool({
          ...ldap,
          url: [url],
          timeout: limitStep(ldap.timeout),
          ...(ca !== undefined && { ca }),
        });
        try {
          // Binds as the service account and reads the base entry.
          await pool.search({
            base: ldap.base,
            scope: 'base',
            filter: '(objectClass=*)',
            attributes: ['1.1'],
          });
          return undefined;
        } finally {
          await pool.close();
        }
      },
    })),
  );

const listProviders = (settings: Settings): readonly Dependency[] =>
  Object.entries(settings.signIn.openid).map(([name, provider]) => ({
    setting: `signIn.openid.${name}`,
    address: provider.issuer,
    async connect() {
      const openid = { [name]: { ...provider, timeout: limitStep(provider.timeout) } };
      await using resources = new AsyncDisposableStack();
      const [opened] = openOpenIdProviders({ signIn: { ...settings.signIn, openid } }, { resources });
      // Reads the metadata of the provider; the request is not sent.
      await opened?.startSignIn(settings.publicUrl);
      return undefined;
    },
  }));

/** Opens a connection to each target, without a request. */
const listUpstreams = ({ upstreams }: Settings): readonly Dependency[] =>
  Object.entries(upstreams).flatMap(([name, settings]) =>
    settings.targets.map((url) => ({
      setting: `upstreams.${name}`,
      address: url,
      async connect() {
        const { protocol, hostname, port, socketPath } = parseTargetUrl(url);
        const host = hostname.replace(/^\[|\]$/g, '');
        const { serverName = isIP(host) === 0 ? host : undefined } = settings;
        const isTls = protocol === 'https:';
        const socket: Socket = isTls
          ? connectTls({
              host,
              port,
              ...toTlsOptions(readUpstreamTlsFiles(name, settings)),
              ...(serverName !== undefined && { servername: serverName }),
              rejectUnauthorized: true,
            })
          : connectTcp(socketPath === undefined ? { host, port } : { path: socketPath });
        try {
          await once(socket, isTls ? 'secureConnect' : 'connect', {
            signal: AbortSignal.timeout(DEADLINE_SECONDS * 1_000),
          });
          return undefined;
        } finally {
          socket.on('error', () => {}).destroy();
        }
      },
    })),
  );
