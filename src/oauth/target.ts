import type { Integration } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { Parameters } from '../http/parameters.ts';

/** Is `resource` the API of the public URL, or a part of it? */
const isDefaultTarget = (resource: string, publicUrl: string): boolean =>
  resource === publicUrl || resource.startsWith(`${publicUrl}/`);

/**
 * What a request asks for with `resource` (RFC 8707 §2) or `audience` (RFC 8693 §2.1; clients send it with other grant types
 * too). Ignoring either would issue a token for another API than the client asked for.
 */
function readRequestedTarget(parameters: Parameters): Outcome<string | undefined> {
  const resource = parameters.get('resource');
  const audience = parameters.get('audience');
  return resource !== undefined && audience !== undefined && resource !== audience
    ? refused({ reason: 'target_invalid', target: 'several APIs at once' })
    : ok(resource ?? audience);
}

/** The audience of the token; undefined: the default of the integration. */
export function readTarget(
  parameters: Parameters,
  integration: Pick<Integration, 'audience'>,
  publicUrl: string,
): Outcome<string | undefined> {
  const requested = readRequestedTarget(parameters);
  if (!requested.ok || requested.value === undefined) return requested;
  const target = requested.value;
  const { audience } = integration;
  if (audience === undefined)
    return isDefaultTarget(target, publicUrl) ? ok(undefined) : refuseTarget(target);
  return audience.includes(target) ? ok(target) : refuseTarget(target);
}

/** At a refresh: is it what the grant is for? */
export function createTargetCheck(
  parameters: Parameters,
  publicUrl: string,
): (audience: string | undefined) => boolean {
  const requested = readRequestedTarget(parameters);
  return (audience) => {
    if (!requested.ok) return false;
    const target = requested.value;
    if (target === undefined) return true;
    return audience === undefined ? isDefaultTarget(target, publicUrl) : target === audience;
  };
}

const refuseTarget = (target: string): Outcome<never> =>
  refused({ reason: 'target_invalid', target: target.slice(0, 128) });
