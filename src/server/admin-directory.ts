import type { AdminApiDeps } from '../admin/grants-api.ts';
import { getLongestGrantLifetime } from '../config/lifetimes.ts';
import type { Settings } from '../config/schema.ts';
import { parseClientIdUrl } from '../domain/client-document.ts';
import { createUserDirectory } from '../identity/user-directory.ts';
import { deriveTokenId } from '../tokens/trusted-issuers/trusted-issuer.ts';

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
