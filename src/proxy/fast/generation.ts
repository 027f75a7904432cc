import type { AccessRule } from '../../domain/access-rule.ts';
import type { ShownCertificate } from '../../domain/bearer.ts';
import type { Call } from '../../http/call.ts';
import type { Logger } from '../../observability/logger.ts';
import type { Peers } from '../../tls/caller.ts';
import type { AdmissionDesk } from '../admission.ts';
import type { EndStreams } from '../carry.ts';
import type { HeaderRules } from '../headers.ts';
import type { BareUpstream } from '../leg/bare-upstream.ts';
import type { LiveStreams } from '../live-streams.ts';
import type { ServedHosts } from '../served-hosts.ts';
import type { WaysOut } from '../way-out.ts';

/** The part of a call that the question for its certificate needs. */
export type CertificateCall = Pick<Call, 'peer' | 'sourceUnknown' | 'certificate'> & {
  readonly request: { readonly rawHeaders: string[] };
};

/** May a request name this host? */
export type AcceptsHost = ServedHosts['accepts'];

/** By what the proxy of one configuration judges and carries, whichever lane a request takes. */
export interface FastPolicy {
  readonly desk: AdmissionDesk;
  readonly headers: HeaderRules;
  readonly out: WaysOut;
  readonly maxBodyBytes: number;
  readonly realm: string;
  readonly streams: LiveStreams;
  readonly endStreams: EndStreams;
  readonly certificateOf: (call: CertificateCall) => ShownCertificate | undefined;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isAmbiguous: (call: CertificateCall) => boolean;
  readonly trusts: (peer: string) => boolean;
  readonly acceptsHost: AcceptsHost;
  /** Undefined: not one for bare sockets. */
  readonly bareOf: (rule: AccessRule) => BareUpstream | undefined;
  readonly log: Logger;
}

/** One configuration, as the fast lane sees it. */
export interface FastGeneration extends FastPolicy {
  readonly trustedProxies: Peers;
  /** Could this be a request for the token service? */
  readonly looksOurs: (target: string) => boolean;
  /** A request has begun with this configuration; it has ended. */
  enter(): void;
  leave(): void;
}
