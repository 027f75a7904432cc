import { testCutOff } from './cut-off.ts';

testCutOff({ faults: ['black hole'], cuts: 1 });
