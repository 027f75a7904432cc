import { testUpstreamStreams } from './upstream-streams.ts';

testUpstreamStreams({ bytes: 512 * 1_048_576, aborted: Number(process.env['ROW_COUNT'] ?? 4_000) });
