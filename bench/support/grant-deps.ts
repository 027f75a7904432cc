import { join } from 'node:path';
import { formatProblems, loadSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/schema.ts';
import type { GrantDeps } from '../../src/grants/deps.ts';
import { createPendingDeviceLimiter, createPollLimiter } from '../../src/grants/device-limits.ts';
import { createUserDirectory } from '../../src/identity/user-directory.ts';
import type { Logger } from '../../src/observability/logger.ts';
import type { Store } from '../../src/ports/store.ts';
import { buildGrantPolicy, buildIntegrations, listCertificateFiles } from '../../src/server/build-from-settings.ts';
import { openCheckedKeyring, readKeyFile } from '../../src/server/keys.ts';
import { openEmbeddedStore } from '../../src/stores/embedded/store.ts';
import { createMemoryLimits } from '../../src/stores/memory-limits.ts';
import { openRedisStore } from '../../src/stores/redis/store.ts';
import { createTokenIssuer } from '../../src/tokens/issuer.ts';
import { openSealingKeys } from '../../src/tokens/keyring.ts';
import { createRecordAuthenticator, type KeyedRecordAuthenticator } from '../../src/tokens/record-mac.ts';
import { createSealer } from '../../src/tokens/sealer.ts';
import { TOKEN_CACHE_SIZE } from '../../src/tokens/token-cache.ts';
import { loadCertificateFiles } from '../../src/x509/certificate-files.ts';
import { createCertificateValidator } from '../../src/x509/certificate-validator.ts';

const now = (): number => Date.now() / 1_000;

export function loadSettingsIn(folder: string): Settings {
  const loaded = loadSettings({ file: join(folder, 'gatehouse.yaml'), env: {} });
  if (!loaded.ok) throw new Error(formatProblems(loaded));
  return loaded.settings;
}

/** The grant core as the gateway builds it: the same store, keys, users and rules. */
export async function openGrantDeps(
  folder: string,
  log: Logger,
): Promise<{ readonly deps: GrantDeps; readonly store: Store }> {
  const settings = loadSettingsIn(folder);
  const store = await openStore(settings);
  const keyring = await openCheckedKeyring(settings, store, now());
  const { issuers, crls } = await loadCertificateFiles(listCertificateFiles(settings), now());
  const { requireCrl, requireClientAuth, asciiNames } = settings.certificates;
  return {
    store,
    deps: {
      store,
      users: createUserDirectory(settings.directories),
      certificateValidator: createCertificateValidator({
        issuers,
        crls,
        requireCrl,
        requireClientAuth,
        asciiNames,
      }),
      tokenIssuer: createTokenIssuer({
        keyring,
        publicUrl: settings.publicUrl,
        cacheSize: TOKEN_CACHE_SIZE,
        grants: store.grants,
      }),
      sealer: createSealer(keyring, now),
      integrations: buildIntegrations(settings, issuers),
      policy: buildGrantPolicy(settings),
      pollLimiter: createPollLimiter(),
      pendingLimiter: createPendingDeviceLimiter({
        limits: () => ({ all: 1, perClient: 1 }),
        shared: createMemoryLimits(() => 0),
        digestName: (text) => text,
      }),
      getOutages: () => [],
      now,
      log,
    },
  };
}

/** Thousands of commands are sent at once, so one may take long. */
const COMMAND_TIMEOUT_MS = 30_000;

/** Uses the keys of the settings. */
export function createAuthenticator(settings: Settings): KeyedRecordAuthenticator {
  const authenticator = createRecordAuthenticator({ now });
  authenticator.setKeyring(openSealingKeys(readKeyFile(settings)));
  return authenticator;
}

async function openStore(settings: Settings): Promise<Store> {
  const { type, path, mapSize, url = '', prefix } = settings.store;
  const authenticator = createAuthenticator(settings);
  if (type === 'embedded') return openEmbeddedStore({ path, mapSize, role: 'owner', now, authenticator });
  return openRedisStore({
    url,
    authenticator,
    prefix,
    maxStaleness: 60,
    ack: 'reachable',
    wallTime: now,
    commandTimeout: COMMAND_TIMEOUT_MS,
  });
}
