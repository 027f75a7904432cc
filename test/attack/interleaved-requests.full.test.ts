import { testInterleaved } from './interleaved-requests.ts';

const REQUESTS = Number(process.env['ROW_COUNT'] ?? 10_000);

testInterleaved(REQUESTS);
