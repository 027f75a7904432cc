import { testReshardings, testSentinelFailovers } from './redis-topologies.ts';
import { count } from './support.ts';

testSentinelFailovers({ rounds: count('FAILOVERS', 2, 20), clients: 6, operations: 60 });
testReshardings({ rounds: count('RESHARDINGS', 1, 5), clients: 6, operations: 60 });
