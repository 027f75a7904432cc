import { count, SEED } from './support.ts';
import { testReplicas } from './three-replicas.ts';

testReplicas({
  size: count('REPLICAS', 3, 3),
  seed: SEED,
  grants: count('GRANTS', 50, 1_000),
  refreshes: 100,
  revocations: count('REVOCATIONS', 500, 10_000),
  outage: { seconds: count('OUTAGE', 10, 60), calls: 1_000, rate: count('RATE', 1_000, 1_000) },
});
