import { createServer } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { FRAME, type FrameClient, frame, frameClient, requestFields, uint32 } from '../support/http2-frames.ts';
import { startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, parseRawResponse } from '../support/raw-client.ts';
import { respondOk, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { useAttackGateway } from './attack-gateway.ts';

describe('an event-loop stall longer than the upstream timeouts', () => {
  test('does not count against them: a response that arrived meanwhile is forwarded', async () => {
    const upstream = await startRecordingUpstream();
    onTestFinished(() => upstream.close());
    const timeouts = { connect: 1, headers: 1, idle: 1 };
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      upstreamSettings: { timeouts },
    });
    onTestFinished(() => proxy.close());
    // Upstream and gateway share this process: after the response is written, the event loop stalls.
    upstream.respondWith((socket, request) => {
      respondOk(socket, request);
      for (const end = performance.now() + 1_500; performance.now() < end; );
    });
    const client = await connectRaw(proxy.port);
    client.send('GET /public/1 HTTP/1.1\r\nHost: gate.test\r\n\r\n');
    const text = await client.until((all) => isCompleteResponse(all));
    client.destroy();
    expect(parseRawResponse(text)).toMatchObject({ status: 200, body: 'GET /public/1' });
  });
});

describe('an upstream that does not read the bodies of some methods', () => {
  /** Treats every empty line as the end of a request; stops reading at `Connection: close`. */
  const startCarelessUpstream = async (): Promise<{ readonly url: string; readonly seen: string[] }> => {
    const seen: string[] = [];
    const server = createServer((socket) => {
      let text = '';
      let held = '';
      socket.setEncoding('latin1').on('error', () => {});
      socket.on('data', (part: string) => {
        text += part;
        for (let end = text.indexOf('\r\n\r\n'); end >= 0; end = text.indexOf('\r\n\r\n')) {
          const head = text.slice(0, end);
          text = text.slice(end + 4);
          const target = head.split(' ', 2)[1] ?? '';
          seen.push(target);
          const response = `HTTP/1.1 200 OK\r\nContent-Length: ${target.length}\r\n\r\n${target}`;
          if (/^connection: close$/im.test(head.replaceAll('\r', ''))) {
            socket.end(response);
            return;
          }
          // The response to the smuggled request would reach the next client on this connection.
          if (target.includes('smuggled')) held += response;
          else socket.write(held + response);
        }
      });
    });
    await new Promise<void>((resolve) => {
      server.listen(0, '127.0.0.1', resolve);
    });
    onTestFinished(() => void server.close());
    return { url: `http://127.0.0.1:${(server.address() as { port: number }).port}`, seen };
  };

  test.each(['GET', 'DELETE', 'OPTIONS'])('does not mistake the body of a %s for a request', async (method) => {
    const { url, seen } = await startCarelessUpstream();
    const proxy = await startProxyHarness({
      upstream: url,
      upstreamSettings: { connections: 1 },
    });
    onTestFinished(() => proxy.close());
    const body = 'GET /admin/smuggled HTTP/1.1\r\nHost: a\r\n\r\n';
    for (const sent of [
      `${method} /public/1 HTTP/1.1\r\nHost: gate.test\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
      'GET /public/2 HTTP/1.1\r\nHost: gate.test\r\n\r\n',
      'GET /public/3 HTTP/1.1\r\nHost: gate.test\r\n\r\n',
    ]) {
      const client = await connectRaw(proxy.port);
      client.send(sent);
      const text = await client.until((all) => isCompleteResponse(all));
      client.destroy();
      expect(parseRawResponse(text)).toMatchObject({ status: 200, body: sent.split(' ', 2)[1] });
    }
    expect(seen).toEqual(['/public/1', '/public/2', '/public/3']);
  });
});

describe('over HTTP/2', () => {
  const attack = useAttackGateway();
  const openClient = async (): Promise<FrameClient> => {
    attack.upstream.reset();
    const client = await frameClient(attack.gateway.port, { ca: attack.gateway.ca.pem });
    onTestFinished(() => client.destroy());
    return client;
  };

  test.each([
    ['in one piece', 'Content-Length: 2\r\n\r\nhi'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n'],
  ])('a response with an invalid status is 502, not a reset: %s', async (_, rest) => {
    const client = await openClient();
    attack.upstream.respondWith((socket) => socket.write(`HTTP/1.1 700 Odd\r\n${rest}`));
    const stream = client.request(requestFields('/public/odd'));
    await client.until(() => client.endedCleanly(stream) || client.outcome(stream)?.reset !== undefined);
    expect(client.outcome(stream)).toEqual({ status: 502 });
    await attack.expectHealthy();
  });

  const RESETS = [0, 5, 8].map((code): [string, (client: FrameClient, stream: number) => void] => [
    `the stream is reset with code ${code}`,
    (client, stream) => client.send(frame(FRAME.reset, 0, stream, uint32(code))),
  ]);
  test.each([...RESETS, ['the connection is closed', (client: FrameClient) => void client.socket.end()]])(
    'a truncated body without a length is not forwarded as a complete request: %s',
    async (_, abort) => {
      const client = await openClient();
      const stream = client.request(requestFields('/public/half', 'POST'), { end: false });
      client.send(frame(FRAME.data, 0, stream, Buffer.from('half')));
      await until('the upstream has received the beginning of the body', () =>
        attack.upstream.bytes().includes('half'),
      );
      abort(client, stream);
      await until('the upstream connection is closed', () => attack.upstream.connectionStreams().at(-1)?.closed);
      expect(attack.upstream.requests).toEqual([]);
      await attack.expectHealthy();
    },
  );
});
