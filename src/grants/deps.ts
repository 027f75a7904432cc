import type { Epoch } from '../domain/grant.ts';
import type { Integration } from '../domain/integration.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { ClientDocumentReader } from '../identity/client-documents.ts';
import type { UserDirectory } from '../identity/user-directory.ts';
import type { Logger } from '../observability/logger.ts';
import type { Store } from '../ports/store.ts';
import type { TokenIssuer } from '../tokens/issuer.ts';
import type { Sealer } from '../tokens/sealer.ts';
import type { SubjectTokenReader } from '../tokens/trusted-issuers/trusted-issuers.ts';
import type { CertificateValidator } from '../x509/certificate-validator.ts';
import type { PendingDeviceLimiter, PollLimiter } from './device-limits.ts';
import type { OutageTracker } from './outage-tracker.ts';

/** Dependencies of the grant functions. One per configuration; the store and the limiters outlive it. */
export interface GrantDeps {
  readonly store: Pick<
    Store,
    'grants' | 'grantIndex' | 'devices' | 'userCodes' | 'notes' | 'revocations' | 'waitUntilDurable' | 'time'
  >;
  readonly users: UserDirectory;
  readonly certificateValidator: CertificateValidator;
  readonly tokenIssuer: TokenIssuer;
  /** Omitted if there are no trusted issuers. */
  readonly subjectTokens?: SubjectTokenReader;
  /** Omitted if all clients are registered. */
  readonly clientDocuments?: ClientDocumentReader;
  readonly sealer: Sealer;
  readonly integrations: ReadonlyMap<string, Integration>;
  readonly policy: GrantPolicy;
  readonly pollLimiter: PollLimiter;
  readonly pendingLimiter: PendingDeviceLimiter;
  /** Outages until now, by the store's clock. They extend the time in which a client can retry. */
  readonly getOutages: OutageTracker['getOutages'];
  /** Can required audit events be recorded? Omitted: always. */
  readonly isAuditAvailable?: () => boolean;
  readonly now: () => Epoch;
  readonly log: Logger;
  /** The last revocation that was known before the first check of the request (`RevocationLog.getLastNumber`); omitted: none. */
  readonly issuedAfter?: number;
}

export interface GrantPolicy {
  /** Seconds in which a lost refresh response can be repeated. */
  readonly retryWindow: number;
  readonly reuse: 'revoke' | 'reject';
  readonly supersede: boolean;
  /** The OpenID providers that may assert groups. */
  readonly groupProviders: ReadonlySet<string>;
  readonly device: {
    readonly enabled: boolean;
    readonly codeLifetime: number;
    readonly interval: number;
  };
}

/** The same for one request, called before its first check: with its id and client in every audit event. */
export const forRequest = (
  deps: GrantDeps,
  { id, clientAddress }: Pick<RequestContext, 'id' | 'clientAddress'>,
): GrantDeps => ({
  ...deps,
  issuedAfter: deps.store.revocations.getLastNumber(),
  log: {
    ...deps.log,
    audit: (event, fields) => deps.log.audit(event, { request_id: id, from: clientAddress, ...fields }),
  },
});

/** The id where the integration is no longer configured. */
export const getIntegrationName = ({ integrations }: Pick<GrantDeps, 'integrations'>, clientId: string): string =>
  integrations.get(clientId)?.name ?? clientId;
