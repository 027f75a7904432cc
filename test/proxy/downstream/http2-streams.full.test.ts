import { testNonces } from './http2-nonces.ts';

testNonces(10_000);
