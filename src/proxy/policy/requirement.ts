import type { AccessRule } from '../../domain/access-rule.ts';
import { covers, type Scope } from '../../domain/scope.ts';
import type { ProxyRefusal } from './refusals.ts';

export type UnmetRequirement = Extract<ProxyRefusal, { reason: 'client_not_allowed' | 'insufficient_scope' }>;

/** The requirement of a rule that the caller does not meet; undefined: all are met. */
export function findUnmetRequirement(rule: AccessRule, clientId: string, scope: Scope): UnmetRequirement | undefined {
  const requiredScope = rule.requirement.kind === 'scope' ? rule.requirement.scope : undefined;
  if (rule.clients !== undefined && !rule.clients.has(clientId))
    return {
      reason: 'client_not_allowed',
      ...(requiredScope !== undefined && { scope: requiredScope }),
    };
  if (requiredScope !== undefined && !covers(scope, requiredScope))
    return { reason: 'insufficient_scope', scope: requiredScope };
  return undefined;
}
