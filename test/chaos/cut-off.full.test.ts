import { testCutOff } from './cut-off.ts';
import { count } from './form.ts';

testCutOff({ faults: ['black hole', 'refuse'], cuts: count('CUTS', 1, 5) });
