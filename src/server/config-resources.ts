import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/grant.ts';
import { type ClientDocumentReader, createClientDocuments } from '../identity/client-documents.ts';
import { createOpenIdProvider, type OpenIdProvider } from '../identity/openid-provider.ts';
import { createUserDirectory, type UserDirectory } from '../identity/user-directory.ts';
import { readSettingFile } from '../lib/read-file.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';
import { StartError } from '../lib/start-error.ts';
import { createTheme } from '../pages/views/theme.ts';
import { type CertificateFiles, CertificateFilesError, loadCertificateFiles } from '../x509/certificate-files.ts';
import { buildRules, listCertificateFiles } from './build-from-settings.ts';
import { openFileKeyring, readKeyFile } from './keys.ts';
import type { ProcessState } from './process-state.ts';
import { openCrlFetchers, openOcspResponders } from './revocation-sources.ts';
import { openClientKeys, openTrustedIssuers } from './trusted-issuers.ts';

export type ConfigResources = Awaited<ReturnType<typeof openConfigResources>>;

/**
 * What one configuration reads and opens, except the upstreams, which the proxy opens. Each resource registers in `scope`
 * how it is closed, where it is opened. Throws a `StartError` if a file cannot be used. `current`: the files in use.
 */
export async function openConfigResources(
  settings: Settings,
  processState: ProcessState,
  scope: ResourceScope,
  current: CertificateFiles | undefined,
) {
  const { now, issuerKeys, quotas } = processState;
  const keyFile = readKeyFile(settings);
  const files = await loadFiles(settings, processState, scope, current);
  const rateLimits = processState.openLimiters(settings.limits.rates, scope);
  const rules = buildRules(settings);
  return {
    keyFile,
    keyring: await openFileKeyring(settings, keyFile, now()),
    files,
    ocsp: openOcspResponders(settings, files.issuers, processState, scope),
    rateLimits,
    trustedIssuers: await openTrustedIssuers(settings, issuerKeys, rateLimits.tokenGuesses, scope),
    clientKeys: await openClientKeys(settings, issuerKeys, scope),
    clientDocuments: openClientDocuments(settings, now, scope),
    users: openUserDirectory(settings, processState, scope),
    providers: openOpenIdProviders(settings, scope),
    theme: withStartError(() => createTheme(settings.pages)),
    rules,
    quotas: quotas.open(rules, settings.limits, scope),
  };
}

async function loadFiles(
  settings: Settings,
  processState: ProcessState,
  scope: ResourceScope,
  current: CertificateFiles | undefined,
): Promise<CertificateFiles> {
  try {
    return await loadCertificateFiles(listCertificateFiles(settings), processState.now(), {
      crlFiles: processState.crlFiles,
      current,
      openCrlSources: (issuers) => openCrlFetchers(settings, issuers, processState, scope),
    });
  } catch (error) {
    if (error instanceof CertificateFilesError) throw new StartError(error.problems);
    throw error;
  }
}

function openUserDirectory(
  { directories }: Settings,
  { log }: ProcessState,
  { resources }: ResourceScope,
): UserDirectory {
  const users = withStartError(() =>
    createUserDirectory(directories, undefined, (directory, groups) =>
      log.warn('groups_truncated', {
        directory,
        groups,
        note: 'a user is in more groups than this; the other groups are ignored: narrow ldap.groups.filter or base',
      }),
    ),
  );
  return resources.adopt(users, () => users.close());
}

/** The documents of the clients that `integrations[].clientDocuments` accepts, by integration. */
function openClientDocuments(
  { integrations }: Settings,
  now: () => Epoch,
  { resources }: ResourceScope,
): ClientDocumentReader {
  const byIntegration = new Map(
    integrations.flatMap(({ clientId, clientDocuments: { hosts, privateAddresses, ca } }, index) => {
      if (hosts.length === 0) return [];
      const pem = readSettingFile(`integrations[${index}].clientDocuments.ca`, ca);
      const documents = createClientDocuments({ privateAddresses, now, ...(pem !== undefined && { ca: pem }) });
      return [[clientId, resources.adopt(documents, () => documents.close())]];
    }),
  );
  return {
    read: async (clientId, templateId) =>
      (await byIntegration.get(templateId)?.read(clientId)) ?? { problem: 'no integration accepts it' },
  };
}

export const openOpenIdProviders = (
  { signIn }: Pick<Settings, 'signIn'>,
  { resources }: Pick<ResourceScope, 'resources'>,
): readonly OpenIdProvider[] =>
  Object.entries(signIn.openid).map(([name, { ca, ...settings }]) => {
    const pem = readSettingFile(`signIn.openid.${name}.ca`, ca);
    const provider = createOpenIdProvider(name, { ...settings, ...(pem !== undefined && { ca: pem }) });
    return resources.adopt(provider, () => provider.close());
  });

/** For errors that name the setting in their message. */
export function withStartError<T>(create: () => T): T {
  try {
    return create();
  } catch (error) {
    throw error instanceof StartError ? error : new StartError([(error as Error).message], { cause: error });
  }
}
