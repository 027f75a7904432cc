import { join } from 'node:path';
import { loadSettings, writeProblems } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/schema.ts';
import { openKeys, readKeys } from '../../src/gateway/keys.ts';
import { certificateFilesOf, integrationsOf, policyOf } from '../../src/gateway/registry.ts';
import type { GrantDesk } from '../../src/grants/desk.ts';
import { pendingRequests } from '../../src/grants/pending-requests.ts';
import { pollPace } from '../../src/grants/poll-pace.ts';
import { createPeople } from '../../src/identity/people.ts';
import type { Logger } from '../../src/observability/logger.ts';
import type { Store } from '../../src/ports/store.ts';
import { openEmbedded } from '../../src/stores/embedded.ts';
import { memoryLimits } from '../../src/stores/memory-limits.ts';
import { openRedis } from '../../src/stores/redis.ts';
import { loadCertificateFiles } from '../../src/tls/certificate-files.ts';
import { createCertificateJudge } from '../../src/tls/certificate-judge.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { createMint } from '../../src/tokens/mint.ts';
import { type RecordMac, recordMac } from '../../src/tokens/record-mac.ts';
import { createSealer } from '../../src/tokens/sealer.ts';

const now = (): number => Date.now() / 1_000;

export function settingsOf(folder: string): Settings {
  const loaded = loadSettings({ file: join(folder, 'gatehouse.yaml'), env: {} });
  if (!loaded.ok) throw new Error(writeProblems(loaded));
  return loaded.settings;
}

/** The grant core as the gateway builds it, without the gateway: the same store, keys, people and rules. */
export async function openDesk(
  folder: string,
  log: Logger,
): Promise<{ readonly desk: GrantDesk; readonly store: Store }> {
  const settings = settingsOf(folder);
  const store = await storeOf(settings);
  const keyring = await openKeys(settings, store, now());
  const { issuers, crls } = await loadCertificateFiles(certificateFilesOf(settings), now());
  const { requireCrl, requireClientAuth, asciiNames } = settings.certificates;
  return {
    store,
    desk: {
      store,
      people: createPeople(settings.directories),
      certificates: createCertificateJudge({ issuers, crls, requireCrl, requireClientAuth, asciiNames }),
      mint: createMint({ keyring, publicUrl: settings.publicUrl, remembered: settings.tokens.remembered }),
      sealer: createSealer(keyring, now),
      integrations: integrationsOf(settings, issuers),
      policy: policyOf(settings),
      pace: pollPace(),
      pending: pendingRequests({
        limits: { all: 1, perClient: 1 },
        shared: memoryLimits({ now: () => 0 }),
        hide: (text) => text,
      }),
      outages: () => [],
      now,
      log,
    },
  };
}

/** A command may take long here: thousands are sent at once, and the machine has little to spare. */
const PATIENCE_MS = 30_000;

/** With the keys that the settings name. */
export function authenticatorOf(settings: Settings): RecordMac {
  const authenticator = recordMac({ now, unauthenticated: 'refuse' });
  authenticator.use(openKeyring(readKeys(settings)));
  return authenticator;
}

async function storeOf(settings: Settings): Promise<Store> {
  const { type, path, mapSize, url = '', prefix } = settings.store;
  const authenticator = authenticatorOf(settings);
  if (type === 'embedded') return openEmbedded({ path, mapSize, role: 'owner', now, authenticator });
  return openRedis({
    url,
    authenticator,
    prefix,
    maxStaleness: 60,
    ack: 'reachable',
    wallTime: now,
    commandTimeout: PATIENCE_MS,
  });
}
