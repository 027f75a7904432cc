import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { ProofCheck } from '../ports/proof-verifier.ts';
import type { OAuthService } from './service.ts';

export type AcceptedProof = Extract<ProofCheck, { ok: true }>;

/** RFC 9449 §5: undefined if the request has no DPoP header. */
export async function readProof(
  { proofs }: OAuthService,
  context: RequestContext,
): Promise<Outcome<AcceptedProof | undefined>> {
  const checked = await proofs?.verify(context);
  if (checked === undefined || checked.ok) return ok(checked);
  return refused(
    'nonce' in checked
      ? { reason: 'proof_nonce_required', nonce: checked.nonce }
      : { reason: 'proof_invalid', detail: checked.detail },
  );
}
