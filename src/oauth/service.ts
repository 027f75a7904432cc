import type { AccessEntry } from '../domain/integration.ts';
import type { Scope } from '../domain/scope.ts';
import type { Endpoint, EndpointService } from '../grants/endpoint.ts';
import { getFieldNames } from '../http/schema-fields.ts';
import type { ClientAssertionVerifier } from '../ports/client-assertion-verifier.ts';
import type { LogoutTokenReader } from '../ports/logout-token-reader.ts';
import { CLIENT_AUTH_PARAMETERS } from './schemas.ts';

type EndpointName = 'token' | 'device' | 'revoke' | 'introspect' | 'logout';

export interface OAuthService
  extends EndpointService<EndpointName | 'certificate' | 'clientGuesses' | 'allClientGuesses'> {
  readonly clientAssertions: ClientAssertionVerifier;
  /** Algorithms of client assertions. */
  readonly assertionAlgorithms: readonly string[];
  /** Callers of the introspection endpoint need a token with this scope, or a certificate of one of these users. */
  readonly introspection: { readonly requires?: Scope; readonly access: readonly AccessEntry[] };
  readonly acceptsCertificates: boolean;
  /** Undefined: no trusted issuer may send logout tokens. */
  readonly logoutTokens?: LogoutTokenReader | undefined;
}

export type OAuthEndpoint = Endpoint<EndpointName, OAuthService>;

export const formBody = (schema: Parameters<typeof getFieldNames>[0]) => ({
  parameterNames: [...getFieldNames(schema), ...CLIENT_AUTH_PARAMETERS],
  encodings: ['form'] as const,
});
