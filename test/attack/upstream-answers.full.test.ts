import { afterAll, beforeAll, beforeEach } from 'vitest';
import { type ProxyHarness, proxyHarness } from '../support/proxy-harness.ts';
import { type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { type Harness, testExtraResponses, testPooledEchoes, testTruncated } from './upstream-responses.ts';

const REQUESTS = Number(process.env['ROW_COUNT'] ?? 10_000);

let upstream: RecordingUpstream;
let gate: ProxyHarness;
beforeAll(async () => {
  upstream = await recordingUpstream();
  gate = await proxyHarness({ upstream: upstream.url });
});
afterAll(async () => {
  await gate.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const harness: Harness = { upstream: () => upstream, gate: () => gate };
testTruncated(harness, 1_000);
testExtraResponses(harness, REQUESTS);
testPooledEchoes(harness, REQUESTS);
