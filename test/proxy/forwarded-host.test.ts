import { expect, onTestFinished, test } from 'vitest';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { rawRequest } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';

/** RFC 9112 §3.2.2: an absolute request target overrides the Host field. */
test('X-Forwarded-Host names the host of each request target, also with the header section of another request', async () => {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    rules: [rule('/**', 'public', { host: 'a.example' }), rule('/**', 'public', { host: 'b.example' })],
  });
  onTestFinished(async () => {
    await proxy.close();
    await upstream.close();
  });
  const targets = ['/1', '/2', 'http://b.example/3', '/4', 'http://b.example/5'];
  for (const target of targets) await rawRequest(proxy.port, `GET ${target} HTTP/1.1\r\nHost: a.example\r\n\r\n`);
  const hosts = upstream.requests.map(({ target, headers }) => [target, new Map(headers).get('x-forwarded-host')]);
  expect(hosts).toEqual([
    ['/1', 'a.example'],
    ['/2', 'a.example'],
    ['/3', 'b.example'],
    ['/4', 'a.example'],
    ['/5', 'b.example'],
  ]);
});
