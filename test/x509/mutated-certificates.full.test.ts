import { testBrokenCopies } from './mutated-certificates.ts';

testBrokenCopies(20_000);
