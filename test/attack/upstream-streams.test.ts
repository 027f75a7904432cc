import { testUpstreamStreams } from './upstream-streams.ts';

testUpstreamStreams({ bytes: 128 * 1_048_576, aborted: 80 });
