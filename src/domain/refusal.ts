/**
 * Every way a caller can be turned away, in the domain's own words.
 *
 * A refusal is a normal answer: a value that carries what an operator needs to understand it, and never a
 * secret. What a stranger is told is decided in one table per face (`authsvc/wire-errors.ts`), which does not
 * compile when a reason is missing there.
 */
export type Refusal =
  // what was sent
  | { readonly reason: 'request_malformed'; readonly detail: string }
  | { readonly reason: 'client_id_missing' }
  | { readonly reason: 'too_many_requests'; readonly retryAfter: number }
  // which integration
  | { readonly reason: 'client_unknown'; readonly clientId: string }
  | { readonly reason: 'client_mismatch'; readonly grantId: string }
  | { readonly reason: 'device_flow_off' }
  | { readonly reason: 'grant_type_off'; readonly grantType: string }
  | { readonly reason: 'grant_type_unsupported'; readonly grantType: string }
  /** A secret or an assertion was sent, and clients have none here. */
  | { readonly reason: 'client_authentication_unsupported' }
  // what is asked for
  | { readonly reason: 'scope_missing' }
  | { readonly reason: 'scope_malformed'; readonly at: number }
  | { readonly reason: 'scope_exceeds_integration'; readonly excess: string }
  | { readonly reason: 'scope_exceeds_access'; readonly excess: string }
  | { readonly reason: 'scope_exceeds_grant'; readonly excess: string }
  // who is asking, by certificate
  | { readonly reason: 'certificate_missing' }
  | { readonly reason: 'certificate_issuer_not_approved' }
  | { readonly reason: 'certificate_outside_validity' }
  | { readonly reason: 'certificate_revoked' }
  | { readonly reason: 'certificate_status_unknown' }
  | { readonly reason: 'certificate_unusable'; readonly detail: string }
  | { readonly reason: 'certificate_name_unclear'; readonly detail: string }
  // who is asking, as a person
  /** `who`: the name or identity that was looked for, for the operator alone. */
  | { readonly reason: 'identity_unknown'; readonly who: string }
  | { readonly reason: 'identity_disabled'; readonly identity: string }
  | { readonly reason: 'identity_without_access'; readonly identity: string }
  | { readonly reason: 'identity_not_allowed'; readonly identity: string }
  // grants and refresh tokens
  | { readonly reason: 'refresh_token_forged' }
  | { readonly reason: 'grant_unknown' }
  | { readonly reason: 'grant_expired'; readonly refreshUntil: number }
  | { readonly reason: 'grant_revoked' }
  | { readonly reason: 'refresh_token_spent'; readonly grantId: string }
  | { readonly reason: 'refresh_token_reused'; readonly grantId: string }
  | { readonly reason: 'certificate_binding_unmet'; readonly grantId: string }
  // device requests
  | { readonly reason: 'device_code_unknown' }
  | { readonly reason: 'device_code_expired' }
  | { readonly reason: 'device_code_spent' }
  | { readonly reason: 'device_pending' }
  | { readonly reason: 'device_polled_early'; readonly retryAfter: number }
  | { readonly reason: 'device_denied' }
  | { readonly reason: 'device_closed' }
  | { readonly reason: 'device_requests_full' }
  // bearer tokens
  | { readonly reason: 'token_missing' }
  | { readonly reason: 'token_invalid'; readonly why: TokenFault }
  | { readonly reason: 'token_scope_unmet'; readonly scope: string };

export type TokenFault =
  | 'malformed'
  | 'not_authentic'
  | 'expired'
  | 'not_yet_valid'
  | 'revoked'
  | 'client_removed'
  | 'certificate_not_presented'
  /** It was presented, and is expired, revoked or no longer of an approved issuer. */
  | 'certificate_refused';

export type RefusalReason = Refusal['reason'];
export type RefusalOf<R extends RefusalReason> = Extract<Refusal, { reason: R }>;
