import { testLeakage } from './leakage.ts';

testLeakage(40);
