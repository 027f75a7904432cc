import { randomBytes } from 'node:crypto';
import { chmodSync, closeSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { type AdminApiDeps, handleAdminRequest } from '../admin/grants-api.ts';
import { type AdminListener, type AdminTls, openAdminListener, type ReadinessCheck } from '../admin/listener.ts';
import { getLongestGrantLifetime } from '../config/lifetimes.ts';
import type { Settings } from '../config/schema.ts';
import { Console } from '../console/console.ts';
import type { ConsoleDeps } from '../console/context.ts';
import { parseClientIdUrl } from '../domain/client-document.ts';
import { createUserDirectory } from '../identity/user-directory.ts';
import { readPackageVersion } from '../lib/package-version.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { StartError } from '../lib/start-error.ts';
import { EMPTY_STATUS, type GatewayStatus } from '../observability/gateway-status.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { formatExposition, mergeSnapshots, type Snapshot } from '../observability/metric-registry.ts';
import { Fault } from '../ports/fault.ts';
import { isReadableByOthers } from '../tokens/keyring-file.ts';
import { deriveTokenId } from '../tokens/trusted-issuers/trusted-issuer.ts';
import { buildIntegrations } from './build-from-settings.ts';
import { toListenError } from './listeners.ts';
import type { OpenedStore } from './open-store.ts';
import { createExplainContext } from './service-paths.ts';

interface AdminEndpointOptions {
  readonly settings: Settings;
  readonly log: Logger;
  /** In addition to the checks of shutdown and of the store. */
  readonly checks: readonly ReadinessCheck[];
  readonly getSnapshots: () => Promise<readonly Snapshot[]>;
  /** As `getSnapshots`, as of a few seconds ago where that costs less. */
  readonly getRecentSnapshots: () => Promise<readonly Snapshot[]>;
  /** Finds events of all processes. */
  readonly findRecentEvents: ConsoleDeps['findRecent'];
  readonly findPendingRestart: ConsoleDeps['findPendingRestart'];
  readonly now: () => number;
}

/** The admin listener of this process. It may open before the store is reachable: alive, but not ready. */
export class AdminEndpoint {
  store: OpenedStore | undefined;
  api: AdminApiDeps | undefined;
  isDraining = false;
  /** The current configuration. */
  getSettings: () => Settings;
  /** Returns the status of all processes, for the console. */
  getStatus: () => Promise<GatewayStatus> = async () => EMPTY_STATUS;
  readonly #options: AdminEndpointOptions;
  #console: Console | undefined;
  #listener: AdminListener | undefined;
  /** Why the store was not reached at the last attempt. */
  #storeProblem = '';

  constructor(options: AdminEndpointOptions) {
    this.#options = options;
    this.getSettings = () => options.settings;
  }

  /** Undefined until it is open. */
  get port(): number | undefined {
    return this.#listener?.port;
  }

  async open(): Promise<void> {
    const { settings, log, checks } = this.#options;
    const { host, port, hostNames } = settings.admin;
    this.#console ??= this.#createConsole();
    try {
      this.#listener ??= await openAdminListener({
        host,
        port,
        hostNames,
        ...getCredentials(settings),
        tls: readAdminTls(settings),
        log,
        handleAdminRequest: async (request) => {
          if (this.api === undefined) throw new Fault('store_unavailable', 'has not been reached yet');
          return handleAdminRequest(this.api, request);
        },
        checks: [
          createCheck('accepting', () => this.isDraining && 'is shutting down'),
          createCheck('store', async () => {
            if (this.store === undefined) return `has not been reached yet${this.#storeProblem}`;
            await this.store.probe();
            return undefined;
          }),
          // For probes that exclude `store`: while the store is unreachable, tokens are still validated.
          createCheck('revocations', () => {
            const lag = this.store === undefined ? Number.POSITIVE_INFINITY : this.store.revocationLag?.();
            return (lag ?? 0) > settings.store.maxStaleness && 'are out of date';
          }),
          // For probes that exclude `store`: other processes, whose clocks agree, can issue tokens.
          createCheck('clock', () => this.store?.findClockProblem?.()),
          ...checks,
        ],
        metrics: async (results) => {
          const isHealthy = (name?: string): 0 | 1 =>
            results.some((check) => check.problem !== undefined && (name ?? check.name) === check.name) ? 0 : 1;
          const health: Snapshot = {
            gatehouse_ready: [['', isHealthy()]],
            gatehouse_store_up: [['', isHealthy('store')]],
          };
          return formatExposition(mergeSnapshots([...(await this.#options.getSnapshots()), health]));
        },
        handleConsole: this.#console?.handle,
      });
    } catch (error) {
      throw toListenError('admin', settings.admin, error);
    }
  }

  /** Alive, but not ready: the store was not reached. */
  async openWithoutStore({ message }: Fault): Promise<void> {
    this.#storeProblem = `: ${message}`;
    await this.open();
  }

  /** Uses renewed certificates. If they cannot be used, the old ones stay in use and the error is logged. */
  reloadTls(): void {
    const { settings, log } = this.#options;
    try {
      const tls = readAdminTls(settings);
      if (tls !== undefined) this.#listener?.setTls(tls);
    } catch (error) {
      log.error('admin_tls_reload_failed', errorFields(error));
    }
  }

  async close(): Promise<void> {
    this.#console?.close();
    await this.#listener?.close();
  }

  #createConsole(): Console | undefined {
    const { settings, log, getSnapshots, getRecentSnapshots, findRecentEvents, findPendingRestart, now } =
      this.#options;
    if (!settings.admin.console.enabled) return undefined;
    return new Console({
      credentials: getCredentials(settings),
      acceptsCertificates: settings.admin.tls?.clientCa !== undefined,
      sessionLifetime: settings.admin.console.sessionLifetime,
      accent: settings.pages.accent,
      getSettings: () => this.getSettings(),
      getApi: () => this.api,
      getSnapshot: async (isWatched) => mergeSnapshots(await (isWatched ? getSnapshots() : getRecentSnapshots())),
      listReplicas: () => this.store?.listReplicas?.(),
      findRecent: findRecentEvents,
      findPendingRestart,
      getStatus: () => this.getStatus(),
      createExplainContext: cacheBySettings(createExplainContext),
      listIntegrations: cacheBySettings((current) => buildIntegrations(current, [])),
      log,
      now,
      version: readPackageVersion(),
    });
  }
}

/** Compiling thousands of routes for each view of the console would delay requests. */
function cacheBySettings<T extends object>(create: (settings: Settings) => T): (settings: Settings) => T {
  const cache = new WeakMap<Settings, T>();
  return (settings) => {
    const value = cache.get(settings) ?? create(settings);
    cache.set(settings, value);
    return value;
  };
}

const getCredentials = ({ admin: { tokenFile, readOnlyTokenFile, tls } }: Settings) => ({
  tokenFile,
  readOnlyTokenFile,
  operators: tls?.operators,
});

function readAdminTls({ admin: { tls } }: Settings): AdminTls | undefined {
  return (
    tls && {
      certificate: readSettingFile('admin.tls.certificate', tls.certificate),
      key: readSettingFile('admin.tls.key', tls.key),
      clientCa: readSettingFile('admin.tls.clientCa', tls.clientCa),
    }
  );
}

type Problem = string | false | undefined;

export const createCheck = (name: string, findProblem: () => Problem | Promise<Problem>): ReadinessCheck => ({
  name,
  check: async () => {
    const problem = await findProblem();
    if (typeof problem === 'string') throw new Error(problem);
  },
});

/** What the admin API uses, with lookups in the current configuration. */
export const createAdminApi = (
  deps: Pick<AdminApiDeps, 'store' | 'log' | 'now'>,
  settings: () => Settings,
): AdminApiDeps => ({
  ...deps,
  longestGrant: () => getLongestGrantLifetime(settings()),
  hasClient(id) {
    const { integrations, trustedIssuers } = settings();
    const [issuer = '', foreignId] = id.split('/', 2);
    return (
      integrations.some(({ clientId }) => clientId === id) ||
      // Also if its host was removed from the configuration: it may be added again.
      parseClientIdUrl(id) !== undefined ||
      (foreignId !== undefined && Object.hasOwn(trustedIssuers, issuer))
    );
  },
  hasDocumentClients: (id) =>
    settings().integrations.some(
      ({ clientId, clientDocuments }) => clientId === id && clientDocuments.hosts.length > 0,
    ),
  hasIssuer: (name) => Object.hasOwn(settings().trustedIssuers, name),
  getForeignTokenId: (issuer, jti) => deriveTokenId(issuer, `jti ${jti}`),
  getForeignIdentity: (issuer, subject) => `${settings().trustedIssuers[issuer]?.label ?? issuer}:${subject}`,
  async isDisabled(identity) {
    await using users = openDirectory(settings());
    return (await users.findByIdentity(identity))?.disabled === true;
  },
  async findIdentities(attribute, value) {
    await using users = openDirectory(settings());
    const matches = await Promise.all(
      Object.keys(settings().directories).map((directory) =>
        users.findByClaim(directory, { issuer: '', attribute, value }),
      ),
    );
    return [...new Set(matches.flatMap((user) => (user === undefined ? [] : [user.identity])))];
  },
});

/** Opened per request: lookups are rare, and a supervisor has no directory of its own. */
function openDirectory({ directories }: Settings) {
  const users = createUserDirectory(directories);
  return { ...users, [Symbol.asyncDispose]: () => users.close() };
}

export function ensureAdminTokens({ admin }: Settings, log: Pick<Logger, 'warn'>): void {
  ensureAdminToken(admin.tokenFile, log);
  if (admin.readOnlyTokenFile !== undefined) ensureAdminToken(admin.readOnlyTokenFile, log, 'admin.readOnlyTokenFile');
}

/** Creates a missing admin token with mode 0600. Throws when other users can read an existing one. */
export function ensureAdminToken(
  file: string,
  log?: Pick<Logger, 'warn'>,
  setting: AdminTokenSetting = 'admin.tokenFile',
): void {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  // A start with a full disk leaves an empty file behind; an empty token would be no secret.
  if (statSync(file, { throwIfNoEntry: false })?.size === 0) rmSync(file);
  let fd: number;
  try {
    fd = openSync(file, 'wx', 0o600);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    return restrictFileMode(file, log, setting);
  }
  try {
    writeSync(fd, `${randomBytes(32).toString('base64url')}\n`);
  } finally {
    closeSync(fd);
  }
}

type AdminTokenFileProblem = { readonly kind: 'fatal' | 'fixable'; readonly problem: string };

/**
 * The same rule as for the key file, which permits Secrets mounted by a kubelet. A kubelet that applies `fsGroup` sets the
 * mode of our own file in a volume to 0660: that is fixable.
 */
export function checkAdminTokenFile(file: string): AdminTokenFileProblem | undefined {
  const stats = statSync(file, { throwIfNoEntry: false });
  if (stats === undefined || process.platform === 'win32' || !isReadableByOthers(file)) return undefined;
  const { mode, uid } = stats;
  const problem = `other users can read ${file} (mode ${(mode & 0o777).toString(8)})`;
  return { kind: uid === process.geteuid?.() && (mode & 0o007) === 0 ? 'fixable' : 'fatal', problem };
}

function restrictFileMode(file: string, log: Pick<Logger, 'warn'> | undefined, setting: AdminTokenSetting): void {
  const fileProblem = checkAdminTokenFile(file);
  if (fileProblem === undefined) return;
  if (fileProblem.kind === 'fatal') throw new StartError([formatAdminTokenProblem(fileProblem, setting)]);
  chmodSync(file, 0o600);
  log?.warn('admin_token_restricted', { problem: fileProblem.problem, note: 'its mode has been set to 600' });
}

export type AdminTokenSetting = 'admin.tokenFile' | 'admin.readOnlyTokenFile';

export const formatAdminTokenProblem = (
  { problem }: AdminTokenFileProblem,
  setting: AdminTokenSetting = 'admin.tokenFile',
): string => `${setting}: ${problem}; run chmod 600, and replace the token if it may have been read`;
