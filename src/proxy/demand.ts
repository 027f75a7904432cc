import type { AccessRule } from '../domain/access-rule.ts';
import { covers, type Scope, writeScope } from '../domain/scope.ts';
import type { ProxyRefusal } from './refuse.ts';

export type UnmetDemand = Extract<ProxyRefusal, { reason: 'client_not_admitted' | 'scope_unmet' }>;

/** What a rule asks for beyond what this caller has; undefined when it is content. */
export function unmetDemand(rule: AccessRule, clientId: string, scope: Scope): UnmetDemand | undefined {
  const asked = rule.demand.kind === 'scope' ? rule.demand.scope : undefined;
  if (rule.clients !== undefined && !rule.clients.has(clientId))
    return { reason: 'client_not_admitted', ...(asked !== undefined && { scope: writeScope(asked) }) };
  if (asked !== undefined && !covers(scope, asked))
    return { reason: 'scope_unmet', scope: writeScope(asked) };
  return undefined;
}
