import { type EndpointSet, handleEndpoint } from '../grants/endpoint.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { certificate } from './certificate.ts';
import { device } from './device.ts';
import { revoke } from './revoke.ts';
import type { TokenApiEndpoint, TokenApiService } from './service.ts';
import { token } from './token.ts';
import { verify } from './verify.ts';

const TOKEN_API: EndpointSet<TokenApiEndpoint['name'], TokenApiService> = {
  endpoints: [token, certificate, device, revoke, verify],
  getRule: (name) => `authsvc:${name}`,
  getAuditName: (name) => name,
  formatError: (code, description) => ({ Error: code, Error_description: description }),
  formatChallenge: (name, code) =>
    name === 'certificate' ? 'Mutual realm="gatehouse"' : `Bearer realm="gatehouse", error="${code}"`,
  // A resumed TLS session has only the leaf certificate, so its chain is unknown: a new handshake is needed.
  closesConnection: ({ reason }, context) =>
    reason === 'certificate_issuer_not_approved' && context.certificate() !== undefined,
};

export const TOKEN_API_PATHS: readonly string[] = TOKEN_API.endpoints.map(({ path }) => path);

/** The token API of the specification. Paths are compared without case. */
export const handleTokenApi = (service: TokenApiService, context: RequestContext, subpath: string): Promise<Reply> =>
  handleEndpoint(TOKEN_API, service, context, subpath);
