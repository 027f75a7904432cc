import type { Settings } from '../config/schema.ts';
import { parseTarget } from '../domain/request-target.ts';
import { getHeaderValues } from '../http/raw-headers.ts';
import type { TokenRequestProofs } from '../oauth/service.ts';
import { AMBIGUOUS_HOST, type PolicyContext } from '../proxy/policy/authorize.ts';
import { readPresentedProof } from '../proxy/policy/credentials.ts';
import { ProofMemory } from '../tokens/proof-memory.ts';
import { createProofNonces, createProofVerifier, PROOF_WINDOW, type ProofVerifier } from '../tokens/proof-verifier.ts';
import type { Sealer } from '../tokens/sealer.ts';
import type { ProcessState } from './process-state.ts';

/** Remembers the used DPoP proofs, across reloads. */
export const createProofMemories = () => ({
  requests: new ProofMemory(),
  /** Separate, so that token requests cannot fill the other. */
  tokenRequests: new ProofMemory(),
});

/** Returns undefined if DPoP is off. */
export function buildProofVerifier(
  { dpop }: Settings,
  sealer: Sealer,
  { proofs }: ProcessState,
): ProofVerifier | undefined {
  if (!dpop.enabled) return undefined;
  return createProofVerifier({
    memory: proofs.requests,
    nonces: dpop.nonce === 'required' ? createProofNonces(sealer) : undefined,
  });
}

/** Proofs of token requests, compared with the URL under which the policy knows the request. */
export function createTokenRequestProofs(
  { trustedProxies }: Settings,
  { proofs: proofPolicy, isOwnAuthority }: Pick<PolicyContext, 'proofs' | 'isOwnAuthority'>,
  { proofs: { tokenRequests }, now }: ProcessState,
): TokenRequestProofs | undefined {
  if (proofPolicy === undefined) return undefined;
  const { verifier, getOrigin } = proofPolicy;
  return {
    algorithms: verifier.algorithms,
    async verify(context) {
      const { method, url, rawHeaders } = context.request;
      const { values, forwardedHost, isHostAmbiguous } = readPresentedProof(context, trustedProxies.includes);
      if (values.length === 0) return undefined;
      if (isHostAmbiguous) return { ok: false, detail: AMBIGUOUS_HOST };
      const parsed = parseTarget(url, { method, isServedAuthority: isOwnAuthority, encodedSlash: true });
      if (parsed.kind !== 'target') return { ok: false, detail: 'htu is not the URL of the request' };
      const { path, authority } = parsed.target;
      const [host = ''] = getHeaderValues(rawHeaders, 'host');
      const origin = getOrigin(forwardedHost ?? authority ?? host);
      const checked = await verifier.verify({ proofs: values, method, origin, path, now: now() });
      if (!checked.ok) return checked;
      // Checked and reserved in one step: concurrent requests with the same proof must not all succeed.
      return tokenRequests.reserve(checked.proofKey, checked.proofId, checked.issuedAt, now(), PROOF_WINDOW)
        ? checked
        : { ok: false, detail: 'it was used before' };
    },
    complete({ proofKey, proofId, issuedAt }, wasIssued) {
      // Anyone can make proofs, but only clients with a valid credential can fill the memory.
      if (wasIssued) tokenRequests.useReserved(proofKey, proofId, issuedAt, now(), PROOF_WINDOW);
      else tokenRequests.release(proofKey, proofId);
    },
  };
}
