import type { ClientDocument } from '../domain/client-document.ts';

/** Reads the metadata of clients whose ids are URLs. */
export interface ClientDocumentReader {
  /** `templateId`: the integration that accepts it. `problem`: for operators only. Throws a `Fault` if it cannot be read now. */
  read(clientId: string, templateId: string): Promise<ClientDocument | { readonly problem: string }>;
}
