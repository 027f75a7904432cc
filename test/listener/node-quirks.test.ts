import { once } from 'node:events';
import { createServer, type RequestListener, type ServerOptions } from 'node:http';
import * as http2 from 'node:http2';
import { createServer as createHttpsServer } from 'node:https';
import { type AddressInfo, connect, createServer as createNetServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, onTestFinished, test } from 'vitest';
import { EarlyBytes } from '../../src/listener/node-quirks/early-bytes.ts';
import {
  allowHalfOpen,
  closeUnassignedResponse,
  destroyConnectionOnAssign,
  keepAliveWithoutContinue,
  keepParserRunning,
  replaceClose,
  startConnectionChecks,
} from '../../src/listener/node-quirks/http1.ts';
import { onBodyReceived, resetStream, trackEndSent } from '../../src/listener/node-quirks/http2.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { connectRawTls } from '../support/raw-client.ts';
import { until } from '../support/until.ts';

/*
 * For each quirk, what Node does by itself and what it does with the quirk. If the first part of a test fails, Node has
 * changed and the quirk can be removed; if the second fails, the quirk no longer works.
 */

const GET = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n';

/** A server that receives its connections from another server, as in the listener. */
async function startServer(options: ServerOptions, onRequest: RequestListener = () => {}) {
  const server = createServer(options, onRequest);
  const acceptor = createNetServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => {});
    server.emit('connection', socket);
  });
  await once(acceptor.listen(0, '127.0.0.1'), 'listening');
  onTestFinished(() => void acceptor.close());
  return { server, port: (acceptor.address() as AddressInfo).port };
}

/** Everything the server sends until it closes the connection, or for a second. */
async function exchange(port: number, send: (client: Socket) => void): Promise<string> {
  const client = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  client.on('error', () => {});
  let text = '';
  client.on('data', (part) => {
    text += part.toString('latin1');
  });
  await once(client, 'connect');
  send(client);
  await Promise.race([once(client, 'close'), once(client, 'end'), sleep(1_000)]);
  client.destroy();
  return text;
}

describe('HTTP/1.1', () => {
  test('keepParserRunning: no byte of a pipelined body is lost over TLS while responses are queued', async () => {
    const ca = await createCa();
    const { pem: cert, keyPem: key } = await issueServer(ca);
    const request = (path: string, body = 'x'): string =>
      `POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    /** Sends a body behind queued responses; the parser's errors, or the number of bytes that arrived. */
    const upload = async (prepare: (socket: Socket) => void): Promise<unknown> => {
      const bodyLength = 60_000;
      const outcome = Promise.withResolvers<unknown>();
      const queued = Promise.withResolvers<void>();
      const server = createHttpsServer({ cert, key }, (message, response) => {
        if (message.url === '/queued') queued.resolve();
        if (message.url === '/queued') response.end('.'.repeat(100_000));
        if (message.url !== '/upload') return;
        let bytes = 0;
        message.on('data', (part: Buffer) => {
          bytes += part.length;
          if (bytes === bodyLength) outcome.resolve(bytes);
        });
      });
      server.on('secureConnection', prepare);
      server.on('clientError', (error: NodeJS.ErrnoException) => outcome.resolve(error.code));
      await once(server.listen(0, '127.0.0.1'), 'listening');
      const client = await connectRawTls((server.address() as AddressInfo).port, ca.pem);
      client.send(`${request('/never')}${request('/queued')}`);
      await queued.promise;
      client.send(request('/upload', 'y'.repeat(bodyLength)));
      const found = await outcome.promise;
      client.destroy();
      server.close();
      return found;
    };
    // Node reuses parsers, and an earlier connection of this process may have applied the quirk.
    const restore = (socket: Socket & { parser?: object }): void => {
      Reflect.deleteProperty(socket.parser ?? {}, 'pause');
    };
    expect(await upload(restore)).toBe('HPE_PAUSED');
    expect(await upload(keepParserRunning)).toBe(60_000);
  });

  test('allowHalfOpen: a client that half-closes gets its response', async () => {
    const respondLater: RequestListener = (_request, response) =>
      void setTimeout(() => response.end('late'), 50);
    const halfClose = (client: Socket) => client.end(GET);
    const plain = await startServer({}, respondLater);
    expect(await exchange(plain.port, halfClose)).not.toContain('late');
    const { server, port } = await startServer({}, respondLater);
    allowHalfOpen(server);
    expect(await exchange(port, halfClose)).toContain('late');
  });

  test('startConnectionChecks: headersTimeout applies to connections of another server', async () => {
    const options = { headersTimeout: 100, requestTimeout: 0, connectionsCheckingInterval: 50 };
    const sendHalf = (client: Socket) => client.write(GET.slice(0, -2));
    const plain = await startServer(options);
    expect(await exchange(plain.port, sendHalf)).toBe('');
    const { server, port } = await startServer(options);
    startConnectionChecks(server);
    onTestFinished(() => void server.close());
    expect(await exchange(port, sendHalf)).toContain(' 408 ');
  });

  test('keepAliveWithoutContinue: a complete request keeps its connection without 100 Continue', async () => {
    const expectation = GET.replace('\r\n\r\n', '\r\nExpect: 100-continue\r\n\r\n');
    const sendWith = async (usesQuirk: boolean): Promise<string> => {
      const { server, port } = await startServer({});
      server.on('checkContinue', (request, response) => {
        if (usesQuirk) keepAliveWithoutContinue(request, response);
        response.end();
      });
      return exchange(port, (client) => client.write(expectation));
    };
    expect(await sendWith(false)).toContain('Connection: close');
    expect(await sendWith(true)).toContain('Connection: keep-alive');
  });

  test('replaceClose: the connection is not closed while the client sends its request', async () => {
    const sendWith = async (usesQuirk: boolean): Promise<boolean> => {
      let isKept = false;
      const { server, port } = await startServer({}, (_request, response) => {
        response.writeHead(413, { connection: 'close' }).end();
      });
      const sockets: Socket[] = [];
      server.on('connection', (socket: Socket) => {
        sockets.push(socket);
        if (usesQuirk) replaceClose(socket, () => (isKept = true));
      });
      const client = connect(port, '127.0.0.1');
      onTestFinished(() => void client.destroy());
      client.on('error', () => {});
      client.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx');
      await until('the response is sent', () => isKept || sockets.some(({ destroyed }) => destroyed));
      return !sockets.some(({ destroyed }) => destroyed);
    };
    expect(await sendWith(false)).toBe(false);
    expect(await sendWith(true)).toBe(true);
  });

  test('closeUnassignedResponse: pipelined responses close with a connection that was upgraded', async () => {
    const { server, port } = await startServer({}, (_request, response) => {
      response.on('close', () => closed.push(response));
      responses.push(response);
    });
    const responses: Parameters<RequestListener>[1][] = [];
    const closed: Parameters<RequestListener>[1][] = [];
    const upgraded = once(server, 'upgrade');
    const upgrade = GET.replace('\r\n\r\n', '\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n');
    const client = connect(port, '127.0.0.1');
    client.write(GET + GET + upgrade);
    const [, socket] = (await upgraded) as [unknown, Duplex];
    socket.on('error', () => {});
    client.destroy();
    socket.destroy();
    await once(socket, 'close');
    await sleep(20);
    const [, second] = responses;
    expect(second?.socket).toBeNull();
    expect(closed).not.toContain(second);
    for (const response of responses) closeUnassignedResponse(response);
    expect(closed).toContain(second);
  });

  test('destroyConnectionOnAssign: a destroyed pipelined response closes the connection', async () => {
    const sendWith = async (usesQuirk: boolean): Promise<boolean> => {
      const responses: Parameters<RequestListener>[1][] = [];
      const { port } = await startServer({}, (_request, response) => void responses.push(response));
      const client = connect(port, '127.0.0.1');
      client.on('error', () => {}).write(GET + GET);
      await until('both requests are received', () => responses.length === 2);
      const [first, second] = responses;
      second?.destroy();
      if (usesQuirk && second !== undefined) destroyConnectionOnAssign(second);
      first?.end();
      const isClosed = await Promise.race([once(client.resume(), 'close').then(() => true), sleep(500)]);
      client.destroy();
      return isClosed === true;
    };
    expect(await sendWith(false)).toBe(false);
    expect(await sendWith(true)).toBe(true);
  });

  test('EarlyBytes: bytes sent ahead are not sent again', async () => {
    const { port } = await startServer({}, (request, response) => {
      const early = new EarlyBytes(request.socket, 'HTTP/1.1 ');
      for (let sent = 0; sent < 4; sent += 1) early.sendNext();
      response.setHeader('connection', 'close');
      response.end('body');
    });
    expect(await exchange(port, (client) => client.write(GET))).toMatch(/^HTTP\/1\.1 200 OK\r\n[^]*body$/);
  });

  test('EarlyBytes: a write that does not begin with them destroys the connection', async () => {
    const { port } = await startServer({}, ({ socket }) => {
      new EarlyBytes(socket, 'HTTP/1.1 ').sendNext();
      socket.end('something else');
    });
    expect(await exchange(port, (client) => client.write(GET))).toBe('H');
  });
});

describe('HTTP/2', () => {
  /** Sends a request with a body; returns how it ended for the client. */
  async function request(
    onStream: (stream: http2.ServerHttp2Stream) => void,
    body = 'body',
  ): Promise<string> {
    const server = http2.createServer();
    server.on('stream', (stream: http2.ServerHttp2Stream) => {
      stream.on('error', () => {});
      onStream(stream);
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const client = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
    const stream = client.request({ ':method': 'POST' });
    let outcome = 'no end';
    stream.on('end', () => {
      outcome = 'complete';
    });
    stream.on('error', () => {
      outcome = 'error';
    });
    stream.resume().end(body);
    await once(stream, 'close').catch(() => {});
    client.destroy();
    server.close();
    return outcome;
  }

  test('resetStream: the client does not mistake a truncated response for a complete one', async () => {
    const respond = (end: (stream: http2.ServerHttp2Stream) => void) => (stream: http2.ServerHttp2Stream) => {
      stream.respond({ ':status': 200 });
      stream.write('part');
      setTimeout(() => end(stream), 20);
    };
    expect(await request(respond((stream) => stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR)))).toBe(
      'complete',
    );
    expect(await request(respond(resetStream))).toBe('error');
  });

  test('trackEndSent: the end of a response is known even if the stream does not finish', async () => {
    let isFinished = false;
    let isEndSent = (): boolean => false;
    const outcome = await request((stream) => {
      isEndSent = trackEndSent(stream);
      stream.on('finish', () => {
        isFinished = true;
      });
      stream.resume().on('end', () => {
        stream.respond({ ':status': 200 });
        stream.end('response');
      });
    });
    expect({ outcome, isFinished, isEndSent: isEndSent() }).toEqual({
      outcome: 'complete',
      isFinished: false,
      isEndSent: true,
    });
  });

  test('trackEndSent: a response that is reset has no end', async () => {
    let isEndSent = (): boolean => true;
    await request((stream) => {
      isEndSent = trackEndSent(stream);
      stream.respond({ ':status': 200 });
      stream.write('part');
      setTimeout(() => resetStream(stream), 20);
    });
    expect(isEndSent()).toBe(false);
  });

  test('onBodyReceived: counts a body that is not read', async () => {
    let received = 0;
    let isRead = false;
    await request((stream) => {
      onBodyReceived(stream, (size) => {
        received += size;
      });
      stream.on('end', () => {
        isRead = true;
      });
      setTimeout(() => resetStream(stream), 100);
    }, 'x'.repeat(50_000));
    expect({ received, isRead }).toEqual({ received: 50_000, isRead: false });
  });
});
