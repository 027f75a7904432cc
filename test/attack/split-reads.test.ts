import { testSplitReads } from './split-reads.ts';

testSplitReads(7);
