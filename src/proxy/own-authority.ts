import { normalAuthority } from '../domain/request-target.ts';
import { type CompiledRules, hostName } from '../domain/rule-matcher.ts';

/** Is a target that names this authority for us? That of `publicUrl`, hosts of rules, and `hosts.allowed`. */
export function ownAuthorities(
  publicUrl: string,
  rules: Pick<CompiledRules, 'hosts'>,
  isAllowed: (name: string) => boolean = () => false,
): (authority: string) => boolean {
  const { host, protocol } = new URL(publicUrl);
  const own = normalAuthority(host, protocol.slice(0, -1));
  return (authority) => {
    if (authority === own) return true;
    const name = hostName(authority);
    return rules.hosts.has(name) || isAllowed(name);
  };
}
