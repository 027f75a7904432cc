import { normalAuthority } from '../domain/request-target.ts';
import { type CompiledRules, hostName } from '../domain/rule-matcher.ts';

/** Is a target that names this authority for us? For that of `publicUrl`, and for the hosts that rules speak of. */
export function ownAuthorities(
  publicUrl: string,
  rules: Pick<CompiledRules, 'hosts'>,
): (authority: string) => boolean {
  const { host, protocol } = new URL(publicUrl);
  const own = normalAuthority(host, protocol.slice(0, -1));
  return (authority) => authority === own || rules.hosts.has(hostName(authority));
}
