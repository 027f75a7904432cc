import { testBrokenCopies } from './certificate-mutations.ts';

testBrokenCopies(20_000);
