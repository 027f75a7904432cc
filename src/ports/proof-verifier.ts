import type { Epoch } from '../domain/epoch.ts';

/** What a DPoP proof (RFC 9449) is compared with. */
export interface ProofRequest {
  /** The values of all DPoP fields of the request. */
  readonly proofs: readonly string[];
  readonly method: string;
  /** Of the request, as the client sees it: scheme and authority, without a path. */
  readonly origin: string;
  /** The canonical path of the request, without its query. */
  readonly path: string;
  /** Omitted at the token endpoint, where there is no token yet. */
  readonly bound?: { readonly accessToken: string; readonly proofKey: string };
  readonly now: Epoch;
}

export type ProofCheck =
  /** `proofKey`: the RFC 7638 thumbprint of its key. */
  | { readonly ok: true; readonly proofKey: string; readonly proofId: string; readonly issuedAt: Epoch }
  /** `detail`: what is wrong, without values of the proof. */
  | { readonly ok: false; readonly detail: string }
  /** RFC 9449 §8: the client repeats the request with this nonce. */
  | { readonly ok: false; readonly nonce: string };

export interface ProofVerifier {
  /** Algorithms of proofs. */
  readonly algorithms: readonly string[];
  /** With `bound`, an accepted proof is recorded, and refused the next time. Throws a `Fault` if it cannot be recorded. */
  verify(request: ProofRequest): Promise<ProofCheck>;
}
