import { testOffsets } from './http2-offsets.ts';

testOffsets(1);
