import { join } from 'node:path';
import { loadSettings, writeProblems } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/schema.ts';
import { openKeys } from '../../src/gateway/keys.ts';
import { certificateFilesOf, integrationsOf, policyOf } from '../../src/gateway/registry.ts';
import type { GrantDesk } from '../../src/grants/desk.ts';
import { pollPace } from '../../src/grants/poll-pace.ts';
import { waitingRoom } from '../../src/grants/waiting-room.ts';
import { createPeople } from '../../src/identity/people.ts';
import type { Logger } from '../../src/observability/logger.ts';
import type { Store } from '../../src/ports/store.ts';
import { openEmbedded } from '../../src/stores/embedded.ts';
import { openRedis } from '../../src/stores/redis.ts';
import { loadCertificateFiles } from '../../src/tls/certificate-files.ts';
import { createCertificateJudge } from '../../src/tls/certificate-judge.ts';
import { createMint } from '../../src/tokens/mint.ts';
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
      waiting: waitingRoom({ all: 1, perClient: 1 }),
      servingSince: () => now(),
      now,
      log,
    },
  };
}

/** A command may take long here: thousands are sent at once, and the machine has little to spare. */
const PATIENCE_MS = 30_000;

async function storeOf({ store: { type, path, mapSize, url = '', prefix } }: Settings): Promise<Store> {
  if (type === 'embedded') return openEmbedded({ path, mapSize, role: 'owner', now });
  return openRedis({
    url,
    prefix,
    maxStaleness: 60,
    ack: 'reachable',
    wallTime: now,
    commandTimeout: PATIENCE_MS,
  });
}
