import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/epoch.ts';
import { type ClientDocuments, createClientDocuments } from '../identity/client-documents.ts';
import { readSettingFile } from '../lib/read-file.ts';
import type { ClientDocumentReader } from '../ports/client-document-reader.ts';

/** The documents of the clients that `integrations[].clientDocuments` accepts, by integration. */
export function openClientDocuments(
  { integrations }: Settings,
  now: () => Epoch,
): ClientDocumentReader & Pick<ClientDocuments, 'close'> {
  const byIntegration = new Map<string, ClientDocuments>();
  integrations.forEach(({ clientId, clientDocuments: { hosts, privateAddresses, ca } }, index) => {
    if (hosts.length === 0) return;
    const setting = `integrations[${index}].clientDocuments.ca`;
    byIntegration.set(
      clientId,
      createClientDocuments({
        privateAddresses,
        now,
        ...(ca !== undefined && { ca: readSettingFile(setting, ca) }),
      }),
    );
  });
  return {
    read: async (clientId, templateId) =>
      (await byIntegration.get(templateId)?.read(clientId)) ?? { problem: 'no integration accepts it' },
    close: async () => {
      await Promise.all([...byIntegration.values()].map((documents) => documents.close()));
    },
  };
}
