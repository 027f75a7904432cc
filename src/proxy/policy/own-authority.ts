import { normalizeAuthority } from '../../domain/request-target.ts';
import { type CompiledRules, normalizeHost } from '../../domain/rule-matcher.ts';

/** Is this authority of an absolute request target served here: that of `publicUrl`, a host of a rule, or of `hosts.allowed`? */
export function createOwnAuthorityCheck(
  publicUrl: string,
  rules: Pick<CompiledRules, 'hosts'>,
  isAllowed: (name: string) => boolean = () => false,
): (authority: string) => boolean {
  const { host, protocol } = new URL(publicUrl);
  const ownAuthority = normalizeAuthority(host, protocol.slice(0, -1));
  return (authority) => {
    if (authority === ownAuthority) return true;
    const name = normalizeHost(authority);
    return rules.hosts.has(name) || isAllowed(name);
  };
}
