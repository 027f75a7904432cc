import type { AdminApiDeps } from '../admin/grants-api.ts';
import type { Settings } from '../config/schema.ts';
import { createUserDirectory } from '../identity/user-directory.ts';

/** Lookups of the admin API in the current configuration. */
export const createAdminLookups = (
  settings: () => Settings,
): Pick<AdminApiDeps, 'hasClient' | 'findIdentities'> => ({
  hasClient: (id) => settings().integrations.some(({ clientId }) => clientId === id),
  async findIdentities(name) {
    const { directories } = settings();
    // Opened per request: lookups are rare, and a supervisor has no directory of its own.
    const users = createUserDirectory(directories);
    try {
      const matches = await Promise.all(
        Object.keys(directories).map((directory) =>
          users.findByClaim(directory, { issuer: '', attribute: 'userName', value: name }),
        ),
      );
      return [...new Set(matches.flatMap((user) => (user === undefined ? [] : [user.identity])))];
    } finally {
      await users.close();
    }
  },
});
