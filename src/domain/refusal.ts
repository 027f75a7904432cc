/**
 * All reasons for refusals, with what operators need to know, and no secrets. The responses to clients are in one table per
 * API (`authsvc/error-tables.ts`), which does not compile if a reason is missing.
 */
export type Refusal =
  // request
  | { readonly reason: 'request_malformed'; readonly detail: string }
  | { readonly reason: 'client_id_missing' }
  | { readonly reason: 'too_many_requests'; readonly retryAfter: number }
  // client
  | { readonly reason: 'client_unknown'; readonly clientId: string }
  /** `detail`: for operators only. */
  | { readonly reason: 'client_document_invalid'; readonly clientId: string; readonly detail: string }
  | { readonly reason: 'client_mismatch'; readonly grantId: string }
  | { readonly reason: 'device_flow_disabled' }
  | { readonly reason: 'grant_type_not_allowed'; readonly grantType: string }
  | { readonly reason: 'grant_type_unsupported'; readonly grantType: string }
  /** The client sent a secret or an assertion, but has none in the configuration, or the endpoint supports none. */
  | { readonly reason: 'client_authentication_unsupported' }
  | { readonly reason: 'client_authentication_required'; readonly clientId: string }
  /** `detail`: for operators only. */
  | {
      readonly reason: 'client_authentication_failed';
      readonly clientId: string;
      readonly method: string;
      readonly detail: string;
    }
  // audience
  | { readonly reason: 'target_invalid'; readonly target: string }
  // tokens of trusted issuers
  /** `issuer`: its configured name, if it is known. `detail`: for operators only. */
  | {
      readonly reason: 'subject_token_invalid';
      readonly fault: TokenFault;
      readonly issuer?: string;
      readonly detail?: string;
    }
  /** `detail`: for operators only. */
  | { readonly reason: 'subject_not_allowed'; readonly identity: string; readonly detail: string }
  | { readonly reason: 'subject_token_used'; readonly identity: string }
  /** `issuer`: its configured name, if it is known. `detail`: for operators only. */
  | { readonly reason: 'logout_token_invalid'; readonly issuer?: string; readonly detail: string }
  // scope
  | { readonly reason: 'scope_missing' }
  | { readonly reason: 'scope_malformed'; readonly at: number }
  | { readonly reason: 'scope_exceeds_integration'; readonly excess: string }
  | { readonly reason: 'scope_exceeds_access'; readonly excess: string }
  | { readonly reason: 'scope_exceeds_grant'; readonly excess: string }
  // client certificate
  | { readonly reason: 'certificate_missing' }
  | { readonly reason: 'certificate_issuer_not_approved' }
  | { readonly reason: 'certificate_outside_validity' }
  | { readonly reason: 'certificate_revoked' }
  | { readonly reason: 'certificate_status_unknown' }
  | { readonly reason: 'certificate_unusable'; readonly detail: string }
  | { readonly reason: 'certificate_name_unusable'; readonly detail: string }
  // user
  /** `subject`: the name or identity that was looked up; for operators only. */
  | { readonly reason: 'identity_unknown'; readonly subject: string }
  | { readonly reason: 'identity_disabled'; readonly identity: string }
  | { readonly reason: 'identity_without_access'; readonly identity: string }
  | { readonly reason: 'identity_not_allowed'; readonly identity: string }
  // grants and refresh tokens
  | { readonly reason: 'refresh_token_not_authentic' }
  | { readonly reason: 'grant_unknown' }
  | { readonly reason: 'grant_expired'; readonly refreshUntil: number }
  | { readonly reason: 'grant_revoked' }
  | { readonly reason: 'refresh_token_used'; readonly grantId: string }
  | { readonly reason: 'refresh_token_reused'; readonly grantId: string }
  | { readonly reason: 'certificate_binding_mismatch'; readonly grantId: string }
  // DPoP proofs
  | { readonly reason: 'proof_binding_mismatch'; readonly grantId: string }
  | { readonly reason: 'proof_required'; readonly clientId: string }
  | { readonly reason: 'proof_invalid'; readonly detail: string }
  | { readonly reason: 'proof_nonce_required'; readonly nonce: string }
  // device requests
  | { readonly reason: 'device_code_unknown' }
  | { readonly reason: 'device_code_expired' }
  | { readonly reason: 'device_code_used' }
  | { readonly reason: 'device_pending' }
  | { readonly reason: 'device_polled_too_soon'; readonly retryAfter: number }
  | { readonly reason: 'device_denied' }
  | { readonly reason: 'device_closed' }
  | { readonly reason: 'too_many_device_requests' }
  // authorization requests and codes
  /** `redirectUri`: for operators only, as `formatUriForLog` returns it. */
  | { readonly reason: 'redirect_uri_invalid'; readonly redirectUri: string }
  | { readonly reason: 'response_type_unsupported' }
  /** The client asked that the user sees no page. */
  | { readonly reason: 'interaction_required' }
  | { readonly reason: 'code_unknown' }
  | { readonly reason: 'code_used'; readonly grantId: string }
  /** `parameter`: what differs from the authorization request. */
  | { readonly reason: 'code_binding_mismatch'; readonly parameter: string }
  | { readonly reason: 'introspection_not_allowed'; readonly clientId: string }
  // bearer tokens
  | { readonly reason: 'token_missing' }
  | { readonly reason: 'token_invalid'; readonly fault: TokenFault }
  | { readonly reason: 'token_scope_insufficient'; readonly scope: string };

export type TokenFault =
  | 'malformed'
  | 'not_authentic'
  | 'expired'
  | 'not_yet_valid'
  | 'revoked'
  | 'client_removed'
  /** It was issued for another API. */
  | 'wrong_audience'
  | 'certificate_not_presented'
  /** It is expired, revoked or no longer of an approved issuer. */
  | 'certificate_rejected'
  /** It is bound to a DPoP key, and the request does not prove possession of it. */
  | 'proof_missing'
  /** It was sent with the DPoP scheme and is not bound to a key. */
  | 'not_proof_bound';

export type RefusalReason = Refusal['reason'];
export type RefusalOf<R extends RefusalReason> = Extract<Refusal, { reason: R }>;

/** A result, or the reason of a refusal. */
export type Outcome<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly refusal: Refusal };

export const ok = <T>(value: T): Outcome<T> => ({ ok: true, value });

export const refused = (refusal: Refusal): Outcome<never> => ({ ok: false, refusal });

export const refuseMalformed = (detail: string): Outcome<never> => refused({ reason: 'request_malformed', detail });
