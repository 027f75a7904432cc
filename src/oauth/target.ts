import type { Integration } from '../domain/integration.ts';
import { type Outcome, ok, refused } from '../domain/outcome.ts';
import type { Parameters } from '../http/parameters.ts';

/** Is `resource` the API of the public URL, or a part of it? */
const isDefaultTarget = (resource: string, publicUrl: string): boolean =>
  resource === publicUrl || resource.startsWith(`${publicUrl}/`);

/**
 * The audience that a request asks for with `resource` (RFC 8707 §2) or, in an exchange, `audience` (RFC 8693 §2.1). Undefined:
 * the default of the integration.
 */
export function readTarget(
  parameters: Parameters,
  integration: Pick<Integration, 'audience'>,
  { publicUrl, isExchange }: { readonly publicUrl: string; readonly isExchange: boolean },
): Outcome<string | undefined> {
  const targets = [parameters.get('resource'), isExchange ? parameters.get('audience') : undefined].filter(
    (target) => target !== undefined,
  );
  const [target, other = target] = targets;
  if (target === undefined) return ok(undefined);
  if (target !== other) return refused({ reason: 'target_invalid', target: 'several APIs at once' });
  const { audience } = integration;
  if (audience === undefined)
    return isDefaultTarget(target, publicUrl) ? ok(undefined) : refuseTarget(target);
  return audience.includes(target) ? ok(target) : refuseTarget(target);
}

/** At a refresh: is `resource` what the grant is for? */
export const createTargetCheck =
  (resource: string | undefined, publicUrl: string) =>
  (audience: string | undefined): boolean =>
    resource === undefined ||
    (audience === undefined ? isDefaultTarget(resource, publicUrl) : resource === audience);

const refuseTarget = (target: string): Outcome<never> =>
  refused({ reason: 'target_invalid', target: target.slice(0, 128) });
