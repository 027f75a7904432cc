import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/epoch.ts';
import { createHttpClient } from '../lib/http-client.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { type OpenedResource, type ResourceScope, SharedResources } from '../lib/shared-resources.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { ApprovedIssuer } from '../x509/approved-issuer.ts';
import { CrlFetcher, fetchCrl } from '../x509/crl-fetcher.ts';
import { type CrlFiles, computeIssuersDigest } from '../x509/crl-files.ts';
import { createCrlSet } from '../x509/crl-set.ts';

type CrlUrlSettings = Exclude<Settings['certificates']['crls'][number], string>;

/** `ca` is its content here. */
type CrlUrl = CrlUrlSettings;

interface CrlFetcherRegistryOptions {
  readonly crlFiles: Pick<CrlFiles, 'parse'>;
  readonly log: Logger;
  readonly metrics: Pick<Metrics, 'counter'>;
  readonly now: () => Epoch;
}

/** The revocation lists that are fetched. They survive a reload, unless how they are fetched or the issuers have changed. */
export class CrlFetcherRegistry extends SharedResources<CrlFetcher> {
  readonly #options: CrlFetcherRegistryOptions;

  constructor(options: CrlFetcherRegistryOptions) {
    super();
    this.#options = options;
  }

  open(source: CrlUrl, issuers: readonly ApprovedIssuer[], scope: ResourceScope): CrlFetcher {
    const id = JSON.stringify([source, computeIssuersDigest(issuers)]);
    return this.share(id, () => this.#open(source, issuers), scope);
  }

  #open(source: CrlUrl, issuers: readonly ApprovedIssuer[]): OpenedResource<CrlFetcher> {
    const { crlFiles, log, metrics, now } = this.#options;
    const { url, issuer, refresh, timeout, maxSize, ca } = source;
    const httpClient = createHttpClient({ timeoutMs: timeout * 1_000, ca, maxConnections: 1 });
    const count = (result: 'success' | 'failure') =>
      metrics.counter('gatehouse_crl_fetches_total', url, result);
    let lastWarning: string | undefined;
    const fetcher: CrlFetcher = new CrlFetcher(
      {
        url,
        issuer,
        issuers,
        fetch: () => fetchCrl(url, maxSize, httpClient),
        parse: (bytes) => crlFiles.parse(url, bytes, issuers),
        refresh,
        now,
        onAttempt(error) {
          count(error === undefined ? 'success' : 'failure').value += 1;
          // Once for each list, although a failed fetch is repeated often.
          const [warning] = createCrlSet(fetcher.lists).getWarnings(now());
          if (warning !== undefined && warning !== lastWarning) log.warn('certificate_warning', { warning });
          lastWarning = warning;
        },
        onStateChange(error) {
          if (error === undefined) log.info('crl_fetch_recovered', { url });
          else log.warn('crl_fetch_failed', { url, ...errorFields(error), stack: undefined });
        },
      },
      this.list().findLast((other) => other.url === url),
    );
    return {
      resource: fetcher,
      start() {
        for (const result of ['success', 'failure'] as const) count(result);
        // Start-up does not wait for it.
        void fetcher.start();
      },
      async close() {
        fetcher.close();
        await httpClient.destroy();
      },
    };
  }
}

/** Throws a `StartError` if a CA file cannot be read. An unreachable URL is not an error. */
export const openCrlFetchers = (
  { certificates }: Settings,
  issuers: readonly ApprovedIssuer[],
  registry: CrlFetcherRegistry,
  scope: ResourceScope,
): readonly CrlFetcher[] =>
  certificates.crls.flatMap((entry, index) => {
    if (typeof entry === 'string') return [];
    const { ca, ...source } = entry;
    const pem = readSettingFile(`certificates.crls[${index}].ca`, ca);
    return [registry.open({ ...source, ...(pem !== undefined && { ca: pem }) }, issuers, scope)];
  });
