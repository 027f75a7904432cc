import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/epoch.ts';
import { type ClientDocumentReader, createClientDocuments } from '../identity/client-documents.ts';
import { readSettingFile } from '../lib/read-file.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';

/** The documents of the clients that `integrations[].clientDocuments` accepts, by integration. */
export function openClientDocuments(
  { integrations }: Settings,
  now: () => Epoch,
  { resources }: ResourceScope,
): ClientDocumentReader {
  const byIntegration = new Map(
    integrations.flatMap(({ clientId, clientDocuments: { hosts, privateAddresses, ca } }, index) => {
      if (hosts.length === 0) return [];
      const pem = readSettingFile(`integrations[${index}].clientDocuments.ca`, ca);
      const documents = createClientDocuments({
        privateAddresses,
        now,
        ...(pem !== undefined && { ca: pem }),
      });
      return [[clientId, resources.adopt(documents, () => documents.close())]];
    }),
  );
  return {
    read: async (clientId, templateId) =>
      (await byIntegration.get(templateId)?.read(clientId)) ?? { problem: 'no integration accepts it' },
  };
}
