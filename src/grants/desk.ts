import type { Epoch } from '../domain/epoch.ts';
import type { Integration } from '../domain/integration.ts';
import type { Logger } from '../observability/logger.ts';
import type { CertificateJudge } from '../ports/certificate-judge.ts';
import type { People } from '../ports/directory.ts';
import type { Sealer } from '../ports/sealer.ts';
import type { Store } from '../ports/store.ts';
import type { TokenMint } from '../ports/token-mint.ts';
import type { PendingRequests } from './pending-requests.ts';
import type { PollPace } from './poll-pace.ts';
import type { ServingTime } from './serving-time.ts';

/** What the grant core works with. One per configuration generation; `pace`, `pending` and the store outlive it. */
export interface GrantDesk {
  readonly store: Pick<
    Store,
    'grants' | 'grantIndex' | 'devices' | 'userCodes' | 'revocations' | 'settled' | 'time'
  >;
  readonly people: People;
  readonly certificates: CertificateJudge;
  readonly mint: TokenMint;
  readonly sealer: Sealer;
  readonly integrations: ReadonlyMap<string, Integration>;
  readonly policy: GrantPolicy;
  readonly pace: PollPace;
  readonly pending: PendingRequests;
  /** Outages up to now, by the store's clock: they do not use up the time in which a client can retry. */
  readonly outages: ServingTime['outages'];
  /** Can what happens be recorded, as far as it has to be? Left out: it need not be. */
  readonly mayRecord?: () => boolean;
  readonly now: () => Epoch;
  readonly log: Logger;
}

export interface GrantPolicy {
  /** Seconds in which a lost refresh answer can be asked for again. */
  readonly retryWindow: number;
  readonly reuse: 'revoke' | 'reject';
  readonly supersede: boolean;
  readonly device: {
    readonly enabled: boolean;
    readonly codeLifetime: number;
    readonly interval: number;
  };
}

/** What people know it by. One that was taken out of the configuration has left only its id. */
export const nameOfIntegration = (
  { integrations }: Pick<GrantDesk, 'integrations'>,
  clientId: string,
): string => integrations.get(clientId)?.name ?? clientId;
