import { ok, refused } from '../domain/outcome.ts';
import type { ScopeSyntax } from '../domain/scope.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RequestContext } from '../http/request-context.ts';
import { startDeviceAuthorization } from './device-grant.ts';
import type { EndpointService } from './endpoint.ts';

/** RFC 8628 §3.1 and §3.2, for both APIs. */
export async function authorizeDevice(
  { grantDeps, pagesUrl, path }: Pick<EndpointService<never>, 'grantDeps' | 'pagesUrl' | 'path'>,
  context: RequestContext,
  parameters: Parameters,
  options: { readonly scopeSyntax?: ScopeSyntax; readonly clientAuthenticated?: boolean } = {},
) {
  const clientId = parameters.get('client_id');
  if (clientId === undefined) return refused({ reason: 'client_id_missing' });
  context.note({ clientId });
  const codes = await startDeviceAuthorization(grantDeps, {
    clientId,
    scope: parameters.get('scope'),
    clientAddress: context.clientAddress,
    deviceName: parameters.get('device_name'),
    ...options,
  });
  if (!codes.ok) return codes;
  const { deviceCode, userCode, expires, expiresIn, interval } = codes.value;
  const page = `${pagesUrl}${path}/device`;
  const response = {
    device_code: deviceCode,
    user_code: userCode,
    verification_uri: page,
    verification_uri_complete: `${page}?user_code=${userCode}`,
    expires_in: expiresIn,
    interval,
  };
  return ok({ response, expires });
}
