import { testOffsets } from './http2-offsets.ts';

/** `npm run test:full` tests every position. */
testOffsets(41);
