import { normalAuthority } from '../domain/request-target.ts';
import { type CompiledRules, hostName } from '../domain/rule-matcher.ts';

/** Is this authority served here? Those of `publicUrl`, of the rules' hosts and of the pages are. */
export function ownAuthorities(
  publicUrl: string,
  rules: Pick<CompiledRules, 'hosts'>,
  pagesHost?: string,
): (authority: string) => boolean {
  const { host, protocol } = new URL(publicUrl);
  const own = normalAuthority(host, protocol.slice(0, -1));
  return (authority) =>
    authority === own || rules.hosts.has(hostName(authority)) || hostName(authority) === pagesHost;
}
