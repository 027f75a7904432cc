import { afterEach, expect, test } from 'vitest';
import { indexed, literal, NEWEST_ENTRY } from '../support/hpack.ts';
import {
  dataFrame,
  type FrameClient,
  frameClient,
  headerBlock,
  headersFrame,
  repeat,
  requestFields,
} from '../support/http2-frames.ts';
import { useAttackGateway } from './attack-gateway.ts';

/**
 * X07: a connection that sends many frames at once, and another one whose request arrives at the same time. Requests without a
 * token are refused as soon as they are read, so that the log shows the order in which the gateway has read them.
 */
const attack = useAttackGateway();

const openClients: FrameClient[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
  attack.upstream.reset();
  attack.gateway.clearLog();
});

async function openClient(): Promise<FrameClient> {
  const { gateway } = attack;
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
  openClients.push(client);
  await client.waitForPong();
  return client;
}

const getPaths = (): unknown[] => attack.gateway.log.filter(({ event }) => event === 'request').map(({ path }) => path);

/** The largest TLS record: everything in it is read at once. */
const MAX_RECORD = 16_384;

/**
 * Sends the bytes, and requests of other clients before and after them; returns the paths in the order of the log. Clients that
 * were active last may come first, so that there are several.
 */
async function sendTogether(
  others: readonly FrameClient[],
  greedy: FrameClient,
  bytes: Buffer,
  lastStream: number,
): Promise<unknown[]> {
  attack.gateway.clearLog();
  const requestOther = (client: FrameClient): number => client.request(requestFields('/files/other'));
  // Everything is written before the gateway reads any of it.
  const streams = [];
  for (const client of others.slice(0, OTHERS / 2)) streams.push(requestOther(client));
  greedy.send(bytes);
  for (const client of others.slice(OTHERS / 2)) streams.push(requestOther(client));
  for (const [index, client] of others.entries())
    expect(await client.waitForEnd(streams[index] ?? 0)).toEqual({ status: 401 });
  expect(await greedy.waitForEnd(lastStream)).toEqual({ status: 401 });
  expect(greedy.isOver()).toBe(false);
  return getPaths();
}

const OTHERS = 6;
const openOthers = (): Promise<FrameClient[]> => Promise.all(Array.from({ length: OTHERS }, () => openClient()));

test('X07 a client that sends 900 requests at once does not delay the requests of others until all are processed', async () => {
  const others = await openOthers();
  const greedy = await openClient();
  // Indexed, so that all requests are in one record; HEAD, so that no window delays the responses.
  const fields = requestFields('/files/greedy', 'HEAD');
  const first = Buffer.concat(fields.map(([name, value]) => literal(name, value, 'incremental')));
  expect(await greedy.waitForEnd(greedy.request(first))).toEqual({ status: 401 });
  const block = Buffer.concat(fields.map((_, index) => indexed(NEWEST_ENTRY + fields.length - 1 - index)));
  const count = 900;
  const streams = Array.from({ length: count }, (_, index) => 2 * index + 3);
  const bytes = Buffer.concat(streams.map((stream) => headersFrame(stream, block)));
  expect(bytes.length).toBeLessThanOrEqual(MAX_RECORD);
  const paths = await sendTogether(others, greedy, bytes, streams.at(-1) ?? 0);
  expect(paths.length).toBe(count + OTHERS);
  expect(paths.lastIndexOf('/files/other')).toBeLessThan(count / 2);
});

test('X07 a client that sends 1,500 frames at once does not delay the requests of others until all are processed', async () => {
  const others = await openOthers();
  const greedy = await openClient();
  const upload = greedy.request(requestFields('/public/1', 'POST'), { end: false });
  await greedy.waitForPong();
  const last = upload + 2;
  const bytes = Buffer.concat([
    repeat(dataFrame(upload, 'x'), 1_500),
    headersFrame(last, requestFields('/files/greedy')),
  ]);
  expect(bytes.length).toBeLessThanOrEqual(MAX_RECORD);
  const paths = await sendTogether(others, greedy, bytes, last);
  expect(paths.filter((path) => path !== '/public/1')).toEqual([...others.map(() => '/files/other'), '/files/greedy']);
  greedy.send(dataFrame(upload, '', { end: true }));
  expect(await greedy.waitForEnd(upload)).toEqual({ status: 200 });
  expect(attack.upstream.requests.map(({ body }) => body)).toEqual(['x'.repeat(1_500)]);
});

test('X07 requests in many TLS records, each with few of them, do not delay the requests of others either', async () => {
  const others = await openOthers();
  const greedy = await openClient();
  const block = headerBlock([...requestFields('/files/greedy', 'HEAD'), ['x-filler', 'x'.repeat(150)]]);
  const count = 300;
  const streams = Array.from({ length: count }, (_, index) => 2 * index + 1);
  const bytes = Buffer.concat(streams.map((stream) => headersFrame(stream, block)));
  const paths = await sendTogether(others, greedy, bytes, streams.at(-1) ?? 0);
  expect(paths.length).toBe(count + OTHERS);
  expect(paths.lastIndexOf('/files/other')).toBeLessThan(count / 2);
});
