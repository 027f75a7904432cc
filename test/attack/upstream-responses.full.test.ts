import { afterAll, beforeAll, beforeEach } from 'vitest';
import { type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { type Harness, testExtraResponses, testPooledEchoes, testTruncated } from './upstream-responses.ts';

const REQUESTS = Number(process.env['ROW_COUNT'] ?? 10_000);

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({ upstream: upstream.url });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const harness: Harness = { upstream: () => upstream, proxy: () => proxy };
testTruncated(harness, 1_000);
testExtraResponses(harness, REQUESTS);
testPooledEchoes(harness, REQUESTS);
