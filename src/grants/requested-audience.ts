import { DEFAULT_AUDIENCE } from '../domain/access-rule.ts';
import type { Integration } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import type { Parameters } from '../http/parameters.ts';

export interface TargetContext {
  readonly publicUrl: string;
  /** The audiences that routes require for a `resource` in protected resource metadata. Undefined: there is no such document. */
  readonly findAudiences?: ((resource: string) => ReadonlySet<string> | undefined) | undefined;
}

/** Is it the API of the public URL, or a part of it? */
const isBelowPublicUrl = (target: string, publicUrl: string): boolean =>
  target === publicUrl || target.startsWith(`${publicUrl}/`);

/** The result checks whether a token of an audience (undefined: the default) is for the target. */
function matchTarget(
  target: string,
  { publicUrl, findAudiences }: TargetContext,
): (audience: string | undefined) => boolean {
  const required = findAudiences?.(target);
  return (audience) => {
    if (audience === target) return true;
    const isDefault = audience === undefined || audience === publicUrl;
    if (required !== undefined) return required.has(isDefault ? DEFAULT_AUDIENCE : audience);
    return audience === undefined && isBelowPublicUrl(target, publicUrl);
  };
}

/**
 * What a request asks for with `resource` (RFC 8707 §2) or `audience` (RFC 8693 §2.1; clients send it with other grant types
 * too). Ignoring either would issue a token for another API than the client asked for.
 */
function readRequestedTarget(parameters: Parameters): Outcome<string | undefined> {
  const resource = parameters.get('resource');
  const audience = parameters.get('audience');
  if (resource !== undefined && audience !== undefined && resource !== audience)
    return refused({ reason: 'target_invalid', target: 'several APIs at once' });
  // RFC 8707 §2.
  return resource?.includes('#') === true ? refuseTarget(resource) : ok(resource ?? audience);
}

/** The audience of the token; undefined: the default of the integration. */
export function readRequestedAudience(
  parameters: Parameters,
  { audience }: Pick<Integration, 'audience'>,
  context: TargetContext,
): Outcome<string | undefined> {
  const requested = readRequestedTarget(parameters);
  if (!requested.ok || requested.value === undefined) return requested;
  const target = requested.value;
  if (audience?.includes(target) === true) return ok(target);
  const isForTarget = matchTarget(target, context);
  if (audience === undefined) return isForTarget(undefined) ? ok(undefined) : refuseTarget(target);
  const [found, ...others] = audience.filter(isForTarget);
  // The routes of a host can require several; the client must name one.
  return found === undefined || others.length > 0 ? refuseTarget(target) : ok(found);
}

/** At a refresh: is it what the grant is for? */
export function createTargetCheck(
  parameters: Parameters,
  context: TargetContext,
): (audience: string | undefined) => boolean {
  const requested = readRequestedTarget(parameters);
  if (!requested.ok) return () => false;
  return requested.value === undefined ? () => true : matchTarget(requested.value, context);
}

const refuseTarget = (target: string): Outcome<never> =>
  refused({ reason: 'target_invalid', target: target.slice(0, 128) });
