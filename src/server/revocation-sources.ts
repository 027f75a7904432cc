import type { Settings } from '../config/schema.ts';
import { getIssuerName, type OcspSettings } from '../config/sections/identity.ts';
import { createHttpClient } from '../lib/http-client.ts';
import { readSettingFile } from '../lib/read-file.ts';
import type { OpenedResource, ResourceScope } from '../lib/shared-resources.ts';
import { errorFields } from '../observability/logger.ts';
import type { ApprovedIssuer } from '../x509/approved-issuer.ts';
import { CrlFetcher, computeIssuersDigest } from '../x509/crl-files.ts';
import { createCrlSet } from '../x509/crl-set.ts';
import { OcspResponder } from '../x509/ocsp-responder.ts';
import { fetchCrl, sendOcspRequest } from '../x509/revocation-requests.ts';
import type { ProcessState } from './process-state.ts';

type CrlUrl = Exclude<Settings['certificates']['crls'][number], string>;

/** Requests at the same time to one OCSP responder. */
const MAX_OCSP_CONNECTIONS = 8;

/** The settings with the content of the CA file. */
function readCa<T extends { readonly ca?: string }>(setting: string, settings: T): T {
  const ca = readSettingFile(`${setting}.ca`, settings.ca);
  return { ...settings, ...(ca !== undefined && { ca }) };
}

/**
 * The revocation lists that are fetched. They survive a reload, unless how they are fetched or the issuers have changed.
 * Throws a `StartError` if a CA file cannot be read. An unreachable URL is not an error.
 */
export function openCrlFetchers(
  { certificates }: Settings,
  issuers: readonly ApprovedIssuer[],
  processState: ProcessState,
  scope: ResourceScope,
): readonly CrlFetcher[] {
  const digest = computeIssuersDigest(issuers);
  return certificates.crls.flatMap((entry, index) => {
    if (typeof entry === 'string') return [];
    const source = readCa(`certificates.crls[${index}]`, entry);
    const open = () => createCrlFetcher(source, issuers, processState);
    return [processState.crlFetchers.share(JSON.stringify([source, digest]), open, scope)];
  });
}

function createCrlFetcher(
  { url, issuer, refresh, timeout, maxSize, ca }: CrlUrl,
  issuers: readonly ApprovedIssuer[],
  { crlFetchers, crlFiles, log, metrics, now }: ProcessState,
): OpenedResource<CrlFetcher> {
  const httpClient = createHttpClient({ timeoutMs: timeout * 1_000, ca, maxConnections: 1 });
  const count = (outcome: 'success' | 'failure') => metrics.counter('gatehouse_crl_fetches_total', url, outcome);
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
    crlFetchers.list().findLast((other) => other.url === url),
  );
  return {
    resource: fetcher,
    start() {
      for (const outcome of ['success', 'failure'] as const) count(outcome);
      // Start-up does not wait for it.
      void fetcher.start();
    },
    async close() {
      fetcher.close();
      await httpClient.destroy();
    },
  };
}

/**
 * The OCSP responders and the statuses they returned, by the fingerprint of the issuer's key. They survive a reload, unless
 * their settings or their issuer change. Throws a `StartError` if a CA file cannot be read. An unreachable responder is not
 * an error.
 */
export function openOcspResponders(
  { certificates }: Settings,
  issuers: readonly ApprovedIssuer[],
  processState: ProcessState,
  scope: ResourceScope,
): ReadonlyMap<string, OcspResponder> {
  const settingsByName = new Map(
    certificates.issuers.flatMap(({ ocsp, ...issuer }, index) =>
      ocsp === undefined ? [] : [[getIssuerName(issuer), readCa(`certificates.issuers[${index}].ocsp`, ocsp)] as const],
    ),
  );
  return new Map(
    issuers.flatMap((issuer) => {
      const settings = settingsByName.get(issuer.name);
      if (settings === undefined) return [];
      const id = JSON.stringify([settings, issuer.name, issuer.certificate.fingerprint256]);
      const open = () => createOcspResponder(settings, issuer, processState);
      return [[issuer.keyFingerprint, processState.ocspResponders.share(id, open, scope)]];
    }),
  );
}

function createOcspResponder(
  { url, softFail, refresh, timeout, ca }: OcspSettings,
  issuer: ApprovedIssuer,
  { log, metrics, now }: ProcessState,
): OpenedResource<OcspResponder> {
  const httpClient = createHttpClient({
    timeoutMs: timeout * 1_000,
    ca,
    maxConnections: MAX_OCSP_CONNECTIONS,
  });
  const responder = new OcspResponder({
    issuer,
    url,
    send: (request) => sendOcspRequest(url, request, httpClient),
    refresh,
    softFail,
    now,
    onResponse(outcome) {
      metrics.counter('gatehouse_ocsp_responses_total', issuer.name, outcome).value += 1;
    },
    onStateChange(error) {
      if (error === undefined) log.info('ocsp_recovered', { issuer: issuer.name, url });
      else log.warn('ocsp_failed', { issuer: issuer.name, url, ...errorFields(error), stack: undefined });
    },
  });
  return { resource: responder, close: () => httpClient.destroy() };
}
