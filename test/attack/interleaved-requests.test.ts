import { testInterleaved } from './interleaved-requests.ts';

testInterleaved(400);
