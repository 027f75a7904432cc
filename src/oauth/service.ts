import type { AccessEntry } from '../domain/integration.ts';
import type { Scope } from '../domain/scope.ts';
import type { Endpoint, EndpointService } from '../grants/endpoint.ts';
import type { RequestContext } from '../http/request-context.ts';
import { getFieldNames } from '../http/schema-fields.ts';
import type { ClientAssertionVerifier } from '../tokens/client-assertions.ts';
import type { ProofCheck } from '../tokens/proof-verifier.ts';
import type { LogoutTokenReader } from '../tokens/trusted-issuers/trusted-issuers.ts';
import { CLIENT_AUTH_PARAMETERS } from './schemas.ts';

type EndpointName = 'token' | 'device' | 'par' | 'revoke' | 'introspect' | 'logout';

export interface OAuthService
  extends EndpointService<EndpointName | 'certificate' | 'clientGuesses' | 'allClientGuesses'> {
  readonly clientAssertions: ClientAssertionVerifier;
  /** Algorithms of client assertions. */
  readonly assertionAlgorithms: readonly string[];
  /** Callers of the introspection endpoint need a token with this scope, or a certificate of one of these users. */
  readonly introspection: { readonly requires?: Scope; readonly access: readonly AccessEntry[] };
  readonly acceptsCertificates: boolean;
  /** It is undefined if no trusted issuer may send logout tokens. */
  readonly logoutTokens?: LogoutTokenReader | undefined;
  /** Omitted: the DPoP header is ignored. */
  readonly proofs?: TokenRequestProofs | undefined;
  /** The audiences that routes require for a `resource` in protected resource metadata; omitted: it is not served. */
  readonly findAudiences?: ((resource: string) => ReadonlySet<string> | undefined) | undefined;
}

/** DPoP proofs of token requests (RFC 9449 §5). */
export interface TokenRequestProofs {
  readonly algorithms: readonly string[];
  /**
   * Returns undefined if the request has no DPoP header. No other request can use an accepted proof until `complete`. Throws a `Fault` if
   * it could not be remembered, so that nothing is issued.
   */
  verify(context: RequestContext): Promise<ProofCheck | undefined>;
  /** If tokens were issued, the proof is refused from now on. */
  complete(proof: Extract<ProofCheck, { ok: true }>, wasIssued: boolean): void;
}

export type OAuthEndpoint = Endpoint<EndpointName, OAuthService>;

export const formBody = (schema: Parameters<typeof getFieldNames>[0]) => ({
  parameterNames: [...getFieldNames(schema), ...CLIENT_AUTH_PARAMETERS],
  encodings: ['form'] as const,
});
