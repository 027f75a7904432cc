import { isAllowedHost, parseClientIdUrl } from '../domain/client-document.ts';
import type { Integration } from '../domain/integration.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';

const MAX_CACHED = 10_000;

/**
 * The integrations by client id. A URL whose host an integration lists in `clientDocuments.hosts` is a client of its own with the
 * settings of this integration; its redirect URIs are in the document at the URL.
 */
class IntegrationMap extends Map<string, Integration> {
  readonly #templates: readonly Integration[];
  readonly #derived = createBoundedCache<string, Integration>(MAX_CACHED);

  constructor(entries: readonly (readonly [string, Integration])[]) {
    super(entries);
    this.#templates = entries
      .map(([, integration]) => integration)
      .filter(({ documentHosts = [] }) => documentHosts.length > 0);
  }

  override get(clientId: string): Integration | undefined {
    return super.get(clientId) ?? this.#derive(clientId);
  }

  override has(clientId: string): boolean {
    return this.get(clientId) !== undefined;
  }

  #derive(clientId: string): Integration | undefined {
    if (this.#templates.length === 0 || !clientId.startsWith('https://')) return undefined;
    const known = this.#derived.get(clientId);
    if (known !== undefined) return known;
    const url = parseClientIdUrl(clientId);
    const template = url && this.#templates.find(({ documentHosts = [] }) => isAllowedHost(documentHosts, url));
    if (url === undefined || template === undefined) return undefined;
    const integration: Integration = {
      ...template,
      clientId,
      // What the client calls itself proves nothing.
      name: url.host,
      grants: new Set(['code']),
      redirectUris: [],
      secretHashes: [],
      hasKeys: false,
      exchange: [],
      // It requests what the metadata of the API lists (RFC 6749 §3.3: it may get less).
      partialScope: true,
      templateId: template.clientId,
    };
    this.#derived.set(clientId, integration);
    return integration;
  }
}

/** Without `clientDocuments`, a plain map: it is read with every request to the API. */
export const createIntegrationMap = (
  entries: readonly (readonly [string, Integration])[],
): ReadonlyMap<string, Integration> =>
  entries.some(([, { documentHosts = [] }]) => documentHosts.length > 0)
    ? new IntegrationMap(entries)
    : new Map(entries);
