import { testMutatedCopies } from './mutated-certificates.ts';

testMutatedCopies(20_000);
