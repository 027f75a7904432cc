import type { Settings } from '../config/schema.ts';
import { createPeople } from '../identity/people.ts';
import type { AdministrationDeps } from '../ops/administration.ts';

/** What the administration asks about the configuration that is in force. */
export const lookupsOf = (
  settings: () => Settings,
): Pick<AdministrationDeps, 'knowsClient' | 'identitiesNamed'> => ({
  knowsClient: (id) => settings().integrations.some(({ clientId }) => clientId === id),
  async identitiesNamed(name) {
    const { directories } = settings();
    // For this one question: it is rare, and the process that administers may be one that signs nobody in.
    const people = createPeople(directories);
    try {
      const found = await Promise.all(
        Object.keys(directories).map((directory) =>
          people.byClaim(directory, { issuer: '', means: 'userName', value: name }),
        ),
      );
      return [...new Set(found.flatMap((person) => (person === undefined ? [] : [person.identity])))];
    } finally {
      await people.close();
    }
  },
});
