import { connect, createServer, type Socket } from 'node:net';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { VerifiedToken } from '../../src/domain/grant.ts';
import { RequestBody } from '../../src/proxy/request-body.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { bearer, type HarnessOptions, NOW, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, parseRawResponse, type RawClient } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';
import { startTlsProxy } from './upstream/tls-proxy.ts';

/** A token that ends after its request was authorized, and before that is forwarded. */

const AUTH = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';

interface Setup {
  readonly upstream: RecordingUpstream;
  readonly client: RawClient;
  end(how: 'revoked' | 'expired'): void;
}

async function setUp(upstream: RecordingUpstream, options: Partial<HarnessOptions>): Promise<Setup> {
  let isRevoked = false;
  let now = NOW;
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    revocations: { isRevoked: () => isRevoked },
    now: () => now,
    ...options,
  });
  const client = await connectRaw(proxy.port);
  onTestFinished(async () => {
    client.destroy();
    await proxy.close();
    await upstream.close();
  });
  return {
    upstream,
    client,
    end(how) {
      isRevoked = how === 'revoked';
      if (how === 'expired') now = bearer().expires;
    },
  };
}

async function expectRefused({ client, upstream }: Setup, how: 'revoked' | 'expired'): Promise<void> {
  const text = await client.until((all) => all.includes('request_id'));
  const { status, body } = parseRawResponse(text.slice(text.lastIndexOf('HTTP/1.1 ')));
  expect(status).toBe(401);
  expect(body).toContain(`The access token has ${how === 'revoked' ? 'been revoked' : 'expired'}.`);
  expect(upstream.requests).toEqual([]);
}

/** A TLS upstream whose handshakes wait until they are released. */
async function startHeldUpstream(upstream: RecordingUpstream) {
  const front = await startTlsProxy(upstream.port);
  const held: Socket[] = [];
  const relay = await listenTcp(createServer((socket) => void held.push(socket.pause())));
  onTestFinished(async () => {
    await relay.close();
    await front.close();
  });
  return {
    options: {
      upstream: `https://127.0.0.1:${relay.port}`,
      upstreamSettings: { ca: front.ca, timeouts: { connect: 60, headers: 60, idle: 60 } },
    },
    held,
    release: (): void => {
      for (const socket of held) {
        const onward = connect(Number(new URL(front.url).port), '127.0.0.1');
        socket.on('close', () => onward.destroy());
        onward.on('error', () => socket.destroy());
        socket.pipe(onward).pipe(socket);
      }
    },
  };
}

test.each(['revoked', 'expired'] as const)(
  'a token that is %s while the upstream connection is established is not forwarded',
  async (how) => {
    const upstream = await startRecordingUpstream();
    const { options, held, release } = await startHeldUpstream(upstream);
    const setup = await setUp(upstream, options);
    setup.client.send(`GET /files/1 HTTP/1.1\r\n${AUTH}\r\n`);
    await until('the connection is being established', () => held.length === 1);
    setup.end(how);
    release();
    await expectRefused(setup, how);
  },
);

test.each(['revoked', 'expired'] as const)(
  'a token that is %s while the assertion about its caller is signed is not forwarded',
  async (how) => {
    const assertion = Promise.withResolvers<string>();
    let signed = 0;
    const setup = await setUp(await startRecordingUpstream(), {
      upstreamSettings: { assertion: { header: 'X-Assertion' } },
      signAssertion: () => (signed++ === 0 ? 'first' : assertion.promise),
    });
    const request = `GET /files/1 HTTP/1.1\r\n${AUTH}\r\n`;
    setup.client.send(request);
    await setup.client.until((text) => text.endsWith('GET /files/1'));
    // The connection is kept: the next request would be sent at once.
    await eventLoopTurns(10);
    setup.client.send(request);
    await until('the assertion is being signed', () => signed === 2);
    setup.end(how);
    setup.upstream.reset();
    assertion.resolve('signed');
    await expectRefused(setup, how);
  },
);

describe('a body that arrives in parts', () => {
  /** Sends each part when the one before it has been read. */
  async function sendParts(client: RawClient, parts: readonly string[]): Promise<void> {
    const push = vi.spyOn(RequestBody.prototype, 'push');
    onTestFinished(() => push.mockRestore());
    client.send(HEAD);
    await eventLoopTurns(10);
    for (const [index, part] of parts.entries()) {
      client.send(part);
      await until('it was read', () => push.mock.calls.length === index + 1);
    }
  }

  const HEAD = `POST /files/1 HTTP/1.1\r\n${AUTH}Content-Length: 4\r\n\r\n`;

  test('is authorized when it begins, not with each part', async () => {
    const readAccessToken = vi.fn(() => bearer());
    const { client, upstream } = await setUp(await startRecordingUpstream(), {
      readAccessToken,
    });
    await sendParts(client, ['a', 'b', 'c', 'd']);
    await client.until((text) => text.endsWith('POST /files/1'));
    expect(upstream.requests.map(({ body }) => body)).toEqual(['abcd']);
    expect(readAccessToken).toHaveBeenCalledTimes(1);
  });

  test.each(['revoked', 'expired'] as const)('is not forwarded if its token is %s meanwhile', async (how) => {
    const setup = await setUp(await startRecordingUpstream(), {});
    await sendParts(setup.client, ['a', 'b', 'c']);
    setup.end(how);
    setup.client.send('d');
    await expectRefused(setup, how);
  });
});

test('a WebSocket handshake whose token expires while it is verified is not forwarded', async () => {
  const lookup = Promise.withResolvers<VerifiedToken>();
  const readAccessToken = vi.fn(() => lookup.promise);
  const setup = await setUp(await startRecordingUpstream(), {
    rules: [rule('/files/**', 'files:read', { websocket: true })],
    endStreams: 'none',
    readAccessToken,
  });
  setup.client.send(
    `GET /files/1 HTTP/1.1\r\n${AUTH}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`,
  );
  await until('the token is being verified', () => readAccessToken.mock.calls.length > 0);
  setup.end('expired');
  lookup.resolve(bearer());
  await expectRefused(setup, 'expired');
});
