import type { AdminApiDeps } from '../admin/grants-api.ts';
import type { Settings } from '../config/schema.ts';
import { parseClientIdUrl } from '../domain/client-document.ts';
import { createUserDirectory } from '../identity/user-directory.ts';
import { deriveTokenId } from '../tokens/trusted-issuers/trusted-issuer.ts';

/** Lookups of the admin API in the current configuration. */
export const createAdminDirectory = (
  settings: () => Settings,
): Pick<
  AdminApiDeps,
  | 'hasClient'
  | 'hasDocumentClients'
  | 'hasIssuer'
  | 'getForeignTokenId'
  | 'getForeignIdentity'
  | 'findIdentities'
  | 'isDisabled'
> => ({
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
    const users = createUserDirectory(settings().directories);
    try {
      return (await users.findByIdentity(identity))?.disabled === true;
    } finally {
      await users.close();
    }
  },
  async findIdentities(attribute, value) {
    const { directories } = settings();
    // Opened per request: lookups are rare, and a supervisor has no directory of its own.
    const users = createUserDirectory(directories);
    try {
      const matches = await Promise.all(
        Object.keys(directories).map((directory) => users.findByClaim(directory, { issuer: '', attribute, value })),
      );
      return [...new Set(matches.flatMap((user) => (user === undefined ? [] : [user.identity])))];
    } finally {
      await users.close();
    }
  },
});
