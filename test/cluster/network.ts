import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';

/** Addresses in the network namespace of the cluster. */
export const NODE_ADDRESS = '10.80.0.1';
export const POD_RANGE = '10.81.0.0/24';
export const SERVICE_RANGE = '10.96.0.0/16';
export const API_SERVICE_ADDRESS = '10.96.0.1';

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
  const sysctls = { 'ipv4/ip_forward': '1', 'bridge/bridge-nf-call-iptables': '1' };
  for (const [name, value] of Object.entries(sysctls)) writeFileSync(`/proc/sys/net/${name}`, value);
}
