import { testSecondSignal } from './shutdown.ts';

testSecondSignal(1);
