import { testDisconnectedReplica } from './disconnected-replica.ts';

testDisconnectedReplica({ faults: ['black hole'], rounds: 1 });
