import { createServer } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { attackHouse } from '../support/attack-house.ts';
import { FRAME, type FrameClient, frame, frameClient, requestFields, uint32 } from '../support/h2-frames.ts';
import { proxyHarness } from '../support/proxy-harness.ts';
import { rawClient, readAnswer, wholeAnswer } from '../support/raw-client.ts';
import { ok, recordingUpstream } from '../support/recording-upstream.ts';

/** Faults that were found on the way to plain upstreams: what is now true of it. */
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

describe('a gateway that stood still for longer than an upstream may take', () => {
  test.each(['fast', 'full'] as const)(
    'gives the answer that came meanwhile (%s lane)',
    async (firstLane) => {
      const upstream = await recordingUpstream();
      cleanups.push(() => upstream.close());
      const timeouts = { connect: 1, headers: 1, idle: 1 };
      const gate = await proxyHarness({ upstream: upstream.url, firstLane, upstreamSettings: { timeouts } });
      cleanups.push(() => gate.close());
      // Upstream and gateway are one process here: the answer is on its way, and then nobody reads anything for a while.
      upstream.reply((socket, request) => {
        ok(socket, request);
        for (const end = performance.now() + 2_500; performance.now() < end; );
      });
      const client = await rawClient(gate.port);
      client.send('GET /public/1 HTTP/1.1\r\nHost: gate.test\r\n\r\n');
      const text = await client.until((all) => wholeAnswer(all), 10_000);
      client.destroy();
      expect(readAnswer(text)).toMatchObject({ status: 200, body: 'GET /public/1' });
    },
  );
});

describe('an upstream that does not read bodies where it expects none', () => {
  /** Every empty line ends a request for it, and what follows is the next one; it is told to stop by `close`. */
  const careless = async (): Promise<{ readonly url: string; readonly seen: string[] }> => {
    const seen: string[] = [];
    const server = createServer((socket) => {
      let text = '';
      socket.setEncoding('latin1').on('error', () => {});
      socket.on('data', (part: string) => {
        text += part;
        for (let end = text.indexOf('\r\n\r\n'); end >= 0; end = text.indexOf('\r\n\r\n')) {
          const head = text.slice(0, end);
          text = text.slice(end + 4);
          const target = head.split(' ', 2)[1] ?? '';
          seen.push(target);
          const answer = `HTTP/1.1 200 OK\r\nContent-Length: ${target.length}\r\n\r\n${target}`;
          if (/^connection: close$/im.test(head.replaceAll('\r', ''))) {
            socket.end(answer);
            return;
          }
          // The second one takes its time, until somebody else has asked on this connection.
          setTimeout(() => socket.write(answer), target.includes('smuggled') ? 100 : 0);
        }
      });
    });
    await new Promise<void>((resolve) => {
      server.listen(0, '127.0.0.1', resolve);
    });
    cleanups.push(() => server.close());
    return { url: `http://127.0.0.1:${(server.address() as { port: number }).port}`, seen };
  };

  test.each(['GET', 'DELETE', 'OPTIONS'])('takes the body of a %s for no request', async (method) => {
    const { url, seen } = await careless();
    const gate = await proxyHarness({
      upstream: url,
      firstLane: 'full',
      upstreamSettings: { connections: 1 },
    });
    cleanups.push(() => gate.close());
    const body = 'GET /admin/smuggled HTTP/1.1\r\nHost: a\r\n\r\n';
    for (const sent of [
      `${method} /public/1 HTTP/1.1\r\nHost: gate.test\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
      'GET /public/2 HTTP/1.1\r\nHost: gate.test\r\n\r\n',
      'GET /public/3 HTTP/1.1\r\nHost: gate.test\r\n\r\n',
    ]) {
      const client = await rawClient(gate.port);
      client.send(sent);
      const text = await client.until((all) => wholeAnswer(all), 10_000);
      client.destroy();
      expect(readAnswer(text)).toMatchObject({ status: 200, body: sent.split(' ', 2)[1] });
    }
    expect(seen).toEqual(['/public/1', '/public/2', '/public/3']);
  });
});

describe('over HTTP/2', () => {
  const attack = attackHouse();
  const open = async (): Promise<FrameClient> => {
    attack.upstream.reset();
    const client = await frameClient(attack.house.port, { ca: attack.house.ca.pem });
    cleanups.push(() => client.destroy());
    return client;
  };

  test.each([
    ['in one piece', 'Content-Length: 2\r\n\r\nhi'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n'],
  ])('an answer with a status that cannot stand there is 502, and no reset: %s', async (_, rest) => {
    const client = await open();
    attack.upstream.reply((socket) => socket.write(`HTTP/1.1 700 Odd\r\n${rest}`));
    const stream = client.request(requestFields('/public/odd'));
    await client.until(() => client.endedCleanly(stream) || client.outcome(stream)?.reset !== undefined);
    expect(client.outcome(stream)).toEqual({ status: 502 });
    await attack.stands();
  });

  const RESETS = [0, 5, 8].map((code): [string, (client: FrameClient, stream: number) => void] => [
    `the stream is reset with code ${code}`,
    (client, stream) => client.send(frame(FRAME.reset, 0, stream, uint32(code))),
  ]);
  test.each([...RESETS, ['the connection ends', (client: FrameClient) => void client.socket.end()]])(
    'a body without a length that breaks off is no whole request: %s',
    async (_, breakOff) => {
      const client = await open();
      const stream = client.request(requestFields('/public/half', 'POST'), { end: false });
      client.send(frame(FRAME.data, 0, stream, Buffer.from('half')));
      await expect.poll(() => attack.upstream.bytes(), { timeout: 10_000 }).toContain('half');
      breakOff(client, stream);
      await expect.poll(() => attack.upstream.streams().at(-1)?.closed, { timeout: 10_000 }).toBe(true);
      expect(attack.upstream.requests).toEqual([]);
      await attack.stands();
    },
  );
});
