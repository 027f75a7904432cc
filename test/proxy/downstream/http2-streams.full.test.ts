import { testNonces } from './http2-nonces.ts';

testNonces(10_000);
testNonces(5_000, false);
