import type { Settings } from '../config/schema.ts';
import type { VerifiedToken } from '../domain/grant.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';
import type { RequestConfig } from '../proxy/config.ts';
import type { CertificateFiles } from '../x509/certificate-files.ts';
import { openConfigResources } from './config-resources.ts';
import { createBuildContext, createRequestProxy } from './create-handlers.ts';
import { listKeyWarnings, recordKeys } from './keys.ts';
import { checkListenerTls } from './listeners.ts';
import type { ProcessState } from './process-state.ts';
import { createServiceRouter } from './service-router.ts';
import { checkTlsFileValidity } from './tls-file-validity.ts';

/** Everything built from one configuration. A request uses the same one from beginning to end. */
export type RuntimeConfig = Awaited<ReturnType<typeof buildRuntimeConfig>>;

/**
 * Builds a configuration without changing anything outside of it; `activate` does that. Throws a `StartError` with all
 * problems when the settings cannot be used; what was opened by then is closed. `currentFiles`: the files in use.
 */
export async function buildRuntimeConfig(
  settings: Settings,
  processState: ProcessState,
  currentFiles?: CertificateFiles,
) {
  const { store, now } = processState;
  await using resources = new AsyncDisposableStack();
  const activation: (() => void)[] = [];
  const scope: ResourceScope = { resources, onActivate: (task) => void activation.push(task) };
  const opened = await openConfigResources(settings, processState, scope, currentFiles);
  const { keyFile, keyring, files, trustedIssuers } = opened;
  checkListenerTls(settings, files);
  const context = createBuildContext(settings, processState, scope, opened);
  const { certificates, grantDeps } = context;
  const proxy = createRequestProxy(context);
  const router = createServiceRouter(context, proxy);
  scope.onActivate(() => processState.apply(settings, (text) => grantDeps.sealer.digest('limit', text)));
  // Changes the store: nothing after it can fail.
  await recordKeys(settings, store, keyring, now());
  const owned = resources.move();
  const usage = createUsageTracker(() => owned.disposeAsync());
  return {
    settings,
    files,
    /** For the admin listener and for outgoing connections. */
    tlsFileValidity: checkTlsFileValidity(settings, now()),
    keyWarnings: listKeyWarnings(settings, keyFile),
    keyring,
    /** The key ids, sorted. */
    keyIds: [...keyring.fingerprints.keys()].toSorted().join(' '),
    isCertificateAccepted: certificates.isAccepted,
    /** Are the integration of a token, or its issuer and key, still configured? Throws a `Fault` while that is not known. */
    isKnownClient: (bearer: VerifiedToken): boolean =>
      bearer.issuer === undefined
        ? grantDeps.integrations.has(bearer.clientId)
        : trustedIssuers?.hasKey(bearer) === true,
    requests: {
      ...proxy.config,
      ...router,
      trustedProxies: settings.trustedProxies,
      retain: usage.retain,
      release: usage.release,
    } satisfies RequestConfig,
    /** Called once, right after the swap: applies what is outside of this configuration, and starts its resources. */
    activate: () => activation.splice(0).forEach((task) => task()),
    /** Closes once the last request that uses this configuration has ended. */
    retire: usage.retire,
    /** Ends running requests. */
    close: usage.close,
  };
}

/** Counts the requests that use a configuration; a retired one is closed with its last request. */
function createUsageTracker(closeAll: () => Promise<unknown>) {
  let activeRequests = 0;
  let isRetired = false;
  let closing: Promise<unknown> | undefined;
  const close = async (): Promise<void> => void (await (closing ??= closeAll()));
  const closeIfUnused = (): void => {
    if (isRetired && activeRequests === 0) void close();
  };
  return {
    retain: (): void => {
      activeRequests += 1;
    },
    release: (): void => {
      activeRequests -= 1;
      closeIfUnused();
    },
    retire: (): void => {
      isRetired = true;
      closeIfUnused();
    },
    close,
  };
}
