import { testReplicas } from './three-replicas.ts';

testReplicas({
  size: 2,
  seed: 5,
  grants: 2,
  refreshes: 20,
  revocations: 20,
  outage: { seconds: 0, calls: 300, rate: 1_000 },
});
