import { execFileSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';

/** Addresses in the network namespace of the cluster. */
export const NODE_ADDRESS = '10.80.0.1';
export const API_SERVICE_ADDRESS = '10.96.0.1';

/** Whether the cluster is dual-stack: IPv4, and IPv6 if the kernel has it. */
export const HAS_IPV6 = existsSync('/proc/sys/net/ipv6');
const IPV6_NODE_ADDRESS = 'fd00:80::1';
const withIpv6 = (ipv4: string, ipv6: string): readonly string[] => (HAS_IPV6 ? [ipv4, ipv6] : [ipv4]);
export const NODE_ADDRESSES = withIpv6(NODE_ADDRESS, IPV6_NODE_ADDRESS);
export const POD_RANGES = withIpv6('10.81.0.0/24', 'fd00:81::/64');
export const DEFAULT_ROUTES = withIpv6('0.0.0.0/0', '::/0');
export const SERVICE_RANGES = withIpv6('10.96.0.0/16', 'fd00:96::/112');

/**
 * Gives the empty network namespace a node address and a default route, without which the kernel rejects packets to Services
 * before kube-proxy's rules redirect them. There is no way out of this namespace.
 */
export function setUpNetwork(): void {
  const ip = (command: string): void => void execFileSync('ip', command.split(' '));
  ip('link set lo up');
  ip('link add node0 type veth peer name node1');
  ip(`addr add ${NODE_ADDRESS}/24 dev node0`);
  ip('link set node0 up');
  ip('link set node1 up');
  ip('route add default via 10.80.0.254 dev node0');
  if (HAS_IPV6) {
    ip(`addr add ${IPV6_NODE_ADDRESS}/64 dev node0 nodad`);
    ip('-6 route add default via fd00:80::fe dev node0');
  }
  const sysctls = {
    'ipv4/ip_forward': '1',
    'bridge/bridge-nf-call-iptables': '1',
    ...(HAS_IPV6 && { 'ipv6/conf/all/forwarding': '1', 'bridge/bridge-nf-call-ip6tables': '1' }),
  };
  for (const [name, value] of Object.entries(sysctls)) writeFileSync(`/proc/sys/net/${name}`, value);
}
