import { testDisconnectedReplica } from './disconnected-replica.ts';
import { count } from './support.ts';

testDisconnectedReplica({ faults: ['black hole', 'refuse'], rounds: count('CUTS', 1, 5) });
