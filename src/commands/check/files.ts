import { existsSync } from 'node:fs';
import type { Settings } from '../../config/schema.ts';
import { createUserDirectory } from '../../identity/user-directory.ts';
import { readSettingFile } from '../../lib/read-file.ts';
import { createTheme } from '../../pages/views/theme.ts';
import { Fault } from '../../ports/fault.ts';
import { readUpstreamTlsFiles } from '../../proxy/upstream/tls-files.ts';
import { checkAdminTokenFile, formatAdminTokenProblem } from '../../server/admin-token.ts';
import { listCertificateFiles } from '../../server/build-from-settings.ts';
import { listKeyWarnings } from '../../server/keys.ts';
import { readKeySource } from '../../server/trusted-issuers.ts';
import { resolveStoreFiles } from '../../stores/embedded/folder.ts';
import { openEmbeddedStore } from '../../stores/embedded/store.ts';
import { openKeyring } from '../../tokens/keyring.ts';
import { isReadableByOthers, readKeyringFile } from '../../tokens/keyring-file.ts';
import { createRecordAuthenticator } from '../../tokens/record-mac.ts';
import { CertificateFilesError, loadCertificateFiles } from '../../x509/certificate-files.ts';
import type { Check } from '../check.ts';

export const checkCertificates: Check = async (settings, now) => {
  try {
    const { warnings } = await loadCertificateFiles(listCertificateFiles(settings), now);
    return { warnings };
  } catch (error) {
    if (error instanceof CertificateFilesError) return { problems: error.problems };
    throw error;
  }
};

/** A missing key file is created at the first start, but only for an empty store. */
export const checkKeys: Check = async (settings, now) => {
  const { file } = settings.keys;
  if (!existsSync(file)) return { problems: await checkMissingKeys(settings) };
  try {
    const keyFile = readKeyringFile(file);
    (await openKeyring(keyFile)).current(now);
    return { warnings: listKeyWarnings(settings, keyFile) };
  } catch (error) {
    return { problems: [`keys.file: ${error instanceof Fault ? error.message : `${file} cannot be used`}`] };
  }
};

async function checkMissingKeys({ store, keys }: Settings): Promise<string[]> {
  if (store.type === 'redis')
    return [
      `keys.file: ${keys.file} is missing; replicas share one key file: create it with \`gatehouse keys new\``,
    ];
  const { path, mapSize, unauthenticatedRecords: unauthenticated } = store;
  const now = (): number => Date.now() / 1_000;
  // Without keys: only whether there are records matters.
  const authenticator = createRecordAuthenticator({ now, unauthenticated });
  try {
    // The role `worker` takes no lock.
    const opened = await openEmbeddedStore({ path, mapSize, role: 'worker', now, authenticator });
    try {
      if (await opened.isEmpty()) return [];
    } finally {
      await opened.close();
    }
    return [`keys.file: ${keys.file} is missing, but the store in ${path} holds grants made with other keys`];
  } catch (error) {
    // There is no store before the first start.
    if (error instanceof Fault) return [];
    throw error;
  }
}

export function isNewStore({ type, path }: Settings['store']): boolean {
  const { data, marker } = resolveStoreFiles(path);
  return type === 'embedded' && !existsSync(data) && !existsSync(marker);
}

/** Files of the admin listener, upstreams, revocation, pages, directories, identity providers and trusted issuers. */
export const checkFiles: Check = (settings) => {
  const { admin, upstreams, pages, directories, signIn, trustedIssuers, certificates } = settings;
  const tokenProblem = checkAdminTokenFile(admin.tokenFile);
  const tokenProblems = tokenProblem === undefined ? [] : [formatAdminTokenProblem(tokenProblem)];
  const isFatal = tokenProblem?.kind === 'fatal';
  return {
    problems: [
      ...(isFatal ? tokenProblems : []),
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
      ...(isFatal ? [] : tokenProblems),
      ...(admin.tls === undefined ? [] : checkKeyFileMode('admin.tls.key', admin.tls.key)),
    ],
  };
};

export const checkKeyFileMode = (setting: string, file: string): string[] =>
  existsSync(file) && isReadableByOthers(file)
    ? [`${setting}: ${file} can be read by other users; run chmod 600`]
    : [];

function catchProblem(use: () => unknown): string[] {
  try {
    use();
    return [];
  } catch (error) {
    return [(error as Error).message];
  }
}
