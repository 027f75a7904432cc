import type { AccessRule } from './access-rule.ts';
import { covers } from './scope.ts';

/** Is everything that `rule` lets pass let pass by `other` too? Path, host and method are not compared. */
export function isAtLeastAsStrict(rule: AccessRule, other: AccessRule): boolean {
  if (rule.websocket === true && other.websocket !== true) return false;
  if (admitsAll(other)) return true;
  if (admitsAll(rule)) return false;
  if (other.demand.kind === 'scope') {
    if (rule.demand.kind !== 'scope' || !covers(rule.demand.scope, other.demand.scope)) return false;
  }
  const { clients } = other;
  return clients === undefined || (rule.clients !== undefined && rule.clients.isSubsetOf(clients));
}

const admitsAll = ({ demand, reportOnly }: AccessRule): boolean =>
  demand.kind === 'public' || reportOnly === true;
