import { expect, test } from 'vitest';
import {
  type FrameClient,
  frameClient,
  requestFields,
  SETTING,
  windowUpdateFrame,
} from '../../support/http2-frames.ts';
import { useListeners } from '../open-listeners.ts';

const listeners = useListeners();
const BODY = 'ten bytes.';

/** `window`: bytes that the client accepts on a stream. */
async function connect(window: number, body: string): Promise<FrameClient> {
  const { port } = await listeners.listen({
    tls: { ...listeners.createTlsMaterial(), askCertificate: 'never', http2: true },
    onRequest: () => ({ status: 200, headers: {}, body, trailers: { 'grpc-status': '0', 'x-second': 'b' } }),
  });
  const settings = [
    [SETTING.headerTableSize, 0],
    [SETTING.initialWindowSize, window],
  ] as const;
  const client = await frameClient(port, { ca: listeners.ca.pem, settings });
  listeners.sockets.push(client.socket);
  return client;
}

const TRAILERS = [
  ['grpc-status', '0'],
  ['x-second', 'b'],
];

test('the trailers of a reply follow its body, and end the stream', async () => {
  const client = await connect(65_535, BODY);
  const stream = client.request(requestFields('/'));
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect([client.body(stream), client.trailers(stream)]).toEqual([BODY, TRAILERS]);
});

test('trailers wait until the window of the client has let the whole body pass', async () => {
  const client = await connect(0, BODY);
  const stream = client.request(requestFields('/'));
  await client.waitForOutcome(stream);
  for (let received = 1; received <= BODY.length; received += 1) {
    expect([client.endedCleanly(stream), client.trailers(stream)]).toEqual([false, []]);
    client.send(windowUpdateFrame(stream, 1));
    await client.until(() => client.bodyLength(stream) === received);
  }
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect([client.body(stream), client.trailers(stream)]).toEqual([BODY, TRAILERS]);
});

test('a reply without a body has trailers as well', async () => {
  const client = await connect(0, '');
  const stream = client.request(requestFields('/'));
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(client.trailers(stream)).toEqual(TRAILERS);
});
