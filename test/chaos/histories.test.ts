import { testHistories } from './histories-under-faults.ts';

testHistories({ histories: 1, operations: 120, seed: 17, faults: ['connections refused', 'replies lost'] });
