import { existsSync, readFileSync, statSync } from 'node:fs';
import { type FileSetting, isFileUsed } from '../../config/file-settings.ts';
import type { Settings } from '../../config/schema.ts';
import { formatPath } from '../../config/setting-path.ts';
import { createUserDirectory } from '../../identity/user-directory.ts';
import { findReadProblem, readSettingFile } from '../../lib/read-file.ts';
import { createTheme } from '../../pages/views/theme.ts';
import { Fault } from '../../ports/fault.ts';
import { readUpstreamTlsFiles } from '../../proxy/upstream/tls-files.ts';
import { type AdminTokenSetting, checkAdminTokenFile, formatAdminTokenProblem } from '../../server/admin-endpoint.ts';
import { listCertificateFiles } from '../../server/build-from-settings.ts';
import { compareWithStore, listKeyWarnings } from '../../server/keys.ts';
import { checkTlsFileValidity } from '../../server/tls-file-validity.ts';
import { readKeySource } from '../../server/trusted-issuers.ts';
import { resolveStoreFiles } from '../../stores/embedded/folder.ts';
import { type EmbeddedStore, openEmbeddedStore } from '../../stores/embedded/store.ts';
import { openKeyring } from '../../tokens/keyring.ts';
import { isReadableByOthers, readKeyringFile } from '../../tokens/keyring-file.ts';
import { createRecordAuthenticator } from '../../tokens/record-mac.ts';
import { CertificateFilesError, loadCertificateFiles } from '../../x509/certificate-files.ts';
import type { Check, CheckResult } from '../check.ts';

/** Created by gatehouse itself, or read only when they are needed. */
const OPTIONAL_FILES = /^(?:store\.path|keys\.file|admin\.tokenFile|audit\.file|trustedIssuers.*\.bearerTokenFile)$/;

/** Files that must exist, and cannot be read. */
export function findMissingFiles(settings: Settings, fileSettings: readonly FileSetting[]): readonly string[] {
  return fileSettings.flatMap(({ path, file }) => {
    const setting = formatPath(path);
    const isRequired = isFileUsed(settings, path) && !OPTIONAL_FILES.test(setting);
    const problem = isRequired ? findReadProblem(file) : undefined;
    return problem === undefined ? [] : [`${setting}: ${file} ${problem}`];
  });
}

export const checkCertificates: Check = async (settings, now) => {
  try {
    const { expired, warnings } = await loadCertificateFiles(listCertificateFiles(settings), now);
    return { warnings: [...expired, ...warnings] };
  } catch (error) {
    if (error instanceof CertificateFilesError) return { problems: error.problems };
    throw error;
  }
};

/** Compares the key file with an embedded store. A missing one is created at the first start, but only for an empty store. */
export const checkKeys: Check = async (settings, now) => {
  const { keys, store } = settings;
  if (!existsSync(keys.file)) return checkMissingKeys(settings);
  try {
    const keyFile = readKeyringFile(keys.file);
    const keyring = await openKeyring(keyFile);
    keyring.current(now);
    const compared = await readStore(
      store,
      async (opened) => (await compareWithStore(settings, opened, keyring, now)).problems,
    );
    return { ...compared, warnings: listKeyWarnings(settings, keyFile) };
  } catch (error) {
    return {
      problems: [`keys.file: ${error instanceof Fault ? error.message : `${keys.file} cannot be used`}`],
    };
  }
};

async function checkMissingKeys({ store, keys }: Settings): Promise<CheckResult> {
  if (store.type === 'redis')
    return {
      problems: [
        `keys.file: ${keys.file} is missing; replicas share one key file: create it with \`gatehouse keys new\``,
      ],
    };
  return readStore(store, async (opened) =>
    (await opened.isEmpty())
      ? []
      : [`keys.file: ${keys.file} is missing, but the store in ${store.path} holds grants made with other keys`],
  );
}

function findOwner(file: string): number | 'unknown' | undefined {
  try {
    return statSync(file, { throwIfNoEntry: false })?.uid;
  } catch {
    return 'unknown';
  }
}

/** Looks for problems in an embedded store, which a running gatehouse may have open. */
async function readStore(
  { type, path, mapSize }: Settings['store'],
  findProblems: (store: EmbeddedStore) => Promise<readonly string[]>,
): Promise<CheckResult> {
  const owner = type === 'embedded' ? findOwner(resolveStoreFiles(path).data) : undefined;
  // There is no store before the first start.
  if (owner === undefined) return {};
  // A lock file that this user creates would keep the owner from opening the store.
  if (owner !== process.geteuid?.())
    return {
      notes: [
        `store.path: ${path} belongs to another user, so the keys were not compared with it; run the check as the user that runs gatehouse`,
      ],
    };
  const now = (): number => Date.now() / 1_000;
  // Without keys: the fingerprints have no MAC.
  const authenticator = createRecordAuthenticator({ now });
  try {
    // The role `worker` takes no lock.
    const store = await openEmbeddedStore({ path, mapSize, role: 'worker', now, authenticator });
    try {
      return { problems: await findProblems(store) };
    } finally {
      await store.close();
    }
  } catch (error) {
    // Reported at start.
    if (error instanceof Fault) return {};
    throw error;
  }
}

/** Files of the admin listener, upstreams, revocation, pages, directories, identity providers and trusted issuers. */
export const checkFiles: Check = (settings, now) => {
  const { admin, upstreams, pages, directories, signIn, trustedIssuers, certificates } = settings;
  const adminTokens = [
    checkAdminToken('admin.tokenFile', admin.tokenFile),
    checkAdminToken('admin.readOnlyTokenFile', admin.readOnlyTokenFile),
  ];
  const validity = checkTlsFileValidity(settings, now);
  return {
    problems: [
      ...adminTokens.flatMap(({ problems = [] }) => problems),
      ...Object.entries(upstreams).flatMap(([name, upstream]) =>
        catchProblem(() => readUpstreamTlsFiles(name, upstream)),
      ),
      ...certificates.issuers.flatMap(({ ocsp }, index) =>
        catchProblem(() => readSettingFile(`certificates.issuers[${index}].ocsp.ca`, ocsp?.ca)),
      ),
      ...certificates.crls.flatMap((entry, index) =>
        typeof entry === 'string'
          ? []
          : catchProblem(() => readSettingFile(`certificates.crls[${index}].ca`, entry.ca)),
      ),
      ...catchProblem(() => createTheme(pages)),
      ...catchProblem(() => createUserDirectory(directories)),
      ...Object.entries(signIn.openid).flatMap(([name, { ca }]) =>
        catchProblem(() => readSettingFile(`signIn.openid.${name}.ca`, ca)),
      ),
      ...Object.entries(trustedIssuers).flatMap(([name, settings]) =>
        catchProblem(() => readKeySource(name, settings)),
      ),
    ],
    warnings: [
      ...validity.expired,
      ...validity.warnings,
      ...adminTokens.flatMap(({ warnings = [] }) => warnings),
      ...(admin.tls === undefined ? [] : checkKeyFileMode('admin.tls.key', admin.tls.key)),
    ],
  };
};

function checkAdminToken(setting: AdminTokenSetting, file: string | undefined): CheckResult {
  if (file === undefined) return {};
  try {
    const found = checkAdminTokenFile(file);
    if (found === undefined) return {};
    const messages = [formatAdminTokenProblem(found, setting)];
    return found.kind === 'fatal' ? { problems: messages } : { warnings: messages };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return {
      problems: [`${setting}: ${file} cannot be read (${code}); run the check as the user that runs gatehouse`],
    };
  }
}

export const checkKeyFileMode = (setting: string, file: string): string[] =>
  existsSync(file) && isReadableByOthers(file) && holdsPrivateKey(file)
    ? [`${setting}: ${file} can be read by other users; run chmod 600`]
    : [];

/** A certificate that is named by mistake may be readable. A pipe is not read. */
function holdsPrivateKey(file: string): boolean {
  try {
    return !statSync(file).isFile() || readFileSync(file, 'latin1').includes('PRIVATE KEY');
  } catch {
    return false;
  }
}

function catchProblem(use: () => unknown): string[] {
  try {
    use();
    return [];
  } catch (error) {
    return [(error as Error).message];
  }
}
