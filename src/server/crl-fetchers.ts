import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/epoch.ts';
import { createHttpClient } from '../lib/http-client.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { type OpenedResource, SharedResources } from '../lib/shared-resources.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { ApprovedIssuer } from '../x509/approved-issuer.ts';
import { CrlFetcher } from '../x509/crl-fetcher.ts';
import { type CrlFiles, computeIssuersDigest } from '../x509/crl-files.ts';
import { createCrlSet } from '../x509/crl-set.ts';
import { fetchCrl } from '../x509/fetch-crl.ts';

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

  /** Each call needs a `release`. */
  acquire(source: CrlUrl, issuers: readonly ApprovedIssuer[]): CrlFetcher {
    const id = JSON.stringify([source, computeIssuersDigest(issuers)]);
    return this.share(id, () => this.#open(source, issuers));
  }

  #open(source: CrlUrl, issuers: readonly ApprovedIssuer[]): OpenedResource<CrlFetcher> {
    const { crlFiles, log, metrics, now } = this.#options;
    const { url, issuer, refresh, timeout, maxSize, ca } = source;
    const httpClient = createHttpClient({ timeoutMs: timeout * 1_000, ca, maxConnections: 1 });
    const successes = metrics.counter('gatehouse_crl_fetches_total', url, 'success');
    const failures = metrics.counter('gatehouse_crl_fetches_total', url, 'failure');
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
          (error === undefined ? successes : failures).value += 1;
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
    // Start-up does not wait for it.
    void fetcher.start();
    return {
      resource: fetcher,
      close() {
        fetcher.close();
        void httpClient.destroy();
      },
    };
  }
}

export interface FetchedCrls {
  open(issuers: readonly ApprovedIssuer[]): readonly CrlFetcher[];
  release(): void;
}

/** Throws an `Error` that names the setting if a CA file cannot be read. An unreachable URL is not an error. */
export function openFetchedCrls({ certificates }: Settings, registry: CrlFetcherRegistry): FetchedCrls {
  const sources = certificates.crls.flatMap((entry, index): CrlUrl[] => {
    if (typeof entry === 'string') return [];
    const { ca, ...source } = entry;
    const pem = readSettingFile(`certificates.crls[${index}].ca`, ca);
    return [{ ...source, ...(pem !== undefined && { ca: pem }) }];
  });
  let fetchers: readonly CrlFetcher[] = [];
  return {
    open: (issuers) => (fetchers = sources.map((source) => registry.acquire(source, issuers))),
    release() {
      for (const fetcher of fetchers) registry.release(fetcher);
      fetchers = [];
    },
  };
}
