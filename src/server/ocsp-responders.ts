import type { Settings } from '../config/schema.ts';
import { getIssuerName, type OcspSettings } from '../config/sections/identity.ts';
import type { Epoch } from '../domain/epoch.ts';
import { createHttpClient } from '../lib/http-client.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { type OpenedResource, type ResourceScope, SharedResources } from '../lib/shared-resources.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { ApprovedIssuer } from '../x509/approved-issuer.ts';
import { OcspResponder } from '../x509/ocsp-responder.ts';
import { sendOcspRequest } from '../x509/send-ocsp-request.ts';

interface RegistryOptions {
  readonly log: Logger;
  readonly metrics: Pick<Metrics, 'counter'>;
  readonly now: () => Epoch;
}

/** Requests at the same time to one responder. */
const MAX_CONNECTIONS = 8;

/** The OCSP responders and the statuses they returned. They survive a reload, unless their settings or their issuer change. */
export class OcspResponderRegistry extends SharedResources<OcspResponder> {
  readonly #options: RegistryOptions;

  constructor(options: RegistryOptions) {
    super();
    this.#options = options;
  }

  /** `settings.ca` is its content here. */
  open(settings: OcspSettings, issuer: ApprovedIssuer, scope: ResourceScope): OcspResponder {
    const id = JSON.stringify([settings, issuer.name, issuer.certificate.fingerprint256]);
    return this.share(id, () => this.#open(settings, issuer), scope);
  }

  #open(
    { url, softFail, refresh, timeout, ca }: OcspSettings,
    issuer: ApprovedIssuer,
  ): OpenedResource<OcspResponder> {
    const { log, metrics, now } = this.#options;
    const httpClient = createHttpClient({ timeoutMs: timeout * 1_000, ca, maxConnections: MAX_CONNECTIONS });
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
}

/** By the fingerprint of the issuer's key. Throws a `StartError` if a CA file cannot be read. An unreachable responder is not an error. */
export function openOcspResponders(
  { certificates }: Settings,
  issuers: readonly ApprovedIssuer[],
  registry: OcspResponderRegistry,
  scope: ResourceScope,
): ReadonlyMap<string, OcspResponder> {
  const settingsByName = new Map(
    certificates.issuers.flatMap(({ ocsp, ...issuer }, index) => {
      if (ocsp === undefined) return [];
      const { ca, ...settings } = ocsp;
      const pem = readSettingFile(`certificates.issuers[${index}].ocsp.ca`, ca);
      return [[getIssuerName(issuer), { ...settings, ...(pem !== undefined && { ca: pem }) }]];
    }),
  );
  return new Map(
    issuers.flatMap((issuer) => {
      const settings = settingsByName.get(issuer.name);
      return settings === undefined
        ? []
        : [[issuer.keyFingerprint, registry.open(settings, issuer, scope)] as const];
    }),
  );
}
